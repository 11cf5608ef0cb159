package sim

import "time"

// mostDebt is the longest time that one late sleep takes off the next steps.
const mostDebt = 2 * time.Millisecond

// pacer makes steps last for a given time. A sleep usually ends 0.1 ms late. The pacer takes that
// delay off the next steps, so that many short steps take the right time together and no core
// spins.
type pacer struct {
	now   func() time.Time
	sleep func(time.Duration)
	debt  time.Duration
}

// due is when a step ends that begins now and lasts d, or begins when the one before ends, if that is later.
func (p *pacer) due(now, before time.Time, d time.Duration) time.Time {
	if before.After(now) {
		return before.Add(d)
	}
	return now.Add(d - p.debt)
}

// wait ends about when a step is due.
func (p *pacer) wait(due time.Time) {
	if left := due.Sub(p.now()); left > 0 {
		p.sleep(left)
	}
	p.debt = min(max(p.now().Sub(due), 0), mostDebt)
}
