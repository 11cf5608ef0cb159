package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/jsonbody"
)

func TestAFieldWithTooManyValuesIsRefusedAndNotDecoded(t *testing.T) {
	many := "[" + strings.Repeat("1,", jsonbody.MaxValues) + "1]"
	for field, body := range map[string]string{
		"chat_template_kwargs": `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":` + many + `}}`,
		"stop":                 `{"messages":[{"role":"user","content":"a"}],"stop":` + many + `}`,
		"messages":             `{"messages":[{"role":"user","content":` + many + `}]}`,
		"messages[0].tool_calls[0].function.arguments": `{"messages":[{"role":"assistant","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\":` + many + `}"}}]}]}`,
	} {
		_, err := DecodeChat([]byte(body), served, arrival)
		require.ErrorContains(t, err, field+": expected at most 200000 values, found up to 200", field)
	}
	_, err := DecodeChat([]byte(`{"a":[`+strings.Repeat("{},", 50_000)+`{}]}`), served, arrival)
	require.EqualError(t, err, "found 50003 objects and lists in the body, expected at most 50000")
	_, err = DecodeChat([]byte(`{"a":[`+strings.Repeat(`"",`, 400_000)+`""]}`), served, arrival)
	require.EqualError(t, err, "found 400002 keys and strings in the body, expected at most 400000")
	c, err := DecodeCompletion([]byte(`{"prompt":`+many+`}`), served, arrival)
	require.NoError(t, err, "token ids are many")
	require.Len(t, c.Requests[0].PromptTokens, jsonbody.MaxValues+1)
}
