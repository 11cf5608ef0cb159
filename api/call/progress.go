package call

import "github.com/millrace/millrace/api"

// Progress is the sum of the events of a call so far.
type Progress struct {
	Seq     uint64    // of the last event
	Usage   api.Usage // of the requests that have ended
	Ended   []bool    // by request
	Pins    []api.Pin // by request; from its last event with a pin
	Choices []ChoiceProgress
}

// ChoiceProgress is the sum of the events of one choice.
type ChoiceProgress struct {
	Tokens []int32
	Events int // with the event of the echo
	Finish api.Finish
}

// Progress returns the sum of the events of a call.
func (c *Call) Progress(events []api.Event) *Progress {
	p := &Progress{Ended: make([]bool, len(c.Requests)), Pins: make([]api.Pin, len(c.Requests)),
		Choices: make([]ChoiceProgress, c.Choices())}
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

// started reports whether choices [first, first+n) have a token or an end. An echo does not count.
func (p *Progress) started(first, n int) bool {
	for _, ch := range p.Choices[first : first+n] {
		if len(ch.Tokens) > 0 || ch.Finish != api.FinishNone {
			return true
		}
	}
	return false
}
