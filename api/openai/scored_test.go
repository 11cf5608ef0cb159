package openai

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

func completion(t *testing.T, fields string, models ...api.Model) *call.Call {
	t.Helper()
	if models == nil {
		models = served
	}
	c, err := DecodeCompletion([]byte(`{"prompt":"ab"`+fields+`}`), models, arrival)
	require.NoError(t, err, fields)
	return c
}

func TestPromptsAreScoredWhereTheCallSaysSo(t *testing.T) {
	require.Nil(t, completion(t, `,"echo":true`).Requests[0].PromptLogprobs)
	require.Nil(t, completion(t, `,"logprobs":2`).Requests[0].PromptLogprobs)
	require.Equal(t, 2, *completion(t, `,"logprobs":2,"echo":true`).Requests[0].PromptLogprobs)
	require.Equal(t, 0, *completion(t, `,"prompt_logprobs":0`).Requests[0].PromptLogprobs)
	require.Equal(t, 5, *completion(t, `,"prompt_logprobs":5,"logprobs":2,"echo":true`).Requests[0].PromptLogprobs)
	require.Equal(t, 3, *chat(t, `,"prompt_logprobs":3`).PromptLogprobs)
	require.Equal(t, call.ResumeNo, completion(t, `,"prompt_logprobs":0,"stream_resume":"auto"`).Resume)
	for fields, param := range map[string]string{
		`,"prompt_logprobs":21`:                             "prompt_logprobs",
		`,"prompt_logprobs":1,"stream":true`:                "prompt_logprobs",
		`,"prompt_logprobs":1,"stream_resume":true`:         "prompt_logprobs",
		`,"prompt_logprobs":1,"use_beam_search":true,"n":2`: "prompt_logprobs",
		`,"logprobs":1,"echo":true,"stream":true`:           "logprobs",
		`,"min_tokens":-1`:                                  "min_tokens",
		`,"min_tokens":2,"guided_choice":["a"]`:             "min_tokens",
		`,"min_tokens":2,"use_beam_search":true,"n":2`:      "min_tokens",
		`,"max_tokens":0,"n":2`:                             "max_tokens",
		`,"max_tokens":0,"guided_choice":["a"]`:             "max_tokens",
		`,"max_tokens":0,"stream_resume":true`:              "max_tokens",
	} {
		_, err := DecodeCompletion([]byte(`{"prompt":"ab"`+fields+`}`), served, arrival)
		require.Error(t, err, fields)
		require.Equal(t, param, api.AsError(err).Param, fields)
	}
}

func TestNoTokensIsARequestThatGeneratesNothing(t *testing.T) {
	r := completion(t, `,"max_tokens":0,"echo":true,"logprobs":1`).Requests[0]
	require.Equal(t, &api.Pool{Pooling: api.PoolNone}, r.Pool)
	require.Equal(t, 1, r.MaxTokens)
	require.Nil(t, completion(t, `,"max_tokens":1`).Requests[0].Pool)
	require.Equal(t, 7, completion(t, `,"min_tokens":7`).Requests[0].Sampling.MinTokens)
}

func TestScoresHaveTheFormOfTheirInterface(t *testing.T) {
	first := api.TokenLogprob{Token: 1, Text: "<s>", Bytes: []byte("<s>"), Logprob: float32(math.NaN())}
	second := api.TokenLogprob{Token: 2, Text: "ab", Bytes: []byte("ab"), Logprob: -0.5, Rank: 3, Top: []api.TokenLogprob{
		{Token: 9, Text: "x", Bytes: []byte("x"), Logprob: -0.25}, {Token: 2, Text: "ab", Bytes: []byte("ab"), Logprob: -0.5},
	}}
	result := func() *call.Result {
		return &call.Result{Choices: []call.Choice{{Text: "abc", Finish: api.FinishLength, Prompt: []api.TokenLogprob{first, second},
			Logprobs: []api.TokenLogprob{{Token: 3, Text: "c", Bytes: []byte("c"), Logprob: -1, Top: []api.TokenLogprob{}}}}}}
	}
	var a TextCompletion
	decode := func(c *call.Call) {
		body, err := EncodeAnswer(c, result(), "")
		require.NoError(t, err)
		a = TextCompletion{}
		require.NoError(t, json.Unmarshal(body, &a))
	}
	decode(completion(t, `,"echo":true,"logprobs":2`))
	require.JSONEq(t,
		`{"tokens":["<s>","ab","c"],"token_logprobs":[null,-0.5,-1],"top_logprobs":[null,{"x":-0.25,"ab":-0.5},{}],"text_offset":[0,3,5]}`,
		string(a.Choices[0].Logprobs))
	require.Nil(t, a.Choices[0].PromptLogprobs)

	decode(completion(t, `,"prompt_logprobs":2`))
	require.JSONEq(t, `[null,{"2":{"logprob":-0.5,"rank":3,"decoded_token":"ab"},"9":{"logprob":-0.25,"rank":1,"decoded_token":"x"}}]`,
		string(a.Choices[0].PromptLogprobs))
	require.Equal(t, "null", string(a.Choices[0].Logprobs))

	c, err := DecodeChat([]byte(`{"messages":[{"role":"user","content":"hi"}],"prompt_logprobs":2}`), served, arrival)
	require.NoError(t, err)
	body, err := EncodeAnswer(c, result(), "")
	require.NoError(t, err)
	var chatted ChatCompletion
	require.NoError(t, json.Unmarshal(body, &chatted))
	require.Contains(t, string(chatted.PromptLogprobs), `"decoded_token":"x"`)
}

func TestAGapIsFilledByModelsThatHaveTokensForIt(t *testing.T) {
	filler := api.Model{ID: "f", TextFacts: api.TextFacts{Infill: []string{"<pre>", "<suf>", "<mid>"}}}
	require.Equal(t, "<pre>ab<suf>yz<mid>", completion(t, `,"suffix":"yz"`, filler).Requests[0].Prompt)
	require.Equal(t, "ab", completion(t, `,"suffix":""`).Requests[0].Prompt)
	for body, want := range map[string]string{
		`{"prompt":[1],"suffix":"x"}`:             "suffix: expected a prompt of text beside it, found token ids",
		`{"prompt":"a","suffix":"x","echo":true}`: "suffix: not supported together with echo",
		`{"prompt":"a","suffix":1}`:               "suffix: expected a string",
	} {
		_, err := DecodeCompletion([]byte(body), []api.Model{filler}, arrival)
		require.ErrorContains(t, err, want)
	}
	_, err := DecodeCompletion([]byte(`{"prompt":"a","suffix":"x"}`), served, arrival)
	require.ErrorContains(t, err, "the model has no tokens to fill a gap")
}

func TestABudgetOfReasoningIsForModelsWithAnEnd(t *testing.T) {
	decode := func(m api.Model) (*call.Call, error) {
		return DecodeChat([]byte(`{"messages":[{"role":"user","content":"hi"}],"thinking_token_budget":40}`), []api.Model{m}, arrival)
	}
	c, err := decode(api.Model{ID: "t", TextFacts: api.TextFacts{Format: "none+think", Think: []int32{4, 5}}})
	require.NoError(t, err)
	require.Equal(t, &sample.Thinking{Budget: 40, Start: 4, End: 5}, c.Requests[0].Sampling.Thinking)
	_, err = decode(api.Model{ID: "t", TextFacts: api.TextFacts{Format: "none+think"}})
	require.ErrorContains(t, err, "no token ends the reasoning of this model")
	c, err = decode(api.Model{ID: "t"})
	require.NoError(t, err, "a model without reasoning has no more of it")
	require.Nil(t, c.Requests[0].Sampling.Thinking)
}

func TestOffsetsCountTheCharactersOfTheText(t *testing.T) {
	for name, c := range map[string]struct {
		tokens []string // bytes
		want   string
	}{
		"whole":     {[]string{"a", " b", "世", " c"}, "[0,1,3,4]"},
		"parts":     {[]string{"\xe4\xb8", "\x96", "\xe7", "\x95", "\x8c", " hello"}, "[0,0,1,1,1,2]"},
		"over":      {[]string{"a\xf0\x9f", "\x91", "\xa9 b", "c"}, "[0,1,1,4]"},
		"broken":    {[]string{"\xff", "a", "\xe4", "b", "c"}, "[0,1,2,3,4]"},
		"two":       {[]string{"\xe4", "\xe4\xb8\x96", "c"}, "[0,1,2]"},
		"special":   {[]string{"<s>", "a"}, "[0,0]"},
		"half only": {[]string{"\xe4\xb8"}, "[0]"},
	} {
		var tokens []api.TokenLogprob
		for _, text := range c.tokens {
			one := api.TokenLogprob{Bytes: []byte(text), Text: strings.ToValidUTF8(text, "\ufffd")}
			if text == "<s>" {
				one.Text = ""
			}
			tokens = append(tokens, one)
		}
		var whole struct {
			Offsets json.RawMessage `json:"text_offset"`
		}
		require.NoError(t, json.Unmarshal(appendCompletionLogprobs(nil, tokens, new(position)), &whole))
		require.Equal(t, c.want, string(whole.Offsets), name)
		var at position
		streamed := []string{}
		for i := range tokens {
			require.NoError(t, json.Unmarshal(appendCompletionLogprobs(nil, tokens[i:i+1], &at), &whole))
			streamed = append(streamed, strings.Trim(string(whole.Offsets), "[]"))
		}
		require.Equal(t, c.want, "["+strings.Join(streamed, ",")+"]", name)
	}
}
