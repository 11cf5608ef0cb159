package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/tokenizer/jinja"
)

// Names of templates, as transformers has them.
const (
	defaultTemplate = "default"
	toolTemplate    = "tool_use" // of chats with tools
)

// template is a chat template and the forms of content that it reads.
type template struct {
	source   string
	compiled *jinja.Template
	forms    map[string]contentForm // by role
}

// setTemplates compiles the templates that chats use, and finds out which content they read. Others, such as "rag",
// are ignored: no request can choose them.
func (t *Tokenizer) setTemplates(sources map[string]string) error {
	t.source.templates, t.templates = sources, map[string]*template{}
	for _, name := range []string{defaultTemplate, toolTemplate} {
		source, ok := sources[name]
		if !ok {
			continue
		}
		compiled, err := jinja.Compile(source)
		if err != nil {
			return err
		}
		tpl := &template{source: source, compiled: compiled}
		t.findForms(tpl)
		t.templates[name] = tpl
	}
	return nil
}

// template returns the template of a chat with or without tools. Errors are ErrNoTemplate.
func (t *Tokenizer) template(tools bool) (*template, error) {
	if tpl := t.templates[toolTemplate]; tools && tpl != nil {
		return tpl, nil
	}
	if tpl := t.templates[defaultTemplate]; tpl != nil {
		return tpl, nil
	}
	if len(t.source.templates) > 0 {
		return nil, fmt.Errorf("%w (found templates named %q, expected one named %q)", ErrNoTemplate,
			slices.Sorted(maps.Keys(t.source.templates)), defaultTemplate)
	}
	return nil, ErrNoTemplate
}

// HasChatTemplate says whether RenderChat can work.
func (t *Tokenizer) HasChatTemplate() bool { return len(t.templates) > 0 }

// Template returns the source of the template of chats without tools, "" without one.
func (t *Tokenizer) Template() string { return t.source.templates[defaultTemplate] }

// ToolTemplate returns the source of the template of chats with tools, "" without one.
func (t *Tokenizer) ToolTemplate() string {
	tpl, err := t.template(true)
	if err != nil {
		return ""
	}
	return tpl.source
}

// KnowsTools reports whether the template of a chat with or without tools has a place for them.
func (t *Tokenizer) KnowsTools(tools bool) bool {
	tpl, err := t.template(tools)
	return err == nil && strings.Contains(tpl.source, "tool")
}

// loadTemplates reads chat_template.jinja and additional_chat_templates/NAME.jinja, and what tokenizer_config.json
// has beyond them: one template, or a list of named ones.
func (t *Tokenizer) loadTemplates(dir string, inConfig json.RawMessage) error {
	path := filepath.Join(dir, "tokenizer_config.json")
	sources, err := configTemplates(inConfig)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	named, err := filepath.Glob(filepath.Join(dir, "additional_chat_templates", "*.jinja"))
	if err != nil { // of the folder's own name
		return fmt.Errorf("%w: %s: %w", ErrFile, dir, err)
	}
	for _, file := range append(named, filepath.Join(dir, "chat_template.jinja")) {
		name := strings.TrimSuffix(filepath.Base(file), ".jinja")
		if name == "chat_template" {
			name = defaultTemplate
		}
		source, err := weights.ReadText(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrFile, err)
		}
		sources[name], path = string(source), file
	}
	if err := t.setTemplates(sources); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrFile, path, err)
	}
	return nil
}

// configTemplates reads a template, a list of named ones, or null.
func configTemplates(raw json.RawMessage) (map[string]string, error) {
	sources := map[string]string{}
	if len(raw) == 0 || string(raw) == "null" {
		return sources, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		sources[defaultTemplate] = one
		return sources, nil
	}
	var named []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, errors.New("chat_template is neither a string nor a list of objects with name and template")
	}
	for _, n := range named {
		sources[n.Name] = n.Template
	}
	return sources, nil
}
