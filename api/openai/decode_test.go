package openai

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/compute/sample"
)

var (
	served  = []api.Model{{ID: "tiny-chat", WeightFacts: api.WeightFacts{ContextLength: 512}}}
	arrival = time.Unix(1700000000, 0)
)

const userHi = `"messages":[{"role":"user","content":"hi"}]`

func chat(t *testing.T, fields string) *api.Request {
	t.Helper()
	c, err := DecodeChat([]byte(`{`+userHi+fields+`}`), served, arrival)
	require.NoError(t, err)
	return c.Requests[0]
}

func TestChatDefaultsAreOpenAIs(t *testing.T) {
	r := chat(t, "")
	require.NotZero(t, r.Sampling.Seed)
	require.NotEqual(t, r.Sampling.Seed, chat(t, "").Sampling.Seed, "two calls without a seed differ")
	want := sample.Default()
	want.Seed = r.Sampling.Seed
	require.Equal(t, want, r.Sampling)
	r.Sampling = sample.Params{}
	require.Equal(t, &api.Request{ID: r.ID, Model: "tiny-chat", N: 1, TopLogprobs: -1, Arrival: arrival,
		Messages: []api.Message{{Role: "user", Content: "hi"}}}, r)
}

func TestEveryChatFieldReachesTheRequest(t *testing.T) {
	r := chat(t, `,"model":"tiny-chat","n":3,"max_tokens":5,"max_completion_tokens":17,"temperature":0.5,"top_p":0.9,
		"top_k":40,"min_p":0.05,"typical_p":0.95,"repetition_penalty":1.1,"presence_penalty":-2,"frequency_penalty":2,
		"logit_bias":{"5":-100,"77":0.5},"seed":-1,"stop":["a","bc"],"stop_token_ids":[6,2.0],"ignore_eos":true,
		"include_stop_str_in_output":true,"skip_special_tokens":false,"logprobs":true,"top_logprobs":20,
		"priority":-3,"timeout":1.5,"cache_salt":"s\u0000","chat_template_kwargs":{"enable_thinking":false},"add_generation_prompt":false,
		"user":"u","metadata":{"k":"v"},"response_format":{"type":"text"},"store":true,"something_new":[1]`)
	require.Equal(t, sample.Params{Temperature: .5, TopP: .9, TopK: 40, MinP: .05, TypicalP: .95,
		RepetitionPenalty: 1.1, PresencePenalty: -2, FrequencyPenalty: 2,
		LogitBias: map[int32]float32{5: -100, 77: .5}, Seed: math.MaxUint64}, r.Sampling)
	r.Sampling = sample.Params{}
	require.Equal(t, &api.Request{ID: r.ID, Model: "tiny-chat", N: 3, MaxTokens: 17, Arrival: arrival,
		Messages: []api.Message{{Role: "user", Content: "hi"}}, Stop: []string{"a", "bc"}, StopTokens: []int32{6, 2},
		IgnoreEOS: true, IncludeStop: true, KeepSpecial: true, TopLogprobs: 20, Priority: -3, CacheSalt: "s\x00",
		Deadline: arrival.Add(1500 * time.Millisecond), TemplateArgs: map[string]any{"enable_thinking": json.RawMessage("false")},
		NoGenerationPrompt: true}, r)
}

func TestABadCacheSaltIsRefusedWithoutItsValue(t *testing.T) {
	for _, salt := range []string{`["secret"]`, `17`, `"` + strings.Repeat("secret", 43) + `"`} {
		_, err := DecodeCompletion([]byte(`{"prompt":"a","cache_salt":`+salt+`}`), served, arrival)
		require.ErrorContains(t, err, "cache_salt")
		require.ErrorContains(t, err, "at most 256 bytes")
		require.NotContains(t, err.Error(), "secret")
	}
	longest := strings.Repeat("é", api.MaxCacheSalt/2)
	c, err := DecodeCompletion([]byte(`{"prompt":"a","cache_salt":"`+longest+`"}`), served, arrival)
	require.NoError(t, err)
	require.Equal(t, longest, c.Requests[0].CacheSalt)
}

func TestNullIsAbsent(t *testing.T) {
	r := chat(t, `,"model":null,"n":null,"max_tokens":null,"temperature":null,"stop":null,"seed":null,"tools":null,
		"tool_choice":null,"logit_bias":null,"response_format":null,"stream":null,"stream_options":null,"min_tokens":null`)
	require.Equal(t, float32(1), r.Sampling.Temperature)
	require.Nil(t, r.Stop)
}

func TestTopPZeroIsTheSmallestNucleusNotOff(t *testing.T) {
	p := chat(t, `,"top_p":0`).Sampling.TopP
	require.True(t, p > 0 && p < 1e-6, "%g", p)
	require.Zero(t, chat(t, `,"top_k":-1`).Sampling.TopK)
}

func TestMessagesOfEveryRoleAndContentForm(t *testing.T) {
	c, err := DecodeChat([]byte(`{"messages":[
		{"role":"developer","content":"rules"},
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"bob"},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",
			"function":{"name":"f","arguments":"{\"z\":1,\"a\":2}"}}]},
		{"role":"tool","content":"3","tool_call_id":"c1"},
		{"role":"assistant","content":"so"}],
		"continue_final_message":true,
		"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],"tool_choice":"auto"}`), served, arrival)
	require.NoError(t, err)
	r := c.Requests[0]
	require.Equal(t, api.Message{Role: "system", Content: "rules"}, r.Messages[0])
	require.Equal(t, api.Message{Role: "user", Content: "a\nb", Name: "bob", Parts: []int{0, 2}}, r.Messages[1])
	require.Equal(t, api.Message{Role: "tool", Content: "3", ToolCallID: "c1"}, r.Messages[3])
	require.True(t, r.ContinueFinal && r.NoGenerationPrompt)
	made, err := api.Marshal(r.Messages[2].ToolCalls)
	require.NoError(t, err)
	require.Equal(t, `[{"id":"c1","type":"function","function":{"name":"f","arguments":{"z":1,"a":2}}}]`, string(made),
		"arguments are an object with the client's order of keys")
	tools, err := api.Marshal(r.Tools)
	require.NoError(t, err)
	require.Equal(t, `[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]`, string(tools))
	require.Nil(t, chat(t, `,"tool_choice":"none","tools":[{"type":"function","function":{"name":"f"}}]`).Tools)
}

func TestCompletionPromptForms(t *testing.T) {
	for body, want := range map[string][]prompt{
		`"one"`:          {{text: "one"}},
		`["a","b"]`:      {{text: "a"}, {text: "b"}},
		`[1,2,3]`:        {{tokens: []int32{1, 2, 3}}},
		`[[1],[22,3]]`:   {{tokens: []int32{1}}, {tokens: []int32{22, 3}}},
		` [ [1] , [2] ]`: {{tokens: []int32{1}}, {tokens: []int32{2}}},
	} {
		c, err := DecodeCompletion([]byte(`{"prompt":`+body+`,"n":2,"logprobs":0}`), served, arrival)
		require.NoError(t, err, body)
		require.Len(t, c.Requests, len(want))
		require.Equal(t, len(want)*2, c.Choices())
		ids := map[string]bool{}
		for i, r := range c.Requests {
			ids[r.ID] = true
			got := prompt{r.Prompt, r.PromptTokens}
			require.Equal(t, want[i], got)
			require.Equal(t, 16, r.MaxTokens)
			require.Equal(t, 0, r.TopLogprobs)
		}
		require.Len(t, ids, len(want), "each request has its own id")
	}
}

func deep(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// bad is one body that must be refused, and the field that the error names.
type bad struct{ body, param string }

func badChats() []bad {
	with := func(field string) string { return `{` + userHi + `,` + field + `}` }
	cases := []bad{
		{``, ""}, {`   `, ""}, {`null`, ""}, {`[]`, ""}, {`"x"`, ""}, {`1`, ""}, {`{`, ""}, {`{"a"}`, ""},
		{`{"messages":[]} x`, ""}, {`{` + userHi + `}{}`, ""}, {`not json`, ""}, {"\x00", ""}, {"\xef\xbb\xbf{}", ""},
		{`{"messages":[{"role":"user","content":"` + "\xff\xfe" + `"}]}`, ""},
		{`{"messages":[{"role":"user","content":"` + "\xed\xa0\x80" + `"}]}`, ""},
		{`{"messages":[{"role":"user","content":"\ud800"}]}`, ""},
		{`{"messages":[{"role":"user","content":"\udc00\ud800"}]}`, ""},
		{`{"messages":[{"role":"user","content":"\ud800\u0041"}]}`, ""},
		{`{"x":` + deep(65) + `}`, ""}, {`{"x":` + deep(100000) + `}`, ""},
		{`{}`, "messages"}, {`{"messages":[]}`, "messages"}, {`{"messages":null}`, "messages"},
		{`{"messages":"hi"}`, "messages"}, {`{"messages":{}}`, "messages"}, {`{"messages":["hi"]}`, "messages[0]"},
		{`{"messages":[null]}`, "messages[0]"}, {`{"Messages":[{"role":"user","content":"x"}]}`, "messages"},
		{`{"messages":[{"content":"x"}]}`, "messages[0].role"},
		{`{"messages":[{"role":"boss","content":"x"}]}`, "messages[0].role"},
		{`{"messages":[{"role":1,"content":"x"}]}`, "messages[0].role"},
		{`{"messages":[{"role":"user"}]}`, "messages[0].content"},
		{`{"messages":[{"role":"user","content":null}]}`, "messages[0].content"},
		{`{"messages":[{"role":"user","content":7}]}`, "messages[0].content"},
		{`{"messages":[{"role":"user","content":[7]}]}`, "messages[0].content[0]"},
		{`{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content[0].type"},
		{`{"messages":[{"role":"user","content":[{"type":"text"}]}]}`, "messages[0].content[0].text"},
		{`{"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{}]}]}`, "messages[1].tool_calls[0].function"},
		{`{"messages":[{"role":"user","content":"x"}],"continue_final_message":true}`, "continue_final_message"},
		{with(`"model":7`), "model"},
		{with(`"n":0`), "n"}, {with(`"n":129`), "n"}, {with(`"n":1.5`), "n"}, {with(`"n":"2"`), "n"}, {with(`"n":-1`), "n"},
		{with(`"n":99999999999999999999`), "n"}, {with(`"n":1e400`), "n"},
		{with(`"max_tokens":0`), "max_tokens"}, {with(`"max_tokens":-5`), "max_tokens"}, {with(`"max_tokens":[]`), "max_tokens"},
		{with(`"max_completion_tokens":1e99`), "max_completion_tokens"},
		{with(`"temperature":-0.1`), "temperature"}, {with(`"temperature":2.1`), "temperature"},
		{with(`"temperature":"hot"`), "temperature"}, {with(`"temperature":1e999`), "temperature"},
		{with(`"temperature":NaN`), ""}, {with(`"temperature":"NaN"`), "temperature"}, {with(`"temperature":true`), "temperature"},
		{with(`"temperature":Infinity`), ""}, {with(`"temperature":0x1`), ""},
		{with(`"top_p":1.01`), "top_p"}, {with(`"top_p":-1`), "top_p"},
		{with(`"top_k":-2`), "top_k"}, {with(`"top_k":0.5`), "top_k"},
		{with(`"min_p":2`), "min_p"}, {with(`"typical_p":0`), "typical_p"}, {with(`"repetition_penalty":0`), "repetition_penalty"},
		{with(`"presence_penalty":3`), "presence_penalty"}, {with(`"frequency_penalty":-2.5`), "frequency_penalty"},
		{with(`"logit_bias":[]`), "logit_bias"}, {with(`"logit_bias":{"a":1}`), "logit_bias"},
		{with(`"logit_bias":{"-1":1}`), "logit_bias"}, {with(`"logit_bias":{"3":101}`), "logit_bias.3"},
		{with(`"logit_bias":{"4294967296":1}`), "logit_bias"},
		{with(`"seed":"x"`), "seed"}, {with(`"seed":1.5`), "seed"},
		{with(`"stop":1`), "stop"}, {with(`"stop":[1]`), "stop"}, {with(`"stop":""`), "stop[0]"}, {with(`"stop":["a",null]`), "stop[1]"},
		{with(`"stop":[` + strings.Repeat(`"a",`, 16) + `"a"]`), "stop"},
		{with(`"stop":"` + strings.Repeat("a", 1025) + `"`), "stop[0]"},
		{with(`"stop_token_ids":[-1]`), "stop_token_ids[0]"}, {with(`"stop_token_ids":7`), "stop_token_ids"},
		{with(`"stream":"yes"`), "stream"}, {with(`"stream":1`), "stream"},
		{with(`"stream_options":{"include_usage":true}`), "stream_options"},
		{with(`"stream":true,"stream_options":7`), "stream_options"},
		{with(`"stream":true,"stream_options":{"include_usage":1}`), "stream_options.include_usage"},
		{with(`"logprobs":1`), "logprobs"}, {with(`"logprobs":true,"top_logprobs":21`), "top_logprobs"},
		{with(`"top_logprobs":2`), "top_logprobs"}, {with(`"logprobs":true,"top_logprobs":-1`), "top_logprobs"},
		{with(`"timeout":0`), "timeout"}, {with(`"timeout":-1`), "timeout"}, {with(`"timeout":1e9`), "timeout"},
		{with(`"priority":"high"`), "priority"}, {with(`"user":7`), "user"}, {with(`"metadata":7`), "metadata"},
		{with(`"ignore_eos":"no"`), "ignore_eos"}, {with(`"best_of":2`), "best_of"},
		{with(`"response_format":{"type":"json_schema"}`), "response_format.json_schema"},
		{with(`"response_format":{"type":"structural_tag"}`), "response_format.type"},
		{with(`"response_format":{}`), "response_format.type"}, {with(`"response_format":"text"`), "response_format"},
		{with(`"tools":{}`), "tools"}, {with(`"tools":[{}]`), "tools[0].function"},
		{with(`"tools":[{"function":{"name":""}}]`), "tools[0].function.name"},
		{with(`"tool_choice":"required"`), "tool_choice"}, {with(`"tool_choice":"maybe"`), "tool_choice"},
		{with(`"tool_choice":{"type":"function","function":{"name":"f"}}`), "tool_choice.function.name"},
		{with(`"chat_template_kwargs":[]`), "chat_template_kwargs"},
		{with(`"chat_template_kwargs":{"messages":[]}`), "chat_template_kwargs"},
		{with(`"continue_final_message":true,"add_generation_prompt":true`), "continue_final_message"},
		{with(`"modalities":["audio"]`), "modalities"}, {with(`"echo":true`), "echo"},
	}
	for _, u := range unsupported {
		cases = append(cases, bad{with(`"` + u.name + `":"something"`), u.name})
	}
	return cases
}

func requireRefused(t *testing.T, c bad, err error) {
	t.Helper()
	var e *api.Error
	require.ErrorAs(t, err, &e, "%.200q", c.body)
	require.Equal(t, api.CodeInvalid, e.Code)
	require.Equal(t, c.param, e.Param, "%.200q: %s", c.body, e.Message)
	require.Contains(t, e.Message, e.Param)
	require.Less(t, len(e.Message), 400)
}

func TestBadChatsAreRefusedByTheFieldAtFault(t *testing.T) {
	for _, c := range badChats() {
		_, err := DecodeChat([]byte(c.body), served, arrival)
		requireRefused(t, c, err)
	}
}

func TestBadCompletionsAreRefusedByTheFieldAtFault(t *testing.T) {
	for _, c := range []bad{
		{`{}`, "prompt"}, {`{"prompt":null}`, "prompt"}, {`{"prompt":""}`, "prompt"}, {`{"prompt":[]}`, "prompt"},
		{`{"prompt":7}`, "prompt"}, {`{"prompt":{}}`, "prompt"}, {`{"prompt":[""]}`, "prompt[0]"}, {`{"prompt":[[]]}`, "prompt[0]"},
		{`{"prompt":["a",1]}`, "prompt"}, {`{"prompt":[1,"a"]}`, "prompt[1]"}, {`{"prompt":[[1],"a"]}`, "prompt"},
		{`{"prompt":[-1]}`, "prompt[0]"}, {`{"prompt":[1.5]}`, "prompt[0]"}, {`{"prompt":[4294967296]}`, "prompt[0]"},
		{`{"prompt":[null]}`, "prompt[0]"}, {`{"prompt":[[1,null]]}`, "prompt[0][1]"}, {`{"prompt":[true]}`, "prompt[0]"},
		{`{"prompt":["a","b"],"n":65}`, "prompt"},
		{`{"prompt":[` + strings.Repeat(`"a",`, 128) + `"a"]}`, "prompt"},
		{`{"prompt":"a","suffix":"x"}`, "suffix"}, {`{"prompt":"a","best_of":3,"n":2}`, "best_of"},
		{`{"prompt":"a","logprobs":21}`, "logprobs"}, {`{"prompt":"a","logprobs":true}`, "logprobs"},
		{`{"prompt":"a","echo":1}`, "echo"}, {`{"prompt":"a","echo":true,"logprobs":0,"stream":true}`, "logprobs"},
		{`{"prompt":"a","max_tokens":0,"n":2}`, "max_tokens"},
	} {
		_, err := DecodeCompletion([]byte(c.body), served, arrival)
		requireRefused(t, c, err)
	}
}

func TestBadTokenizeCallsAreRefused(t *testing.T) {
	for _, c := range []bad{
		{`{}`, "prompt"}, {`{"prompt":"a",` + userHi + `}`, "prompt"}, {`{"prompt":7}`, "prompt"},
		{`{"messages":[]}`, "messages"}, {`{"prompt":"a","add_special_tokens":1}`, "add_special_tokens"},
	} {
		_, err := DecodeTokenize([]byte(c.body), served)
		requireRefused(t, c, err)
	}
	for _, c := range []bad{{`{}`, "tokens"}, {`{"tokens":"a"}`, "tokens"}, {`{"tokens":[1,"a"]}`, "tokens[1]"}} {
		_, err := DecodeDetokenize([]byte(c.body), served)
		requireRefused(t, c, err)
	}
}

func TestTheModelMayBeLeftOutWhereOneIsServed(t *testing.T) {
	body := []byte(`{` + userHi + `}`)
	two := append(served, api.Model{ID: "other"})
	c, err := DecodeChat(body, served, arrival)
	require.NoError(t, err)
	require.Equal(t, "tiny-chat", c.Model)
	_, err = DecodeChat(body, two, arrival)
	requireRefused(t, bad{string(body), "model"}, err)
	_, err = DecodeChat([]byte(`{"model":"gpt-4o",`+userHi+`}`), two, arrival)
	require.Equal(t, &api.Error{Code: 404, Param: "model", Reason: "model_not_found",
		Message: `model "gpt-4o" is not served here, which has "tiny-chat", "other"`}, err)
	_, err = DecodeChat(body, nil, arrival)
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeUnavailable, e.Code)
}

// FuzzDecode: no body makes a decoder panic; what it accepts is within the
// limits that the rest of the server relies on; what it refuses is a 4xx.
func FuzzDecode(f *testing.F) {
	for _, c := range badChats() {
		if len(c.body) < 4096 {
			f.Add([]byte(c.body))
		}
	}
	f.Add([]byte(`{` + userHi + `,"n":2,"stop":["a"],"logit_bias":{"1":2},"tools":[{"function":{"name":"f"}}]}`))
	f.Add([]byte(`{"prompt":[[1,2],[3]],"n":2,"logprobs":1,"tokens":[1]}`))
	f.Add([]byte(`{"prompt":"\ud83d\ude00","stream":true,"stream_options":{"include_usage":true}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, decode := range []func([]byte, []api.Model, time.Time) (*call.Call, error){DecodeChat, DecodeCompletion} {
			c, err := decode(body, served, arrival)
			if err != nil {
				requireClientError(t, err)
				continue
			}
			if err := plausible(c); err != nil {
				t.Errorf("%q: %v", body, err)
			}
		}
		if _, err := DecodeTokenize(body, served); err != nil {
			requireClientError(t, err)
		}
		if _, err := DecodeDetokenize(body, served); err != nil {
			requireClientError(t, err)
		}
	})
}

func requireClientError(t *testing.T, err error) {
	var e *api.Error
	if !errors.As(err, &e) || e == nil || e.Code < 400 || e.Code >= 500 || e.Message == "" {
		t.Errorf("not a client's error: %#v", err)
	}
}

func plausible(c *call.Call) error {
	if len(c.Requests) == 0 || c.Choices() < 1 || c.Choices() > maxChoices {
		return fmt.Errorf("%d requests, %d choices", len(c.Requests), c.Choices())
	}
	for _, r := range c.Requests {
		set := 0
		for _, is := range []bool{len(r.Messages) > 0, r.Prompt != "", len(r.PromptTokens) > 0} {
			if is {
				set++
			}
		}
		p := r.Sampling
		switch {
		case set != 1:
			return fmt.Errorf("%d of messages, prompt, tokens", set)
		case r.N != c.N, r.MaxTokens < 0, r.TopLogprobs < -1, r.TopLogprobs > maxTopLogprobs, len(r.Stop) > maxStop:
			return fmt.Errorf("out of range: %+v", r)
		case !(p.Temperature >= 0 && p.Temperature <= 2), !(p.TopP > 0 && p.TopP <= 1), p.TopK < 0,
			!(p.MinP >= 0 && p.MinP <= 1), !(p.RepetitionPenalty > 0):
			return fmt.Errorf("out of range: %+v", p)
		}
	}
	return nil
}
