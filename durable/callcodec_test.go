package durable

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
)

// bodies use every field that a call can have.
var bodies = []struct {
	kind call.Kind
	body string
}{
	{call.Chat, `{"messages":[{"role":"system","content":"ü"},{"role":"user","content":"hi","name":"n"},
		{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2.50]}"}}]},
		{"role":"tool","content":"x","tool_call_id":"c"},{"role":"assistant","content":"so"}],
		"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],"chat_template_kwargs":{"k":[1]},
		"continue_final_message":true,"temperature":0.3,"top_p":0.9,"top_k":5,"min_p":0.1,"typical_p":0.8,"repetition_penalty":1.1,
		"presence_penalty":-0.5,"frequency_penalty":0.25,"logit_bias":{"5":-1.5,"7":3},"seed":-3,"stop":["a","b"],"stop_token_ids":[3,4],
		"ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false,"logprobs":true,"top_logprobs":2,
		"n":2,"max_tokens":7,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"priority":-4,"timeout":2.5}`},
	{call.Chat, `{"messages":[{"role":"user","content":""}],"add_generation_prompt":false}`},
	{call.Completion, `{"prompt":["one","two"],"echo":true,"n":3,"top_p":0,"stream":true}`},
	{call.Completion, `{"prompt":[1,2,3],"use_beam_search":true,"n":2,"num_beams":4,"length_penalty":0.5,"early_stopping":"never"}`},
}

func models() []api.Model { return []api.Model{{ID: "m", ContextLength: 64}} }

func TestADecodedCallComesBackAsItWas(t *testing.T) {
	used := map[string]bool{}
	for _, b := range bodies {
		c, err := wire.DecodeAgain(b.kind, "cmpl-1", []byte(b.body), models(), time.Unix(5, 7))
		require.NoError(t, err, b.body)
		form, err := encodeCall(c)
		require.NoError(t, err)
		got, err := decodeCall(c.ID, form)
		require.NoError(t, err)
		for i, r := range c.Requests {
			note(reflect.ValueOf(*r), used)
			require.Equal(t, printed(t, r), printed(t, got.Requests[i]))
		}
		note(reflect.ValueOf(*c), used)
		require.Equal(t, c, got, b.body)
		require.NotEmpty(t, form)
	}
	for _, v := range []any{call.Call{}, api.Request{}} {
		for field := range reflect.TypeOf(v).Fields() {
			switch name := field.Name; name {
			case "Named", "Resume", "First", "Tenant", "Weight", "Buffered": // how the call was sent, and what running it sets
				require.False(t, used[name], name)
			default:
				require.True(t, used[name], "%T.%s is in no body of this test", v, name)
			}
		}
	}
}

// note notes which fields of a struct are set.
func note(v reflect.Value, used map[string]bool) {
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			used[v.Type().Field(i).Name] = true
		}
	}
}

// printed is what templates print of a request's values, and takes it out of the request.
func printed(t *testing.T, r *api.Request) string {
	t.Helper()
	text, err := json.Marshal([]any{r.Messages, r.Tools, r.TemplateArgs})
	require.NoError(t, err)
	r.Messages, r.Tools, r.TemplateArgs = nil, nil, nil
	return string(text)
}

func TestADamagedFormIsAnError(t *testing.T) {
	for _, b := range bodies {
		c, err := wire.DecodeAgain(b.kind, "cmpl-1", []byte(b.body), models(), time.Unix(5, 7))
		require.NoError(t, err)
		form, err := encodeCall(c)
		require.NoError(t, err)
		for n := range form {
			if got, err := decodeCall(c.ID, form[:n]); err == nil {
				require.NotEqual(t, c, got)
			} else {
				require.ErrorIs(t, err, errRecord)
			}
		}
	}
	_, err := decodeCall("x", nil)
	require.ErrorIs(t, err, errRecord)
}

// TestACallIsTheSameWheneverItIsSent, and another one whatever else differs.
func TestACallIsTheSameWheneverItIsSent(t *testing.T) {
	form := func(at int64, body string) []byte {
		c, err := wire.DecodeAgain(call.Completion, "cmpl-1", []byte(body), models(), time.Unix(at, 0))
		require.NoError(t, err)
		form, err := encodeCall(c)
		require.NoError(t, err)
		return form
	}
	const one = `{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":3}}`
	require.True(t, sameCall(form(1, one), form(2, one)))
	for _, other := range []string{
		`{"prompt":"two","timeout":3,"logit_bias":{"1":1,"2":2,"3":3}}`, `{"prompt":"one","timeout":4,"logit_bias":{"1":1,"2":2,"3":3}}`,
		`{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":4}}`, `{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":3},"stream":true}`,
	} {
		require.False(t, sameCall(form(1, one), form(1, other)), other)
	}
}
