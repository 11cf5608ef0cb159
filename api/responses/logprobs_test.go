package responses

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

func TestLogprobsOfTheTextComeWithIt(t *testing.T) {
	list := []api.Event{{Text: "<think>h</think>"}, {Text: "a"}, {}, {Text: "\u4e16"}, {Text: "<tool_call>"},
		{Text: "\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>"},
		{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}}}
	for i := range list[:len(list)-1] {
		one := api.TokenLogprob{Token: int32(i), Text: string(rune('A' + i)), Bytes: []byte{byte(i)}, Logprob: -float32(i)}
		one.Top = []api.TokenLogprob{one}
		list[i].Logprobs = []api.TokenLogprob{one}
	}
	for fields, wanted := range map[string]bool{
		`"include":["message.output_text.logprobs"],"top_logprobs":2`: true, `"top_logprobs":2`: true,
		`"include":["message.output_text.logprobs"]`:                 true,
		`"include":["reasoning.encrypted_content"],"top_logprobs":0`: false, `"top_logprobs":null`: false,
	} {
		decode := func() *call.Call {
			c, err := Decode([]byte(`{"model":"m","input":"x","tools":[{"type":"function","name":"f"}],`+fields+`}`), thinkers,
				time.Unix(5, 0))
			require.NoError(t, err, fields)
			return c
		}
		require.Equal(t, wanted, decode().Requests[0].TopLogprobs >= 0, fields)
	}
	c, err := Decode([]byte(`{"model":"m","input":"x","tools":[{"type":"function","name":"f"}],"top_logprobs":1}`), thinkers,
		time.Unix(5, 0))
	require.NoError(t, err)
	s := NewStream(c, "")
	var last event
	streamed := ""
	for _, ev := range list {
		for _, chunk := range s.Encode(ev) {
			last = event{}
			require.NoError(t, json.Unmarshal(chunk, &last))
			if last.Type == "response.output_text.delta" {
				for _, one := range *last.Logprobs {
					streamed += one.Token
				}
			}
		}
	}
	require.Equal(t, "BCD", streamed)
	result, err := call.Collect(context.Background(), c, call.EventsOf(list...))
	require.NoError(t, err)
	var whole Response
	require.NoError(t, json.Unmarshal(must(Encode(c, result, "")), &whole))
	require.Equal(t, 1, whole.TopLogprobs)
	const want = `[{"token":"B","logprob":-1,"bytes":[1],"top_logprobs":[{"token":"B","logprob":-1,"bytes":[1]}]},
		{"token":"C","logprob":-2,"bytes":[2],"top_logprobs":[{"token":"C","logprob":-2,"bytes":[2]}]},
		{"token":"D","logprob":-3,"bytes":[3],"top_logprobs":[{"token":"D","logprob":-3,"bytes":[3]}]}]`
	for _, r := range []*Response{&whole, last.Response} {
		require.Equal(t, []string{"reasoning", "message", "function_call"}, []string{r.Output[0].Type, r.Output[1].Type, r.Output[2].Type})
		require.JSONEq(t, want, string(must(json.Marshal((*r.Output[1].Content)[0].Logprobs))))
		require.Nil(t, (*r.Output[0].Content)[0].Logprobs)
	}
}

var thinkers = []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1000}, TextFacts: api.TextFacts{Format: "hermes+think"}}}
