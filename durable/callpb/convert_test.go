package callpb

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/anthropic"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/api/responses"
)

// bodies are requests that together use every field of a call.
var bodies = []struct {
	kind call.Kind
	body string
}{
	{call.Chat, `{"messages":[{"role":"system","content":"ü"},{"role":"user","content":"hi","name":"n"},
		{"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2.50]}"}}]},
		{"role":"tool","content":"x","tool_call_id":"c"},{"role":"assistant","content":"so"}],
		"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],"parallel_tool_calls":false,
		"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"f"}}]}},
		"chat_template_kwargs":{"k":[1]},
		"continue_final_message":true,"temperature":0.3,"top_p":0.9,"top_k":5,"min_p":0.1,"typical_p":0.8,"repetition_penalty":1.1,
		"presence_penalty":-0.5,"frequency_penalty":0.25,"dry_multiplier":0.5,"dry_base":2,"dry_allowed_length":3,
		"dry_penalty_last_n":64,"dry_sequence_breakers":["a","\u00e9"],"xtc_probability":0.5,"xtc_threshold":0.25,"top_n_sigma":1.5,"bad_words":["x y"],
		"logit_bias":{"5":-1.5,"7":3},"seed":-3,"stop":["a","b"],"stop_token_ids":[3,4],
		"ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false,"logprobs":true,"top_logprobs":2,
		"n":2,"max_tokens":7,"stream":true,"stream_options":{"include_usage":true},"return_token_ids":true,"priority":-4,"timeout":2.5,"cache_salt":"s"}`},
	{call.Chat, `{"messages":[{"role":"user","content":""}],"add_generation_prompt":false}`},
	{call.Chat, `{"messages":[{"role":"user","content":"a"}],"proof":{"created":5,"prompts":[{"numerics":"n","text":"t"}]}}`},
	{call.Chat, `{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto"}`},
	{call.Completion, `{"prompt":["one","two"],"echo":true,"n":3,"top_p":0,"stream":true}`},
	{call.Completion, `{"prompt":"one","guided_json":{"const":"é"}}`},
	{call.Responses, `{"input":"a","metadata":{"k":"v"}}`},
	{call.Messages, `{"messages":[{"role":"user","content":"a"}],"max_tokens":5}`},
	{call.OllamaChat, `{"messages":[{"role":"user","content":"a"}]}`},
	{call.Completion, `{"prompt":[1,2,3],"use_beam_search":true,"n":2,"num_beams":4,"length_penalty":0.5,"early_stopping":"never"}`},
}

func models() []api.Model {
	return []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 64},
		TextFacts: api.TextFacts{Format: "hermes+think"}}}
}

func decodedBody(t *testing.T, kind call.Kind, body string) *call.Call {
	t.Helper()
	decode := map[call.Kind]func([]byte, []api.Model, time.Time) (*call.Call, error){
		call.Chat: openai.DecodeChat, call.Completion: openai.DecodeCompletion,
		call.Responses: responses.Decode, call.Messages: anthropic.Decode, call.OllamaChat: ollama.DecodeChat,
	}[kind]
	c, err := decode([]byte(body), models(), time.Unix(5, 7))
	require.NoError(t, err, body)
	return c
}

func TestADecodedCallComesBackAsItWas(t *testing.T) {
	used := map[string]bool{}
	for _, b := range bodies {
		c := decodedBody(t, b.kind, b.body)
		encoded, err := Encode(c)
		require.NoError(t, err)
		got, err := Decode(c.ID, encoded)
		require.NoError(t, err)
		for i, r := range c.Requests {
			note(reflect.ValueOf(*r), used)
			require.Equal(t, printed(t, r), printed(t, got.Requests[i]))
		}
		note(reflect.ValueOf(*c), used)
		require.Equal(t, c, got, b.body)
		require.NotEmpty(t, encoded)
	}
	for _, v := range []any{call.Call{}, api.Request{}} {
		for field := range reflect.TypeOf(v).Fields() {
			switch name := field.Name; name {
			case "Window", "Vectors", "Questions", "Pool", "Second", "PromptLogprobs": // of calls that cannot be resumed
				require.False(t, used[name], name)
			case "Named", "Resume", "Ignored", "Takeover", "First", "Tenant", "Weight", "Buffered": // how the call was sent, and fields that running it sets
				require.False(t, used[name], name)
			default:
				require.True(t, used[name], "%T.%s is in no body of this test", v, name)
			}
		}
	}
}

// note adds the names of the fields that are set in a struct.
func note(v reflect.Value, used map[string]bool) {
	for i := range v.NumField() {
		if !v.Field(i).IsZero() {
			used[v.Type().Field(i).Name] = true
		}
	}
}

// printed returns the values of a request that templates print, and clears them in the request.
func printed(t *testing.T, r *api.Request) string {
	t.Helper()
	text, err := json.Marshal([]any{r.Messages, r.Tools, r.TemplateArgs})
	require.NoError(t, err)
	r.Messages, r.Tools, r.TemplateArgs = nil, nil, nil
	return string(text)
}

func TestADamagedFormIsAnError(t *testing.T) {
	for _, b := range bodies {
		c := decodedBody(t, b.kind, b.body)
		encoded, err := Encode(c)
		require.NoError(t, err)
		for n := range encoded {
			if got, err := Decode(c.ID, encoded[:n]); err == nil {
				require.NotEqual(t, c, got)
			} else {
				require.ErrorIs(t, err, ErrDamaged)
			}
		}
	}
	_, err := Decode("x", nil)
	require.ErrorIs(t, err, ErrDamaged)
}

// TestACallIsTheSameWheneverItIsSent checks that a call with another creation time is the same call, and
// that one with any other difference is not.
func TestACallIsTheSameWheneverItIsSent(t *testing.T) {
	encode := func(at int64, body string) []byte {
		body = strings.Replace(body, "{", `{"stream_resume":true,"request_id":"1",`, 1)
		c, err := openai.DecodeCompletion([]byte(body), models(), time.Unix(at, 0))
		require.NoError(t, err)
		encoded, err := Encode(c)
		require.NoError(t, err)
		return encoded
	}
	const one = `{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":3}}`
	require.True(t, Same(encode(1, one), encode(2, one)))
	for _, other := range []string{
		`{"prompt":"two","timeout":3,"logit_bias":{"1":1,"2":2,"3":3}}`, `{"prompt":"one","timeout":4,"logit_bias":{"1":1,"2":2,"3":3}}`,
		`{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":4}}`,
		`{"prompt":"one","timeout":3,"logit_bias":{"1":1,"2":2,"3":3},"stream":true}`,
	} {
		require.False(t, Same(encode(1, one), encode(1, other)), other)
	}
}
