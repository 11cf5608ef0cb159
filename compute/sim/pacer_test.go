package sim

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// late is a clock whose sleeps end late by a tenth of a millisecond.
type late struct {
	time  time.Time
	slept int
}

func (c *late) pacer() pacer {
	return pacer{
		now:   func() time.Time { return c.time },
		sleep: func(d time.Duration) { c.time = c.time.Add(d + 100*time.Microsecond); c.slept++ },
	}
}

func TestManyShortStepsTakeTheirTimeTogether(t *testing.T) {
	c := &late{time: time.Unix(1, 0)}
	p := c.pacer()
	begin := c.time
	const steps = 1000
	for range steps {
		at := c.time
		c.time = c.time.Add(3 * time.Microsecond) // its own work
		p.wait(p.due(at, at, 70*time.Microsecond))
	}
	require.InDelta(t, (steps * 70 * time.Microsecond).Seconds(), c.time.Sub(begin).Seconds(), 200e-6)
	require.Less(t, c.slept, steps, "a step that is late already does not sleep")
}

func TestOneLongSleepIsNotMadeUpForByAll(t *testing.T) {
	c := &late{time: time.Unix(1, 0)}
	p := c.pacer()
	at := c.time
	c.time = c.time.Add(time.Second) // the process stood still
	p.wait(p.due(at, at, time.Millisecond))
	at = c.time
	p.wait(p.due(at, at, 5*time.Millisecond))
	require.GreaterOrEqual(t, c.time.Sub(at), 5*time.Millisecond-mostDebt)
}
