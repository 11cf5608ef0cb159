package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/client"
)

// recomputer is a server that gives one answer.
type recomputer struct {
	client.Client
	path, body, answer string
	fail               error
}

func (r *recomputer) Post(_ context.Context, path string, body []byte) ([]byte, error) {
	r.path, r.body = path, string(body)
	return []byte(r.answer), r.fail
}

// proofOf returns the JSON of the proof of one choice's tokens.
func proofOf(t *testing.T, tokens ...int32) string {
	t.Helper()
	p := proof.Proof{Version: 1, Model: "m", Settings: map[string]string{"seed": "5"},
		Prompts: []proof.PromptProof{{Numerics: "n", Text: "t", Hash: "h"}},
		Choices: []proof.ChoiceProof{{Tokens: len(tokens), Hash: api.HashPrompt(tokens), FinishReason: "stop"}}}
	p.Digest = p.Sum()
	text, err := json.Marshal(p)
	require.NoError(t, err)
	return string(text)
}

func chatAnswer(content, ids, of string) string {
	return fmt.Sprintf(`{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":%q},"logprobs":null,"finish_reason":"stop","token_ids":%s}],"proof":%s}`,
		content, ids, of)
}

func TestVerifySendsTheRequestAgainWithTheProof(t *testing.T) {
	good := proofOf(t, 1, 2)
	whole := chatAnswer("ab", "[1,2]", good)
	chunk := func(rest string) string { return `{"id":"x","choices":[{"index":0,` + rest + `}]}` }
	chunks := []string{
		chunk(`"delta":{"role":"assistant","content":""},"finish_reason":null`),
		chunk(`"delta":{"content":"a"},"token_ids":[1],"finish_reason":null`),
		chunk(`"delta":{"content":"b"},"token_ids":[2],"finish_reason":null`), chunk(`"delta":{},"finish_reason":"stop"`),
		`{"choices":[],"proof":` + good + `}`,
	}
	events := ": ping\n"
	for i, c := range chunks {
		events += fmt.Sprintf("id: %d\ndata: %s\n\n", i+1, c)
	}
	for name, saved := range map[string]string{"whole": whole, "server-sent events": events + "data: [DONE]\n\n",
		"lines": strings.Join(chunks, "\n")} {
		server := &recomputer{answer: whole}
		var out bytes.Buffer
		err := verify(t.Context(), &out, server, []byte(`{"messages":[{"role":"user","content":"<&"}],"seed":9007199254740993,"proof":true,"stream":true,
			"stream_options":{},"stream_resume":true,"request_id":"r","new":1.50}`), []byte(saved))
		require.NoError(t, err, name)
		require.Regexp(t, `^verified: 2 tokens, digest [0-9a-f]{64}\n$`, out.String())
		require.Equal(t, "/v1/chat/completions", server.path)
		require.JSONEq(t, `{"messages":[{"role":"user","content":"<&"}],"seed":9007199254740993,"proof":`+good+`,"new":1.50}`, server.body)
		require.Contains(t, server.body, `"seed":9007199254740993`, "no number is rounded")
	}
	server := &recomputer{answer: whole}
	require.NoError(t, verify(t.Context(), &bytes.Buffer{}, server, []byte(`{"prompt":"a"}`), []byte(whole)))
	require.Equal(t, "/v1/completions", server.path)
}

// otherAPIs are answers of the Responses and of the Messages API with reasoning, text and a call, whole and streamed.
func otherAPIs(of string) map[string][]string {
	response := `{"id":"ID","object":"response","status":"completed","output":[{"type":"reasoning","content":[{"type":"reasoning_text","text":"hm"}]},
		{"type":"message","content":[{"type":"output_text","text":"ab"}]},{"type":"function_call","call_id":"ID","name":"f","arguments":"{\"a\": 1}"}],"proof":` + of + `}`
	var line bytes.Buffer
	if err := json.Compact(&line, []byte(response)); err != nil {
		panic(err)
	}
	events := func(list ...string) string {
		text := ""
		for _, e := range list {
			text += "event: x\ndata: " + e + "\n\n"
		}
		return text
	}
	return map[string][]string{
		"/v1/responses": {response,
			events(`{"type":"response.created","response":{"object":"response","status":"in_progress","output":[]}}`,
				`{"type":"response.output_text.delta","delta":"ab"}`, `{"type":"response.completed","response":`+line.String()+`}`)},
		"/v1/messages": {
			`{"id":"ID","type":"message","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"ab"},{"type":"tool_use","id":"ID","name":"f","input":{"a":1}}],
				"stop_reason":"tool_use","stop_sequence":null,"proof":` + of + `}`,
			events(`{"type":"message_start","message":{"id":"ID","type":"message","content":[]}}`,
				`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}`,
				`{"type":"content_block_stop","index":0}`,
				`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":""}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"a"}}`,
				`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":"b"}}`,
				`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"ID","name":"f","input":{}}}`,
				`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":"{\"a\":"}}`,
				`{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":" 1}"}}`,
				`{"type":"message_delta","delta":{"stop_reason":"tool_use","stop_sequence":null},"usage":{},"proof":`+of+`}`,
				`{"type":"message_stop"}`),
		},
	}
}

func TestVerifyKnowsTheAnswersOfOtherAPIs(t *testing.T) {
	good := proofOf(t, 1, 2)
	requests := map[string]string{"/v1/responses": `{"input":"x","background":true,"stream":true,"proof":true}`,
		"/v1/messages": `{"messages":[],"max_tokens":9,"stream":true,"proof":true}`}
	bodies := map[string]string{"/v1/responses": `{"input":"x","store":false,"proof":` + good + `}`,
		"/v1/messages": `{"messages":[],"max_tokens":9,"proof":` + good + `}`}
	for path, saved := range otherAPIs(good) {
		for _, one := range saved {
			server := &recomputer{answer: strings.ReplaceAll(saved[0], `"ID"`, `"another"`)}
			require.NoError(t, verify(t.Context(), &bytes.Buffer{}, server, []byte(requests[path]), []byte(one)), one)
			require.Equal(t, path, server.path)
			require.JSONEq(t, bodies[path], server.body)
			for _, change := range []struct{ old, now, want string }{
				{`"hm"`, `"hmm"`, "another reasoning_content"}, {`"text":"ab"`, `"text":"ax"`, "another content"},
				{`"name":"f"`, `"name":"g"`, "another list of tool calls"},
				{`"completed"`, `"incomplete"`, "another finish_reason"},
				{`"stop_reason":"tool_use"`, `"stop_reason":"max_tokens"`, "another finish_reason"},
				{good, proofOf(t, 1, 3), "proof.choices[0].hash"},
			} {
				if strings.Contains(one, change.old) {
					err := verify(t.Context(), &bytes.Buffer{}, server, []byte(requests[path]),
						[]byte(strings.Replace(one, change.old, change.now, 1)))
					require.ErrorContains(t, err, "the answer differs: ", change.old)
					require.ErrorContains(t, err, change.want)
				}
			}
			err := verify(t.Context(), &bytes.Buffer{}, server, []byte(requests[path]),
				[]byte(strings.ReplaceAll(one, `"proof":`, `"no":`)))
			require.ErrorContains(t, err, "found an answer without a proof")
		}
	}
}

func TestVerifySaysWhatDiffers(t *testing.T) {
	good := proofOf(t, 1, 2, 3)
	computed := chatAnswer("abc", "[1,2,3]", good)
	for saved, want := range map[string]string{
		chatAnswer("abc", "[1,7,3]",
			good): "the answer differs: choice 0: token 1 is 7, expected 2",
		chatAnswer("abc", "[1,2]", good):   "choice 0: found 2 tokens, expected 3",
		chatAnswer("abx", "[1,2,3]", good): "choice 0: another content",
		chatAnswer("abc", "[1,7,3]",
			proofOf(t, 1, 7,
				3)): "token 1 is 7, expected 2; proof.choices[0].hash: found " + api.HashPrompt([]int32{1,
			7, 3}),
		chatAnswer("abc", "[1,2,3]", strings.Replace(good, `"seed":"5"`, `"seed":"6"`, 1)): "proof.digest: found ",
		strings.Replace(computed, `"stop","token`, `"length","token`,
			1): "choice 0: another finish_reason",
		strings.Replace(computed, `"logprobs":null`, `"logprobs":{"content":[]}`,
			1): "choice 0: another value of logprobs",
		strings.Replace(computed, `"content":"abc"`, `"content":"abc","tool_calls":[{"function":{"name":"f"}}]`,
			1): "choice 0: another list of tool calls",
		strings.Replace(computed, `"content":"abc"`, `"content":"abc","reasoning_content":"r"`,
			1): "choice 0: another reasoning_content",
		`{"choices":[],"proof":` + good + `}`: "found 0 choices, expected 1",
	} {
		err := verify(t.Context(), &bytes.Buffer{}, &recomputer{answer: computed}, []byte(`{"messages":[]}`), []byte(saved))
		require.ErrorContains(t, err, want)
		require.NotErrorAs(t, err, new(*unchecked))
		require.Equal(t, 1, exitCode(&failure{err}))
	}
	saved := strings.Replace(computed, `"content":"abc"`,
		`"content":"abc","tool_calls":[{"id":"a","function":{"name":"f","arguments":"{}"}}]`,
		1)
	again := strings.Replace(saved, `"id":"a"`, `"id":"b"`, 1)
	require.NoError(t, verify(t.Context(), &bytes.Buffer{}, &recomputer{answer: again}, []byte(`{"messages":[]}`), []byte(saved)),
		"ids of calls come from the id of the answer")
}

func TestVerifySaysWhyItCannotCheck(t *testing.T) {
	good := chatAnswer("a", "[1]", proofOf(t, 1))
	for _, c := range []struct {
		request, saved, answer, want string
		fail                         error
	}{
		{`{}`, `{"choices":[]}`, good, `found an answer without a proof, expected one to a request with "proof": true`, nil},
		{`{}`, ``, good, "without a proof", nil},
		{`{}`, `{"error":{"message":"m"}}`, good, "without a proof", nil},
		{`{}`, strings.Replace(good, `"version":1`, `"version":2`, 1), good, "found a proof of version 2, expected 1", nil},
		{`{}`, `{"choices":[],"proof":3}`, good, "the proof: ", nil},
		{`{}`, "data: {\"choices\":[{\"index\":-1}]}\n", good, "found choice -1", nil},
		{`[]`, good, good, "the request: ", nil},
		{`null`, good, good, "the request: found null, expected a JSON object", nil},
		{`{}`, good, `{"choices":[]}`, "the server's answer: found an answer without a proof", nil},
		{`{}`, good, good, "no process has the numerics digest",
			&client.Error{Code: "no_equal_worker", Message: "no process has the numerics digest"}},
	} {
		err := verify(t.Context(), &bytes.Buffer{}, &recomputer{answer: c.answer, fail: c.fail}, []byte(c.request), []byte(c.saved))
		require.ErrorContains(t, err, c.want)
		require.ErrorContains(t, err, "could not be checked: ")
		require.Equal(t, 2, exitCode(&failure{err}))
	}
	for _, args := range [][]string{{"verify", "-", "-"}, {"verify", "none.json", "-"}, {"verify", "a"}, {"verify", "-", "none.json"}} {
		code, _, stderr := millrace(t, nil, args...)
		require.Equal(t, 2, code, stderr)
	}
	require.Equal(t, 1, exitCode(&failure{errors.New("x")}))
}

func TestVerifyComparesTheBitsOfDecisions(t *testing.T) {
	answerOf := func(bits, probability string) string {
		p := proof.Decisions{Version: 1, Model: "m", Prompts: []proof.PromptProof{{Numerics: "n", Text: "t", Hash: "h"}},
			Options: [][]proof.OptionProof{{{Tokens: []int32{1, 2}, Logprobs: []string{"bf000000", bits}},
				{Tokens: []int32{3}, Logprobs: []string{"bf000001"}}}}}
		p.Digest = p.Sum()
		text, err := json.Marshal(p)
		require.NoError(t, err)
		return fmt.Sprintf(`{"id":"x","answers":[{"type":"predicate","probability":%s}],"proof":%s}`, probability, text)
	}
	request := []byte(`{"input":"a","questions":[{"type":"predicate","instructions":"?"}],"proof":true}`)
	good := answerOf("bf000002", "0.5")
	server := &recomputer{answer: good}
	var out bytes.Buffer
	require.NoError(t, verify(t.Context(), &out, server, request, []byte(good)))
	require.Regexp(t, `^verified: 1 answers, digest [0-9a-f]{64}\n$`, out.String())
	require.Equal(t, "/v1/decisions", server.path)
	require.Contains(t, server.body, `"proof":{"version":1,"digest":"`)

	for saved, want := range map[string]string{
		answerOf("bf000003",
			"0.5"): "proof.options[0][0].logprobs: found bf000000,bf000003, expected bf000000,bf000002",
		answerOf("bf000002",
			"0.6"): `answers[0]: found {"type":"predicate","probability":0.6}, expected {"type":"predicate","probability":0.5}`,
		strings.Replace(good, `"tokens":[3]`, `"tokens":[4]`, 1): "proof.digest: found ",
	} {
		err := verify(t.Context(), &out, server, request, []byte(saved))
		require.ErrorContains(t, err, want)
		require.NotErrorAs(t, err, new(*unchecked))
	}
	for _, saved := range []string{`{"answers":[]}`, `[]`, `{"answers":[],"proof":{"version":2}}`} {
		require.ErrorAs(t, verify(t.Context(), &out, server, request, []byte(saved)), new(*unchecked), saved)
	}
}
