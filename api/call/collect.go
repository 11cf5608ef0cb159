package call

import (
	"context"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
)

// Result is the whole answer to a call.
type Result struct {
	Choices []Choice
	Pins    []api.Pin // by request; the last one with a numerics digest, empty without one
	Usage   api.Usage
	First   time.Time // when the first token arrived; zero: there is none
	Ended   int64     // api.Event.Ended of the last event
	Dropped int       // messages that left a chat, see api.Extra
	// Reasoning is the number of tokens of reasoning, with Reasons set. Usage has them, too.
	Reasoning int
	Reasons   bool // the answer may have reasoning
}

// Choice is the whole answer of one choice.
type Choice struct {
	Text      string // without reasoning and calls
	Reasoning string
	Calls     []ToolCall
	Tokens    []int32
	Logprobs  []api.TokenLogprob
	OfText    []api.TokenLogprob // of Logprobs, those of the tokens of Text
	Vector    []float32
	Prompt    []api.TokenLogprob // of all tokens of the prompt
	Answers   []api.AnswerLogprobs
	Finish    api.Finish
	Stop      string // the stop string that ended it; "": none
}

// ToolCall is a call of a tool. The last one of a choice may be incomplete if its Finish is api.FinishLength.
type ToolCall struct {
	ID, Name  string
	Arguments string // JSON
}

// Collect reads the events of a call to the end and returns the whole answer. An error is an
// *api.Error, or the error of ctx.
func Collect(ctx context.Context, c *Call, events EventStream) (*Result, error) {
	r := &collector{perRequest: c.N, parser: NewParser(c), texts: make([]builders, c.Choices()),
		result: Result{Choices: make([]Choice, c.Choices()), Pins: make([]api.Pin, len(c.Requests))}}
	for {
		ev, err := Next(ctx, events)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			return nil, errNoEnd()
		}
		if err := api.Failure(ev); err != nil {
			return nil, err
		}
		switch {
		case ev.Restart:
			r.result.First = time.Time{}
		case r.result.First.IsZero() && len(ev.Tokens) > 0:
			r.result.First = time.Now()
		}
		if r.add(ev); ev.Done {
			return r.end(&ev), nil
		}
	}
}

// collector adds up the events of a call.
type collector struct {
	perRequest int // choices of a request
	parser     *Parser
	texts      []builders
	result     Result
}

// builders are the texts of a choice so far.
type builders struct {
	text, reasoning strings.Builder
	arguments       []*strings.Builder // by call
	logprobs        TextLogprobs
}

func (r *collector) add(ev api.Event) {
	if ev.Pin != nil && ev.Pin.Numerics != "" {
		r.result.Pins[ev.Choice/r.perRequest] = *ev.Pin
	}
	deltas, finish := []tools.Delta(nil), ev.Finish
	if r.parser != nil {
		deltas, finish = r.parser.Event(&ev)
	}
	if ev.Restart {
		first := ev.Choice - ev.Choice%r.perRequest
		clear(r.texts[first : first+r.perRequest])
		clear(r.result.Choices[first : first+r.perRequest])
		return
	}
	ch := &r.result.Choices[ev.Choice]
	if r.parser == nil && ev.Text != "" {
		deltas = []tools.Delta{{Kind: tools.Content, Text: ev.Text}}
	}
	if len(ev.Logprobs) > 0 {
		ch.OfText = append(ch.OfText, r.texts[ev.Choice].logprobs.Add(deltas, ev.Logprobs)...)
	}
	for i := range deltas {
		r.texts[ev.Choice].add(ch, &deltas[i])
	}
	ch.Tokens = append(ch.Tokens, ev.Tokens...)
	ch.Logprobs = append(ch.Logprobs, ev.Logprobs...)
	if x := ev.Extra; x != nil { // the two may come on different events
		if x.Vector != nil {
			ch.Vector = x.Vector
		}
		if x.Prompt != nil {
			ch.Prompt = x.Prompt
		}
		if x.Answers != nil {
			ch.Answers = x.Answers
		}
		r.result.Dropped = max(r.result.Dropped, x.Dropped)
	}
	if finish != api.FinishNone {
		ch.Finish, ch.Stop = finish, ev.Stop
	}
}

// add adds a delta to the texts of choice ch.
func (b *builders) add(ch *Choice, d *tools.Delta) {
	switch d.Kind {
	case tools.Content:
		b.text.WriteString(d.Text)
	case tools.Reasoning:
		b.reasoning.WriteString(d.Text)
	case tools.Begin:
		ch.Calls = append(ch.Calls, ToolCall{ID: d.ID, Name: d.Name})
		b.arguments = append(b.arguments, &strings.Builder{})
	case tools.Arguments:
		b.arguments[d.Call].WriteString(d.Text)
	case tools.End:
	}
}

func (r *collector) end(last *api.Event) *Result {
	r.result.Usage, r.result.Ended = *last.Usage, last.Ended
	r.result.Reasoning, r.result.Reasons = r.parser.Reasoning()
	for i := range r.texts {
		ch := &r.result.Choices[i]
		ch.Text, ch.Reasoning = r.texts[i].text.String(), r.texts[i].reasoning.String()
		for k, arguments := range r.texts[i].arguments {
			ch.Calls[k].Arguments = arguments.String()
		}
		if first := i - i%r.perRequest; ch.Prompt == nil { // choices share their prompt
			ch.Prompt = r.result.Choices[first].Prompt
		}
	}
	return &r.result
}
