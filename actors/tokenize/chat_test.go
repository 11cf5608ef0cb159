package tokenize

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/tokenizer"
)

// withTemplate is the demo tokenizer with another template.
func withTemplate(t *testing.T, template string) *tokenizer.Tokenizer {
	t.Helper()
	return vocabularyWithTemplate(t, "../../models/tiny-chat", template)
}

// vocabularyWithTemplate is the tokenizer of a folder with another template.
func vocabularyWithTemplate(t *testing.T, folder, template string) *tokenizer.Tokenizer {
	t.Helper()
	dir := t.TempDir()
	vocabulary, err := filepath.Abs(filepath.Join(folder, "tokenizer.json"))
	require.NoError(t, err)
	require.NoError(t, os.Symlink(vocabulary, filepath.Join(dir, "tokenizer.json")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

func TestTheEndOfThePromptSaysWhetherTheAnswerBeginsInsideReasoning(t *testing.T) {
	tok := withTemplate(t,
		"{{ messages[0].content }}{% if add_generation_prompt %}[model]<think>{% if not think %}\n\n</think>{% endif %}\n{% endif %}")
	for _, c := range []struct {
		request api.TokenizeRequest
		want    tools.Thought
	}{
		{api.TokenizeRequest{TemplateArgs: map[string]any{"think": true}}, tools.Opened},
		{api.TokenizeRequest{}, tools.Closed},
		{api.TokenizeRequest{NoGenerationPrompt: true}, tools.Unsaid},
	} {
		c.request.Messages = []api.Message{{Role: "user", Content: "a"}}
		_, thought, err := encode(tok, &c.request, 0)
		require.NoError(t, err)
		require.Equal(t, c.want, thought)
	}
}

func TestDeepSeekR1BeginsInsideReasoning(t *testing.T) {
	tok := withTemplate(t,
		"{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}{% if tools %}<｜tool▁call▁begin｜>{% endif %}")
	messages := []api.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b"}}
	for _, c := range []struct {
		request api.TokenizeRequest
		want    tools.Thought
	}{
		{api.TokenizeRequest{Messages: messages[:1]}, tools.Opened},
		{api.TokenizeRequest{Messages: messages, ContinueFinal: true}, tools.Unsaid},
		{api.TokenizeRequest{Messages: messages[:1], NoGenerationPrompt: true}, tools.Unsaid},
	} {
		_, thought, err := encode(tok, &c.request, 0)
		require.NoError(t, err)
		require.Equal(t, c.want, thought)
	}
}

func TestATemplateWithoutToolsGetsCallsAndResultsAsText(t *testing.T) {
	const strict = "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('unknown role: ' + m.role) }}{% endif %}" +
		"[{{ m.role }}]{{ m.content + '' }}{% endfor %}"
	chat := &api.TokenizeRequest{Messages: []api.Message{
		{Role: "user", Content: "time?"},
		{Role: "assistant",
			ToolCalls: []any{json.RawMessage(`{"id":"c","type":"function","function":{"name":"now","arguments":{"zone":"CET"}}}`)}},
		{Role: "tool", Content: "12:00", ToolCallID: "c"},
	}}
	tok := withTemplate(t, strict)
	ids, _, err := encode(tok, chat, 0)
	require.NoError(t, err)
	text, err := tok.Decode(ids, false)
	require.NoError(t, err)
	require.Equal(t,
		"[user]time?[assistant]<tool_call>\n"+`{"name":"now","arguments":{"zone":"CET"}}`+"\n</tool_call>[user]<tool_response>\n12:00\n</tool_response>", text)
	require.Equal(t, "tool", chat.Messages[2].Role, "the request stays as it is")

	_, _, err = encode(withTemplate(t, strict+"{# tool #}"), &api.TokenizeRequest{Messages: chat.Messages[2:]}, 0)
	require.ErrorContains(t, err, "unknown role: tool", "a template that knows tools says what it wants")
	_, _, err = encode(tok, &api.TokenizeRequest{Messages: []api.Message{{Role: "boss", Content: "a"}}}, 0)
	require.ErrorContains(t, err, "unknown role: boss")
}

func TestATemplateThatPrintsArgumentsAsTheyAreGetsAString(t *testing.T) {
	tok := withTemplate(t,
		"{% for m in messages %}{% for c in m.tool_calls %}{{ '<tool>' + c.function.name + ' ' + c.function.arguments }}{% endfor %}{% endfor %}")
	ids, _, err := encode(tok, &api.TokenizeRequest{Messages: []api.Message{
		{Role: "assistant",
			ToolCalls: []any{json.RawMessage(`{"id":"c","type":"function","function":{"name":"now","arguments":{"zone":"<\"CET\">"}}}`)}},
	}}, 0)
	require.NoError(t, err)
	text, err := tok.Decode(ids, false)
	require.NoError(t, err)
	require.Equal(t, `<tool>now {"zone":"<\"CET\">"}`, text)
}

func TestATemplateThatNeedsTheContentOfATurnGetsAnEmptyOne(t *testing.T) {
	messages := []api.Message{{Role: "assistant",
		ToolCalls: []any{json.RawMessage(`{"id":"c","type":"function","function":{"name":"now","arguments":{"a":1}}}`)}}}
	for template, want := range map[string]string{
		"{% for m in messages %}{{ m.content.lstrip() }}{% for c in m.tool_calls %}{{ '<tool>' + c.function.name }}{% endfor %}{% endfor %}":                    "<tool>now",
		"{% for m in messages %}{{ m.content + '' }}{% for c in m.tool_calls %}{{ '<tool>' + c.function.name + c.function.arguments }}{% endfor %}{% endfor %}": `<tool>now{"a":1}`,
		"{% for m in messages %}{{ m.content is defined }}{% for c in m.tool_calls %}{{ '<tool>' + c.function.name }}{% endfor %}{% endfor %}":                  "False<tool>now",
		// it knows no tools
		"{% for m in messages %}{{ m.content + '' }}{% endfor %}": "<tool_call>\n" + `{"name":"now","arguments":{"a":1}}` + "\n</tool_call>",
	} {
		tok := withTemplate(t, template)
		ids, _, err := encode(tok, &api.TokenizeRequest{Messages: messages}, 0)
		require.NoError(t, err, template)
		text, err := tok.Decode(ids, false)
		require.NoError(t, err)
		require.Equal(t, want, text, template)
	}
}

// TestATurnWithReasoningContentAndCallsKeepsItsReasoning has a template with one place for reasoning and content, as that of gpt-oss.
func TestATurnWithReasoningContentAndCallsKeepsItsReasoning(t *testing.T) {
	tok := withTemplate(t, "{% for m in messages %}[{{ m.role }}]{% if m.tool_calls %}{% if m.content and m.thinking %}"+
		"{{ raise_exception('Cannot pass both content and thinking in an assistant message with tool calls!') }}{% endif %}"+
		"{{ m.content or m.thinking }}<call>{% else %}{{ m.content }}{% endif %}{% endfor %}")
	call := []any{json.RawMessage(`{"id":"c","type":"function","function":{"name":"now","arguments":{}}}`)}
	for _, c := range []struct {
		turn api.Message
		want string
	}{
		{api.Message{Content: "Let me see.", Reasoning: "Two and three.", ToolCalls: call}, "[user]a[assistant]Two and three.<call>"},
		{api.Message{Content: "Let me see.", ToolCalls: call}, "[user]a[assistant]Let me see.<call>"},
		{api.Message{Reasoning: "Two and three.", ToolCalls: call}, "[user]a[assistant]Two and three.<call>"},
		{api.Message{Content: "b", Reasoning: "Two and three."}, "[user]a[assistant]b"},
	} {
		c.turn.Role = "assistant"
		prompt, err := render(tok, tokenizer.Chat{Messages: []api.Message{{Role: "user", Content: "a"}, c.turn}})
		require.NoError(t, err)
		require.Equal(t, c.want, prompt.Text)
	}
}
