package sched

import (
	"testing"
	"time"
)

// lineTest drives a WaitEstimator with a virtual clock, first in, first out.
type lineTest struct {
	*WaitEstimator
	now     Time
	entered []Time
}

func (l *lineTest) enter(n int) {
	for range n {
		l.Enter("", 1)
		l.entered = append(l.entered, l.now)
	}
}

// start lets n begin together after a time.
func (l *lineTest) start(after time.Duration, n int) {
	l.now += after
	for range n {
		l.Start("", l.entered[0], l.now)
		l.entered = l.entered[1:]
	}
}

func (l *lineTest) expect(t *testing.T, want Time, why string) {
	t.Helper()
	if got := l.Wait("", 1); got < want*94/100 || got > want*106/100 {
		t.Errorf("%s: a wait of %v with %d in the line, expected %v", why, got, l.Inside(), want)
	}
}

func TestAStandingLineGivesTheWait(t *testing.T) {
	l := &lineTest{WaitEstimator: NewWaitEstimator()}
	l.enter(100)
	l.expect(t, 0, "nothing is known")
	for range 40 {
		l.enter(1)
		l.start(200*time.Millisecond, 1)
	}
	l.expect(t, 100*200*time.Millisecond, "one each 200 ms")
	for range 100 {
		l.enter(4)
		l.start(200*time.Millisecond, 4)
	}
	l.expect(t, 100*50*time.Millisecond, "four each 200 ms")
	for l.Inside() > 0 {
		l.start(0, 1)
	}
	l.expect(t, 0, "nobody is in the line")
}

// A request that comes alone to a server with slow steps waits for one of them, and so
// do ten that come together: there is room for all of them in the next.
func TestAMovingLineGivesNoWait(t *testing.T) {
	for _, c := range []struct {
		name       string
		step       time.Duration
		each, late int // arrivals in a step; steps until they begin
	}{
		{"fast steps", 5 * time.Millisecond, 1, 1},
		{"slow steps", 3 * time.Second, 1, 1},
		{"slow steps, some together", 3 * time.Second, 7, 1},
		{"slow steps, after a request for KV", 3 * time.Second, 7, 2},
	} {
		l := &lineTest{WaitEstimator: NewWaitEstimator(), now: time.Hour}
		for range c.late - 1 {
			l.now += c.step / 3
			l.enter(c.each)
			l.now += c.step - c.step/3
		}
		for range 50 {
			l.now += c.step / 3
			l.enter(c.each)
			l.start(c.step-c.step/3, c.each)
		}
		l.enter(100)
		if got := l.Wait("", 1); got != 0 {
			t.Errorf("%s: a wait of %v, expected none that is known", c.name, got)
		}
	}
}

func TestIdleTimeIsNoSlowness(t *testing.T) {
	l := &lineTest{WaitEstimator: NewWaitEstimator()}
	l.enter(50)
	for range 50 {
		l.start(time.Second/10, 1)
	}
	l.now += time.Hour
	l.enter(10)
	l.expect(t, time.Second, "the estimate is kept")
	l.start(time.Second/10, 1)
	l.start(time.Second/10, 1)
	l.expect(t, 8*time.Second/10, "and the hour is not counted")
}

func TestTenantsWaitForTheirTurns(t *testing.T) {
	l := &lineTest{WaitEstimator: NewWaitEstimator()}
	l.enter(100)
	for range 40 {
		l.enter(1)
		l.start(10*time.Millisecond, 1)
		// Another tenant begins when it arrives.
		l.Enter("b", 1)
		l.Start("b", l.now, l.now+time.Millisecond)
	}
	l.expect(t, time.Second, "another's starts do not hide one's own wait")
	for _, c := range []struct {
		tenant string
		weight int
		want   Time
	}{
		{"b", 1, 10 * time.Millisecond},
		{"b", 1000, 10 * time.Millisecond},
		{"", 1, time.Second},
	} {
		if got := l.Wait(c.tenant, c.weight); got < c.want*9/10 || got > c.want*11/10 {
			t.Errorf("tenant %q, weight %d: a wait of %v, expected %v", c.tenant, c.weight, got, c.want)
		}
	}
	for range 9 {
		l.Enter("b", 1)
	}
	if got := l.Wait("b", 1); got < 180*time.Millisecond || got > 200*time.Millisecond {
		t.Errorf("the tenth of b waits %v, expected 19 turns of 10 ms", got)
	}
	for range 9 {
		l.Leave("b")
	}
	l.expect(t, time.Second, "they left")
}
