package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/tokenizer/jinja"
)

const (
	listOnly = "{% for m in messages %}<{{ m.role }}>{% for part in m['content'] %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
	macro    = "{% macro show(c) %}{% for p in c %}{{ p['text'] }}{% endfor %}{% endmacro %}{% for m in messages %}<{{ m.role }}>{{ show(m.content) }}{% endfor %}"
	indexed  = "{% for m in messages %}<{{ m.role }}>{{ m.content[0]['text'] }}{% endfor %}"
	mapped   = "{% for m in messages %}<{{ m.role }}>{{ m.content | map(attribute='text') | join('') }}{% endfor %}"
	either   = "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
	textOnly = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
	dumped   = "{% for m in messages %}<{{ m.role }}>{{ m.content | tojson }}{% endfor %}"
	// System messages are text and the others lists, which must begin with the user.
	mixed = "{% if messages[0].role == 'system' %}<system>{{ messages[0].content | trim }}{% set messages = messages[1:] %}{% endif %}" +
		"{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}" +
		"<{{ m.role }}>{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
)

func TestContentHasTheFormThatTheTemplateReads(t *testing.T) {
	text := []api.Message{{Role: "user", Content: "one"}, {Role: "assistant", Content: "two"}, {Role: "user", Content: "three"}}
	parts := []api.Message{{Role: "user", Content: "one\n2\nand more", Parts: []int{0, 4}}}
	system := append([]api.Message{{Role: "system", Content: "be\nkind", Parts: []int{0, 3}}}, text...)
	const all = "<user>one<assistant>two<user>three"
	for _, c := range []struct {
		template string
		messages []api.Message
		want     string
	}{
		{listOnly, text, all},
		{macro, text, all},
		{indexed, text, all},
		{mapped, text, all},
		{either, text, all},
		{textOnly, text, all},
		{dumped, text, `<user>"one"<assistant>"two"<user>"three"`},
		{mixed, text, all},
		{mixed, system, "<system>be\nkind" + all},
		{listOnly, parts, "<user>one2\nand more"},
		{either, parts, "<user>[one][2\nand more]"},
		{textOnly, parts, "<user>one\n2\nand more"},
		{dumped, parts, `<user>"one\n2\nand more"`},
	} {
		rendered, err := withTemplate(t, c.template, nil).RenderChat(Chat{Messages: c.messages})
		require.NoError(t, err, c.template)
		require.Equal(t, c.want, rendered, c.template)
	}
}

func TestAnOpenMessageOfPartsEndsWithItsLastPart(t *testing.T) {
	messages := []api.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "one\ntwo ", Parts: []int{0, 4}}}
	for template, want := range map[string]string{
		strings.Replace(listOnly, "{% endfor %}{% endfor %}", "{% endfor %}</>{% endfor %}", 1): "<user>a</><assistant>onetwo ",
		textOnly + "</>": "<user>a<assistant>one\ntwo ",
	} {
		text, err := withTemplate(t, template, nil).RenderChat(Chat{Messages: messages, ContinueFinal: true})
		require.NoError(t, err)
		require.Equal(t, want, text)
	}
}

func TestOffsetsOfAnotherContentAreIgnored(t *testing.T) {
	for _, parts := range [][]int{{-1}, {0, 9}, {3, 1}, {2, 2}, {9}} {
		m := api.Message{Content: "abcd", Parts: parts}
		require.Nil(t, m.TextParts(), parts)
	}
	m := api.Message{Content: "a\n\nb", Parts: []int{0, 2, 3}}
	require.Equal(t, []string{"a", "", "b"}, m.TextParts())
}

func TestAChatWithToolsHasTheTemplateNamedToolUse(t *testing.T) {
	const list = `{"chat_template":[{"name":"default","template":"plain"},{"name":"tool_use","template":"tools {{ tools | length }}"},{"name":"rag","template":"{% bad %}"}]}`
	folder := func(files map[string]string) string {
		dir := t.TempDir()
		vocabulary, err := filepath.Abs("../models/tiny-chat/tokenizer.json")
		require.NoError(t, err)
		require.NoError(t, os.Symlink(vocabulary, filepath.Join(dir, "tokenizer.json")))
		require.NoError(t, os.Mkdir(filepath.Join(dir, "additional_chat_templates"), 0o700))
		for name, text := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		return dir
	}
	user := []api.Message{{Role: "user", Content: "a"}}
	tool := []any{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}
	for name, files := range map[string]map[string]string{
		"list":  {"tokenizer_config.json": list},
		"files": {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools {{ tools | length }}"},
		"both": {"tokenizer_config.json": list, "additional_chat_templates/tool_use.jinja": "tools {{ tools | length }}",
			"chat_template.jinja": "plain"},
	} {
		t.Run(name, func(t *testing.T) {
			tok, err := Load(folder(files))
			require.NoError(t, err)
			text, err := tok.RenderChat(Chat{Messages: user})
			require.NoError(t, err)
			require.Equal(t, "plain", text)
			text, err = tok.RenderChat(Chat{Messages: user, Tools: []any{}})
			require.NoError(t, err)
			require.Equal(t, "plain", text, "no tools")
			text, err = tok.RenderChat(Chat{Messages: user, Tools: tool})
			require.NoError(t, err)
			require.Equal(t, "tools 1", text)
			require.Equal(t, "plain", tok.Template())
			require.Equal(t, "tools {{ tools | length }}", tok.ToolTemplate(), "shows the format of calls")
			require.True(t, tok.KnowsTools(true))
			require.False(t, tok.KnowsTools(false))
			require.NoError(t, tok.Close())
		})
	}
	tok,
		err := Load(folder(map[string]string{"tokenizer_config.json": `{"chat_template":[{"name":"rag","template":"r"},{"name":"tool_use","template":"t"}]}`}))
	require.NoError(t, err, "a list without a default")
	text, err := tok.RenderChat(Chat{Messages: user, Tools: tool})
	require.NoError(t, err)
	require.Equal(t, "t", text)
	_, err = tok.RenderChat(Chat{Messages: user})
	require.ErrorIs(t, err, ErrNoTemplate)
	require.ErrorContains(t, err, `found templates named ["rag" "tool_use"], expected one named "default"`)
	require.NoError(t, tok.Close())
}

func TestAGGUFFileHasNamedTemplates(t *testing.T) {
	v := ggufVocabulary{metadata: weights.Metadata{
		"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b", "tokenizer.chat_templates": []any{"tool_use"},
		"tokenizer.chat_templates.x": "c", "tokenizer.ggml.model": "gpt2",
	}}
	require.Equal(t, map[string]string{"default": "a", "tool_use": "b"}, v.templates())
}

func TestATemplateGetsReasoningAsThinkingToo(t *testing.T) {
	messages := []api.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "b", Reasoning: "Two and three."}}
	text,
		err := withTemplate(t,
		"{% for m in messages %}{% if m.thinking %}<plan>{{ m.thinking }}</plan>{% endif %}{{ m.reasoning_content }}{% endfor %}", nil).
		RenderChat(Chat{Messages: messages})
	require.NoError(t, err)
	require.Equal(t, "<plan>Two and three.</plan>Two and three.", text)
}

func TestArgumentsKeepTheirKeysAndNumbers(t *testing.T) {
	args := map[string]any{"documents": json.RawMessage(`[{"title":"t","text":"<x>","id":12345678901234567,"z":1.0,"a":1e-7}]`)}
	text, err := withTemplate(t, "{{ documents[0] | tojson }}|{% for k, v in documents[0].items() %}{{ k }}={{ v }};{% endfor %}", nil).
		RenderChat(Chat{Messages: []api.Message{{Role: "user", Content: "a"}}, Args: args})
	require.NoError(t, err)
	require.Equal(t, `{"title": "t", "text": "<x>", "id": 12345678901234567, "z": 1.0, "a": 1e-07}`+
		"|title=t;text=<x>;id=12345678901234567;z=1.0;a=1e-07;", text)
}

// TestATemplateThatNeverEndsIsNotTriedForLong loads one whose trials all exceed their limits.
func TestATemplateThatNeverEndsIsNotTriedForLong(t *testing.T) {
	tok := withTemplate(t, "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", nil)
	_, err := tok.RenderChat(Chat{Messages: []api.Message{{Role: "user", Content: "a"}}})
	require.ErrorIs(t, err, jinja.ErrLimit)
}
