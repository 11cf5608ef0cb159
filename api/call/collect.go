package call

import (
	"context"
	"strings"

	"github.com/millrace/millrace/api"
)

// Result is the whole answer to a call.
type Result struct {
	Choices []Choice
	Pins    []api.Pin // by request; the last one with a numerics digest, empty without one
	Usage   api.Usage
}

// Choice is the whole answer of one choice.
type Choice struct {
	Text     string
	Tokens   []int32
	Logprobs []api.TokenLogprob
	Finish   api.Finish
	Stop     string // the stop string that ended it; "": none
}

// Collect reads the events of a call to the end and returns the whole answer. An error is an
// *api.Error, or the error of ctx.
func Collect(ctx context.Context, c *Call, events <-chan api.Event) (*Result, error) {
	r := &collector{perRequest: c.N, texts: make([]strings.Builder, c.Choices()),
		result: Result{Choices: make([]Choice, c.Choices()), Pins: make([]api.Pin, len(c.Requests))}}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case ev, ok := <-events:
			if !ok {
				return nil, errNoEnd()
			}
			if err := api.Failure(ev); err != nil {
				return nil, err
			}
			if r.add(ev); ev.Done {
				return r.end(*ev.Usage), nil
			}
		}
	}
}

// collector adds up the events of a call.
type collector struct {
	perRequest int // choices of a request
	texts      []strings.Builder
	result     Result
}

func (r *collector) add(ev api.Event) {
	if ev.Pin != nil && ev.Pin.Numerics != "" {
		r.result.Pins[ev.Choice/r.perRequest] = *ev.Pin
	}
	if ev.Restart {
		first := ev.Choice - ev.Choice%r.perRequest
		clear(r.texts[first : first+r.perRequest])
		clear(r.result.Choices[first : first+r.perRequest])
		return
	}
	r.texts[ev.Choice].WriteString(ev.Text)
	ch := &r.result.Choices[ev.Choice]
	ch.Tokens = append(ch.Tokens, ev.Tokens...)
	ch.Logprobs = append(ch.Logprobs, ev.Logprobs...)
	if ev.Finish != api.FinishNone {
		ch.Finish, ch.Stop = ev.Finish, ev.Stop
	}
}

func (r *collector) end(u api.Usage) *Result {
	r.result.Usage = u
	for i := range r.texts {
		r.result.Choices[i].Text = r.texts[i].String()
	}
	return &r.result
}
