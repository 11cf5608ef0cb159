package call

import (
	"encoding/json"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
)

// Parsing is how the text of a chat's answer is split into reasoning, content and tool calls. It belongs to
// the call, so that every gateway splits the answer in the same way. The zero value leaves the text as it is.
type Parsing struct {
	Format  string   // of the text, as package tools names it; "": the text is content
	Calls   bool     // the text may have calls
	Allowed []string // names of the tools that may be called; nil: all
	Single  bool     // at most one call
	Held    bool     // no grammar guarantees calls
}

// Parser splits the events of a call. A nil Parser leaves them as they are.
type Parser struct {
	call      *Call
	format    tools.Format
	tools     []tools.Tool
	choices   []*tools.Parser
	reasons   []bool // by choice: the answer begins inside reasoning
	reasoning int    // tokens of reasoning so far
}

// NewParser returns the parser of a call's events, nil for a call whose text is content.
func NewParser(c *Call) *Parser {
	f, err := tools.Lookup(c.Parsing.Format)
	if err != nil || f.Plain() { // a name of a later version: its text stays as it is
		return nil
	}
	p := &Parser{call: c, format: f, choices: make([]*tools.Parser, c.Choices()), reasons: make([]bool, c.Choices())}
	if c.Parsing.Calls {
		p.tools = allowed(Tools(c.Requests[0].Tools), c.Parsing.Allowed)
	}
	return p
}

// Reasoning reports whether the answer may have reasoning, and returns the number of its tokens so far.
func (p *Parser) Reasoning() (tokens int, may bool) {
	if p == nil {
		return 0, false
	}
	return p.reasoning, p.format.Thinks()
}

// Event returns the deltas of an event, and the finish reason that its client gets.
func (p *Parser) Event(ev *api.Event) (deltas []tools.Delta, finish api.Finish) {
	if ev.Restart {
		first := ev.Choice - ev.Choice%p.call.N
		clear(p.choices[first : first+p.call.N])
		return nil, api.FinishNone
	}
	one := p.choice(ev)
	before := one.Reasons()
	if ev.Text != "" {
		deltas = one.Push(ev.Text)
	}
	if before || one.Reasons() {
		p.reasoning += len(ev.Tokens)
	}
	if ev.Finish == api.FinishNone {
		return deltas, api.FinishNone
	}
	deltas = append(deltas, one.Close()...)
	if ev.Finish == api.FinishStop && one.Calls() > 0 {
		return deltas, api.FinishToolCalls
	}
	return deltas, ev.Finish
}

// Deltas returns the deltas of an event, also where p is nil: the text is content then.
func (p *Parser) Deltas(ev *api.Event) (deltas []tools.Delta, finish api.Finish) {
	if p != nil {
		return p.Event(ev)
	}
	if ev.Text != "" {
		deltas = []tools.Delta{{Kind: tools.Content, Text: ev.Text}}
	}
	return deltas, ev.Finish
}

// choice returns the parser of an event's choice.
func (p *Parser) choice(ev *api.Event) *tools.Parser {
	i := ev.Choice
	if ev.Reasons {
		p.reasons[i] = true
	}
	if p.choices[i] == nil {
		p.choices[i] = tools.NewParser(tools.Options{
			Format: p.format, Tools: p.tools, Single: p.call.Parsing.Single, Held: p.call.Parsing.Held,
			Thinking: p.reasons[i], ID: p.call.ID, Choice: i,
		})
	}
	return p.choices[i]
}

// Tools returns the tools of a request, which are JSON in OpenAI's form.
func Tools(list []any) []tools.Tool {
	all := make([]tools.Tool, 0, len(list))
	for _, v := range list {
		raw, err := json.Marshal(v)
		if err != nil {
			continue
		}
		var t struct {
			Function struct {
				Name       string          `json:"name"`
				Parameters json.RawMessage `json:"parameters"`
				Strict     bool            `json:"strict"`
			} `json:"function"`
		}
		if json.Unmarshal(raw, &t) == nil {
			if string(t.Function.Parameters) == "null" {
				t.Function.Parameters = nil
			}
			all = append(all, tools.Tool{Name: t.Function.Name, Parameters: t.Function.Parameters, Strict: t.Function.Strict})
		}
	}
	return all
}
