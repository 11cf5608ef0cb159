package call

import "github.com/millrace/millrace/api"

// Progress is how far a call has come: what its events, in order, add up to.
type Progress struct {
	Seq     uint64    // of the last event
	Usage   api.Usage // of the requests that have ended
	Ended   []bool    // by request
	Pins    []api.Pin // by request; of the last event that said one
	Choices []ChoiceProgress
}

// ChoiceProgress is one choice's part of it.
type ChoiceProgress struct {
	Tokens []int32
	Events int // the echo's among them
	Finish api.Finish
}

// Progress adds up the events of a call.
func (c *Call) Progress(events []api.Event) *Progress {
	p := &Progress{Ended: make([]bool, len(c.Requests)), Pins: make([]api.Pin, len(c.Requests)), Choices: make([]ChoiceProgress, c.Choices())}
	for _, ev := range events {
		p.Seq = ev.Seq
		if ev.Choice < 0 || ev.Choice >= len(p.Choices) {
			continue
		}
		ch := &p.Choices[ev.Choice]
		ch.Events++
		ch.Tokens = append(ch.Tokens, ev.Tokens...)
		if ev.Finish != api.FinishNone {
			ch.Finish = ev.Finish
		}
		if ev.Pin != nil {
			p.Pins[ev.Choice/c.N] = *ev.Pin
		}
		if ev.Usage != nil {
			p.Usage, p.Ended[ev.Choice/c.N] = *ev.Usage, true
		}
	}
	return p
}

// started says whether any event of choices [first, first+n) is there, the echo's apart.
func (p *Progress) started(first, n int) bool {
	for _, ch := range p.Choices[first : first+n] {
		if len(ch.Tokens) > 0 || ch.Finish != api.FinishNone {
			return true
		}
	}
	return false
}
