package call

import (
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
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
		return c.guide(r, m, format, list, t)
	}
	return nil
}

// guide sets the grammar of calls.
func (c *Call) guide(r *api.Request, m *api.Model, format tools.Format, list []tools.Tool, t ToolChoice) error {
	if !t.Required {
		return nil
	}
	if r.Grammar != nil {
		return api.Invalid(t.Param, "%s: found %s together with %s, expected one of them", t.Param, t.Found, r.Grammar.Param)
	}
	g, _ := format.Guide(list, tools.Demand{Required: true, Single: t.Single}, func(text string) (int32, bool) {
		id, ok := m.Special[text]
		return id, ok
	})
	r.Grammar = &grammar.Spec{Kind: grammar.Lark, Source: g.Source, Param: "tools"} // their schemas are the part that may be wrong
	r.OwnReasoning, c.Parsing.Held = true, false
	return nil
}

// allowed returns the tools with the given names, all for nil.
func allowed(list []tools.Tool, names []string) []tools.Tool {
	if names == nil {
		return list
	}
	return slices.DeleteFunc(list, func(t tools.Tool) bool { return !slices.Contains(names, t.Name) })
}
