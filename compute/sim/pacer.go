package sim

import "time"

// mostDebt bounds what one long sleep takes off the next steps.
const mostDebt = 2 * time.Millisecond

// pacer makes steps last as long as they are told to. A sleep ends late, by 0.1
// ms as a rule; what it was late is taken off the next steps, so that many short
// steps take their time together without a core that spins.
type pacer struct {
	now   func() time.Time
	sleep func(time.Duration)
	debt  time.Duration
}

// wait ends about d after begin.
func (p *pacer) wait(begin time.Time, d time.Duration) {
	due := begin.Add(d - p.debt)
	if left := due.Sub(p.now()); left > 0 {
		p.sleep(left)
	}
	p.debt = min(max(p.now().Sub(due), 0), mostDebt)
}
