package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tokenizer/jinja"
)

type templateCase struct {
	Name     string
	Messages []json.RawMessage
	Given    []json.RawMessage // what transformers handed to the template; nil: Messages
	Options  map[string]json.RawMessage
	Text     *string
	Raised   *string
	Error    *string
}

type templateFile struct {
	Tokens map[string]string
	Cases  []templateCase
}

// fixtureClock is the time at which transformers rendered the fixtures.
var fixtureClock = time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC)

// withTemplate is the demo tokenizer with another template and other special tokens.
func withTemplate(t *testing.T, template string, tokens map[string]string) *Tokenizer {
	t.Helper()
	dir := t.TempDir()
	vocabulary, err := filepath.Abs("../models/tiny-chat/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(vocabulary, filepath.Join(dir, "tokenizer.json")))
	config, err := json.Marshal(tokens)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), config, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o600))
	tok, err := Load(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, tok.Close()) })
	return tok
}

func TestTemplatesRenderAsInTransformers(t *testing.T) {
	paths, err := filepath.Glob("../testdata/templates/*.jinja")
	require.NoError(t, err)
	require.Len(t, paths, 14)
	chats := 0
	for _, path := range paths {
		source, err := os.ReadFile(path)
		require.NoError(t, err)
		var file templateFile
		data, err := os.ReadFile(strings.TrimSuffix(path, ".jinja") + ".json")
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &file))
		tok := withTemplate(t, string(source), file.Tokens)
		for _, c := range file.Cases {
			options, err := json.Marshal(c.Options)
			require.NoError(t, err)
			name := fmt.Sprintf("%s/%s/%.60s", filepath.Base(path), c.Name, options)
			if chat, ok := c.chat(t); ok {
				chats++
				t.Run(name, func(t *testing.T) {
					text, err := tok.RenderChat(chat)
					c.check(t, text, err)
				})
			}
			if _, ok := c.Options["continue_final_message"]; !ok {
				t.Run(name+"/variables", func(t *testing.T) {
					text, err := tok.templates[defaultTemplate].compiled.Render(c.variables(t, file.Tokens), fixtureClock, limits)
					c.check(t, text, err)
				})
			}
		}
	}
	require.Greater(t, chats, 700, "chats that api.Message can hold")
}

func TestAHostileTemplateIsRefused(t *testing.T) {
	message := []api.Message{{Role: "user", Content: "a"}}
	for _, source := range []string{
		"{% set ns = namespace(s='xx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
		"{% set ns = namespace(s=[1]) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
		"{{ range(100000)|join(messages[0].content * 1000000) }}",
	} {
		_, err := withTemplate(t, source, nil).RenderChat(Chat{Messages: message})
		require.ErrorIs(t, err, jinja.ErrLimit, source)
	}
}

func TestALongChatFitsTheLimits(t *testing.T) {
	tok := withTemplate(t, "{% set ns = namespace(all='') %}{% for m in messages %}{% set c = m.content|trim %}"+
		"{% set ns.all = ns.all ~ '<' ~ m.role ~ '>' ~ c %}{% endfor %}{{ ns.all }}", nil)
	chat := Chat{Messages: []api.Message{{Role: "user", Content: strings.Repeat("word ", 400_000)}}} // 2 MB
	for range 40 {
		chat.Messages = append(chat.Messages, api.Message{Role: "user", Content: "and more"})
	}
	text, err := tok.RenderChat(chat)
	require.NoError(t, err)
	require.Greater(t, len(text), 1_999_999)
}

func TestATemplateShowsTheClockOfTheRequestInUTC(t *testing.T) {
	tok := withTemplate(t, "{{ strftime_now('%Y-%m-%d %H:%M') }}", nil)
	message := []api.Message{{Role: "user", Content: "a"}}
	arrival := time.Date(2024, 12, 31, 23, 59, 0, 0, time.UTC)
	for _, zone := range []*time.Location{time.UTC, time.FixedZone("east", 14*3600), time.FixedZone("west", -12*3600)} {
		text, err := tok.RenderChat(Chat{Messages: message, Clock: arrival.In(zone)})
		require.NoError(t, err)
		require.Equal(t, "2024-12-31 23:59", text, zone)
	}
	text, err := tok.RenderChat(Chat{Messages: message})
	require.NoError(t, err)
	now, err := time.Parse("2006-01-02 15:04", text)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), now, time.Hour, "without a clock: now")
}

func (c *templateCase) check(t *testing.T, text string, err error) {
	t.Helper()
	var raised *jinja.RaisedError
	switch {
	case c.Text != nil:
		require.NoError(t, err)
		require.Equal(t, *c.Text, text)
	case c.Raised != nil:
		require.ErrorAs(t, err, &raised)
		require.Equal(t, *c.Raised, raised.Message)
	default:
		require.ErrorIs(t, err, jinja.ErrTemplate, "transformers: %s; here: %q", *c.Error, text)
	}
}

// chat is the case as a request has it, if its messages are such.
func (c *templateCase) chat(t *testing.T) (Chat, bool) {
	t.Helper()
	chat := Chat{Messages: make([]api.Message, len(c.Messages)), Args: map[string]any{}, Clock: fixtureClock}
	for i, raw := range c.Messages {
		if !decodeMessage(raw, &chat.Messages[i]) {
			return Chat{}, false
		}
		var calls struct {
			ToolCalls []json.RawMessage `json:"tool_calls"`
		}
		require.NoError(t, json.Unmarshal(raw, &calls))
		for j, call := range calls.ToolCalls {
			chat.Messages[i].ToolCalls[j] = call
		}
	}
	for name, value := range c.Options {
		switch name {
		case "tools":
			var tools []json.RawMessage
			require.NoError(t, json.Unmarshal(value, &tools))
			for _, tool := range tools {
				chat.Tools = append(chat.Tools, tool)
			}
		case "add_generation_prompt":
			require.NoError(t, json.Unmarshal(value, &chat.AddGenerationPrompt))
		case "continue_final_message":
			require.NoError(t, json.Unmarshal(value, &chat.ContinueFinal))
		default:
			chat.Args[name] = value
		}
	}
	return chat, true
}

// decodeMessage reads a message with a text or with text parts. It returns false if the API has no such message.
func decodeMessage(raw json.RawMessage, m *api.Message) bool {
	strict := func(raw json.RawMessage, to any) bool {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		return d.Decode(to) == nil
	}
	if strict(raw, m) {
		return true
	}
	list := struct {
		*api.Message
		Content []textPart `json:"content"`
	}{Message: m}
	if !strict(raw, &list) {
		return false
	}
	m.Content = ""
	for i, part := range list.Content {
		if part.Type != "text" {
			return false
		}
		if i > 0 {
			m.Content += "\n"
		}
		m.Parts = append(m.Parts, len(m.Content))
		m.Content += part.Text
	}
	return true
}

// variables is the case as transformers hands it to the template.
func (c *templateCase) variables(t *testing.T, tokens map[string]string) []byte {
	t.Helper()
	messages := c.Messages
	if c.Given != nil {
		messages = c.Given
	}
	all := map[string]any{"messages": messages, "tools": nil, "documents": nil, "add_generation_prompt": false}
	for name, text := range tokens {
		all[name] = text
	}
	for name, value := range c.Options {
		all[name] = value
	}
	data, err := json.Marshal(all)
	require.NoError(t, err)
	return data
}
