package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/openai"
)

// decides is an engine that finds each answer half as probable as the one before.
func decides() *apitest.Engine {
	return apitest.New(func(r *api.Request, s *apitest.Stream) {
		x := &api.Extra{}
		for i := range r.Pool.Answers {
			x.Answers = append(x.Answers, api.AnswerLogprobs{Tokens: []int32{int32(i)}, Logprobs: []float32{-0.6931472 * float32(i+1)}})
		}
		s.Send(api.Event{Extra: x, Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "h"}, Finish: api.FinishStop, Done: true,
			Usage: &api.Usage{PromptTokens: 10, CachedTokens: 4}})
	})
}

const decisionsBody = `{"model":"tiny-chat","input":[{"role":"user","content":"The screen"},{"type":"message","role":"user","content":[{"type":"input_text","text":"is"},{"type":"input_text","text":"broken."}]}],"questions":[
	{"type":"predicate","name":"damaged","instructions":"Is it damaged?"},
	{"type":"choice","instructions":"Who?","choices":[{"value":"returns","description":"broken items"},{"value":true},{"value":"b\"c"}]},
	{"type":"score","instructions":"How bad?","levels":[{"label":"fine"},{"label":"broken","description":"of no use"}]}]%s}`

func TestDecisionsHaveOpenAIsForm(t *testing.T) {
	e := decides()
	srv := serve(t, e, httpapi.Options{})
	resp := post(t, srv, "/v1/decisions", fmt.Sprintf(decisionsBody, `,"proof":true,"safety_identifier":"x"`))
	require.Equal(t, 200, resp.StatusCode)
	body := read(t, resp)
	var a openai.Decision
	strict(t, body, &a)
	require.Equal(t, "tiny-chat", a.Model)
	require.True(t, strings.HasPrefix(a.ID, "decision-"))
	require.Equal(t, openai.DecisionUsage{InputTokens: 30, InputDetails: openai.DecisionInputUsage{Cached: 12}, TotalTokens: 30}, a.Usage)

	require.Equal(t, "damaged", *a.Answers[0].Name)
	require.InDelta(t, 2./3, *a.Answers[0].Probability, 1e-6)
	require.InDelta(t, 0.75, a.Answers[0].Mass, 1e-6)
	require.Contains(t, body, `{"type":"choice","name":null,"choice":"returns","probabilities":[{"value":"returns","probability":`)
	require.Contains(t, body, `{"value":true,"probability":`)
	require.InDelta(t, 1./7, a.Answers[1].Probabilities[2].Probability, 1e-6)
	require.InDelta(t, 0.5, *a.Answers[1].Confidence, 1e-6)
	require.Contains(t, body, `{"value":1,"label":"broken","probability":`)
	require.InDelta(t, 1./3, *a.Answers[2].Score, 1e-6)

	require.Len(t, a.Proof.Prompts, 3)
	require.Equal(t, "h", a.Proof.Prompts[2].Hash)
	require.Equal(t, []string{"bf317218"}, a.Proof.Options[0][0].Logprobs)
	require.Equal(t, a.Proof.Sum(), a.Proof.Digest)
	changed := *a.Proof
	changed.Options[1][2].Logprobs = []string{"bf317219"}
	require.NotEqual(t, a.Proof.Digest, changed.Sum())

	requests := e.Requests()
	require.Equal(t, []string{"yes", "no"}, requests[0].Pool.Answers)
	require.Equal(t, "The screen\n\nis\nbroken.\n\nQuestion: Is it damaged?\nAnswer yes or no, and nothing else.",
		requests[0].Messages[0].Content)
	require.Equal(t, []string{"returns", "true", `b"c`}, requests[1].Pool.Answers)
	require.Contains(t, requests[1].Messages[0].Content,
		"Options:\n- returns: broken items\n- true\n- b\"c\nAnswer with one of the options")
	require.Equal(t, []string{"0", "1"}, requests[2].Pool.Answers)
	require.Contains(t, requests[2].Messages[0].Content, "Levels:\n0: fine\n1: broken: of no use\nAnswer with the number")
	require.Equal(t, map[string]any{"enable_thinking": false, "thinking": false}, requests[2].TemplateArgs)

	earlier, err := json.Marshal(a.Proof)
	require.NoError(t, err)
	resp = post(t, srv, "/v1/decisions", fmt.Sprintf(decisionsBody, `,"proof":`+string(earlier)))
	require.Equal(t, 200, resp.StatusCode, read(t, resp))
	require.Equal(t, &api.Pin{Numerics: "n", Text: "t"}, e.Requests()[5].Equal)
	require.Equal(t, a.Proof.Created, e.Requests()[5].Clock.Unix())
}

func TestDecisionsThatCannotBeMadeAreRefusedByTheirField(t *testing.T) {
	srv := serve(t, decides(), httpapi.Options{})
	const yes = `{"type":"predicate","instructions":"?"}`
	choices := `{"type":"choice","instructions":"?","choices":[` + strings.Repeat(`{"value":true},`, 255) + `{"value":false}]}`
	var distinct []string
	for i := range 255 {
		distinct = append(distinct, fmt.Sprintf(`{"value":"%d"}`, i))
	}
	largest := `{"type":"choice","instructions":"?","choices":[` + strings.Join(distinct, ",") + `]}`
	for body, want := range map[string]string{
		`{"questions":[` + yes + `]}`:                                    "input: expected a string",
		`{"input":"","questions":[` + yes + `]}`:                         "input: expected a text",
		`{"input":[{"role":"system"}],"questions":[` + yes + `]}`:        `input[0].role: expected \"user\", found \"system\"`,
		`{"input":[{"role":"user","content":[{"type":"input_image"}]}]}`: `input[0].content[0].type: only \"input_text\"`,
		`{"input":"a"}`:                "questions: expected a list of 1 to 200 questions",
		`{"input":"a","questions":[]}`: "questions: expected a list of 1 to 200 questions",
		`{"input":"a","questions":[` + strings.Repeat(yes+",",
			200) + yes + `]}`: "questions: expected at most 200 entries, found 201",
		`{"input":"a","questions":[{"type":"boolean","instructions":"?"}]}`:                                            `questions[0].type: expected \"predicate\", \"choice\" or \"score\", found \"boolean\"`,
		`{"input":"a","questions":[` + yes + `,{"type":"predicate"}]}`:                                                 "questions[1].instructions: expected a string",
		`{"input":"a","questions":[{"type":"choice","instructions":"?","choices":[{"value":"a"}]}]}`:                   "questions[0].choices: expected a list of 2 to 255",
		`{"input":"a","questions":[{"type":"choice","instructions":"?","choices":[{"value":"a"},{"value":1}]}]}`:       "questions[0].choices[1].value: expected a string with at least one character, true or false, found 1",
		`{"input":"a","questions":[{"type":"choice","instructions":"?","choices":[{"value":"true"},{"value":true}]}]}`: `questions[0].choices[1].value: the text \"true\" is that of choices[0]`,
		`{"input":"a","questions":[` + choices + `]}`:                                                                  "questions[0].choices: expected at most 255 entries, found 256",
		`{"input":"a","questions":[{"type":"score","instructions":"?","levels":[{"label":"a"},{}]}]}`:                  "questions[0].levels[1].label: expected a string",
		`{"input":"a","questions":[` + strings.Repeat(largest+",",
			8) + largest + `]}`: "questions[8]: expected at most 2048 options in all questions",
		`{"input":"a","questions":[` + yes + `],"stream":true}`:                      "stream: not supported",
		`{"input":"a","questions":[` + yes + `],"proof":{"version":1,"prompts":[]}}`: "proof.prompts: expected 1",
	} {
		resp := post(t, srv, "/v1/decisions", body)
		text := read(t, resp)
		require.Equal(t, 400, resp.StatusCode, body)
		require.Contains(t, text, want, body)
	}
}
