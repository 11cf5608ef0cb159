// Command render renders the cases that compare.py writes, and prints the outcome of each.
//
// It reads a JSON list of templates from standard input: {"source", "tokens", "cases": [{"variables", "messages",
// "options"}]}, and writes a list with two outcomes for each case: "engine", of the template over the variables, and
// "chat", of the messages as a server gets them. An outcome is {"text"}, {"raised"} or {"error"}; "chat" is null where no
// request can have such messages.
//
// It must not know what transformers makes of the cases.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tokenizer/jinja"
)

var (
	clock  = time.Date(2025, 2, 3, 4, 5, 6, 0, time.UTC) // the one of compare.py
	limits = jinja.Limits{Steps: 10_000_000, Output: 32 << 20, Memory: 64 << 20, Allocated: 2 << 30}
)

type template struct {
	Source string            `json:"source"`
	Tokens map[string]string `json:"tokens"`
	Cases  []testCase        `json:"cases"`
}

type testCase struct {
	Variables json.RawMessage            `json:"variables"`
	Messages  json.RawMessage            `json:"messages"`
	Options   map[string]json.RawMessage `json:"options"`
}

type outcome struct {
	Text   *string `json:"text,omitempty"`
	Raised string  `json:"raised,omitempty"`
	Error  string  `json:"error,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("expected one argument: the tokenizer.json that the templates are put beside")
	}
	var templates []template
	if err := json.NewDecoder(os.Stdin).Decode(&templates); err != nil {
		return err
	}
	all := make([][]map[string]*outcome, len(templates))
	for i := range templates {
		results, err := templates[i].render(os.Args[1])
		if err != nil {
			return err
		}
		all[i] = results
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}

func (t *template) render(vocabulary string) ([]map[string]*outcome, error) {
	compiled, compileErr := jinja.Compile(t.Source)
	tok, err := t.load(vocabulary)
	if err != nil && compileErr == nil {
		return nil, err
	}
	results := make([]map[string]*outcome, len(t.Cases))
	for i := range t.Cases {
		c := &t.Cases[i]
		if compileErr != nil {
			results[i] = map[string]*outcome{"engine": made("", compileErr), "chat": nil}
			continue
		}
		results[i] = map[string]*outcome{"engine": made(compiled.Render(c.Variables, clock, limits)), "chat": nil}
		if chat, ok := c.chat(); ok {
			results[i]["chat"] = made(tok.RenderChat(chat))
		}
	}
	if tok != nil {
		return results, tok.Close()
	}
	return results, nil
}

// load makes a model's folder with the template.
func (t *template) load(vocabulary string) (*tokenizer.Tokenizer, error) {
	dir, err := os.MkdirTemp("", "render")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	data, err := os.ReadFile(vocabulary)
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(t.Tokens)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{"tokenizer.json": data, "tokenizer_config.json": config,
		"chat_template.jinja": []byte(t.Source)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return tokenizer.Load(dir)
}

func made(text string, err error) *outcome {
	var raised *jinja.RaisedError
	switch {
	case errors.As(err, &raised):
		return &outcome{Raised: raised.Message}
	case err != nil:
		return &outcome{Error: err.Error()}
	}
	return &outcome{Text: &text}
}

// chat is the case as a server decodes it, if it can be a request.
func (c *testCase) chat() (tokenizer.Chat, bool) {
	body := map[string]any{"messages": c.Messages}
	args := map[string]json.RawMessage{}
	for name, value := range c.Options {
		switch name {
		case "tools", "add_generation_prompt", "continue_final_message":
			body[name] = value
		default:
			args[name] = value
		}
	}
	if len(args) > 0 {
		body["chat_template_kwargs"] = args
	}
	if _, ok := body["add_generation_prompt"]; !ok {
		body["add_generation_prompt"] = false
	}
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	if enc.Encode(body) != nil {
		return tokenizer.Chat{}, false
	}
	decoded, err := openai.DecodeChat(text.Bytes(), []api.Model{{ID: "m", WeightFacts: api.WeightFacts{ContextLength: 1 << 20},
		TextFacts: api.TextFacts{Format: "hermes"}}}, clock)
	if err != nil {
		return tokenizer.Chat{}, false
	}
	r := decoded.Requests[0]
	return tokenizer.Chat{
		Messages: r.Messages, Tools: r.Tools, Args: r.TemplateArgs, Clock: clock,
		AddGenerationPrompt: !r.NoGenerationPrompt && !r.ContinueFinal, ContinueFinal: r.ContinueFinal,
	}, true
}
