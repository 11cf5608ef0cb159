package call

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/grammar/schema"
)

// ToolChoice is what a request wants of its tools.
type ToolChoice struct {
	Param    string   // the field of the request, for errors
	Found    string   // its value, for errors
	Required bool     // the answer has to be calls
	None     bool     // the answer has no calls; the model does not learn of the tools
	Allowed  []string // names of the tools that may be called; nil: all
	Single   bool     // at most one call
}

// Choose sets how the answer to a chat is generated and parsed. The tools are in its request. An error is
// an *api.Error.
func (c *Call) Choose(m *api.Model, t ToolChoice) error {
	r := c.Requests[0]
	if t.None {
		r.Tools = nil
	}
	format, err := tools.Lookup(m.Format)
	if err != nil {
		format = tools.Format{} // of a later version
	}
	list := allowed(Tools(r.Tools), t.Allowed)
	if t.Required && len(list) == 0 {
		return api.Invalid(t.Param, "%s: found %s without tools, expected tools", t.Param, t.Found)
	}
	if t.Required {
		format = format.ForCalls()
	}
	calls := len(list) > 0 && format.Calls()
	if !calls && !format.Thinks() {
		return nil
	}
	c.Parsing = Parsing{Format: format.String(), Calls: calls, Allowed: t.Allowed, Single: t.Single, Held: true}
	r.KeepTokens = format.Markers(calls)
	r.ReasoningEnd = format.ReasoningEnd()
	if calls {
		if err := c.guide(r, m, format, list, t); err != nil {
			return err
		}
	}
	if c.Parsing.Held && r.Grammar != nil && format.Thinks() { // the grammar of calls has a place for reasoning
		after := *r.Grammar
		after.Opening, after.After = format.ReasoningStart(), format.ReasoningEnd()
		r.Grammar = &after
	}
	return nil
}

// guide sets the grammar of calls, where the format has one. Then nothing has to be held back.
func (c *Call) guide(r *api.Request, m *api.Model, format tools.Format, list []tools.Tool, t ToolChoice) error {
	if r.Beams != nil && !t.Required {
		return nil // a beam search has no grammar
	}
	d := tools.Demand{Required: t.Required, Single: t.Single}
	if r.Grammar != nil {
		source, ok := schemaOf(r.Grammar)
		if t.Required || !ok {
			return api.Invalid(r.Grammar.Param,
				"%s: found together with tools, expected one of them, or a JSON schema with tool_choice \"auto\"",
				r.Grammar.Param)
		}
		text, err := rewritten(source)
		if err != nil {
			return api.GrammarError(r.Grammar, err)
		}
		d.Or = text
	}
	g, ok, err := format.Guide(list, d, func(text string) (int32, bool) {
		id, ok := m.Special[text]
		return id, ok
	})
	if err != nil {
		return toolError(r.Tools, err)
	}
	if !ok || !t.Required && len(g.Source) > grammar.MaxSource {
		return nil // calls are held instead
	}
	param := "tools" // their schemas are the part that may be wrong
	if r.Grammar != nil {
		param = r.Grammar.Param
	}
	r.Grammar = &grammar.Spec{Kind: grammar.Lark, Source: g.Source, Param: param, After: g.After, Optional: g.After != "", Repeat: g.Repeat}
	if g.After != "" {
		r.Grammar.SkipFrom, r.Grammar.SkipTo = format.Skip()
	}
	c.Parsing.Held = false
	return nil
}

// schemaOf returns the JSON schema of a grammar's answers. It returns false for a grammar in another language.
func schemaOf(s *grammar.Spec) (source string, ok bool) {
	switch s.Kind {
	case grammar.JSONSchema:
		return s.Source, true
	case grammar.JSONObject:
		return `{"type": "object"}`, true
	case grammar.Regex, grammar.Choice, grammar.Lark:
	}
	return "", false
}

// rewritten returns a schema as a grammar may contain it. The error is grammar.ErrSpec.
func rewritten(source string) (json.RawMessage, error) {
	text, err := schema.Rewrite(source, schema.Options{})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", grammar.ErrSpec, err)
	}
	return json.RawMessage(text), nil
}

// toolError names the field of the tool whose parameters have no grammar.
func toolError(all []any, err error) error {
	var e *tools.SchemaError
	if !errors.As(err, &e) {
		return err
	}
	i := slices.IndexFunc(Tools(all), func(t tools.Tool) bool { return t.Name == e.Tool })
	param := fmt.Sprintf("tools[%d].function.parameters", max(i, 0))
	between := ": "
	if e.Path != "" { // the reason begins with it
		between = "."
	}
	return api.Invalid(param, "%s%s%v (tool %q)", param, between, e.Err, e.Tool)
}

// allowed returns the tools with the given names, all for nil.
func allowed(list []tools.Tool, names []string) []tools.Tool {
	if names == nil {
		return list
	}
	return slices.DeleteFunc(list, func(t tools.Tool) bool { return !slices.Contains(names, t.Name) })
}
