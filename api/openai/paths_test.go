package openai

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestAnErrorHasTheNameOfTheFieldThatTheClientSent(t *testing.T) {
	p := Paths{"messages": "input", "messages[1]": "input[3]", "messages[1].tool_calls[0].function": "input[4]", "stop": "stop_sequences"}
	for chat, want := range map[string]string{
		"messages": "input", "messages[0].role": "input[0].role", "messages[1].content[2].type": "input[3].content[2].type",
		"messages[11]": "input[11]", "messages[1].tool_calls[0].function.name": "input[4].name", "stop[1]": "stop_sequences[1]",
		"stopped": "stopped", "top_p": "top_p", "": "",
	} {
		err := p.Rename(api.Invalid(chat, "%s: found 1", chat))
		require.Equal(t, api.Invalid(want, "%s: found 1", want), err)
	}
	require.NoError(t, p.Rename(nil))
}
