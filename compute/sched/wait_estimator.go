package sched

import "time" //nolint:depguard // for a duration; there is no clock here

// Line is those who were let in and have not begun, by tenant, and how long one more
// would wait in it: as long as those take that have their turn before it. How fast
// the line moves is measured only while it stands, that is, while somebody was passed
// over who had been in it for a while: what an idle server does says nothing about
// its capacity, and what is known of it is kept.
type WaitEstimator struct {
	inside   *SharedLimit
	interval Time // mean between two starts, of about the last lineStarts; 0: not known yet
	counted  int
	// Of those that had been in the line for a while: the last two times at which some began,
	// and whether the last time somebody was among them who had been passed over before.
	last, before Time
	stood        bool
}

const (
	lineStarts = 32
	// standing is the time after which one who was in the line when another one began
	// has been passed over: longer than a prompt takes to become tokens and to find the
	// next step, on a server that is not full.
	standing   = 100 * time.Millisecond
	firstGuess = time.Second
)

// NewWaitEstimator returns an empty line.
func NewWaitEstimator() *WaitEstimator { return &WaitEstimator{inside: NewSharedLimit(0)} }

// Enter puts one at its end.
func (l *WaitEstimator) Enter(tenant string, weight int) { l.inside.Admit(tenant, weight, 1) }

// Leave takes out one of a tenant that has not begun.
func (l *WaitEstimator) Leave(tenant string) { l.inside.Leave(tenant, 1) }

// Start takes out one that begins now, and entered at a time. Those that begin together,
// in one step, are told one after the other, with the same now. One that was passed over
// twice at least counts: the first time its KV may just have been asked for.
func (l *WaitEstimator) Start(tenant string, entered, now Time) {
	l.inside.Leave(tenant, 1)
	gap := Time(0)
	if now > l.last {
		if now-entered < standing {
			return // it is no sign of how fast the others are
		}
		gap, l.stood = now-l.last, l.before-entered >= standing
		l.before, l.last = l.last, now
	}
	if l.stood {
		l.counted = min(l.counted+1, lineStarts)
		l.interval += (gap - l.interval) / Time(l.counted)
	}
}

// Ahead is how many begin before one more of a tenant of a weight: all that are inside
// or, since tenants take turns, as many as it takes until its tenant's own had theirs.
func (l *WaitEstimator) Ahead(tenant string, weight int) int {
	return min(l.inside.Inside(), l.inside.Turns(tenant, weight))
}

// Wait is what one more of a tenant of a weight would wait for its start. 0 as long as
// the line was not seen to move.
func (l *WaitEstimator) Wait(tenant string, weight int) Time {
	return l.interval * Time(l.Ahead(tenant, weight))
}

// TooLong says whether that is longer than a bound (0: none) where batch sequences run at
// once and so many are inside, those that run and those in the line. As long as
// the batch has room for all of them it is not: their prompts take their time, but none waits
// for another's answer. As long as the line was not seen to move, a batch is taken to run for
// firstGuess: a server that starts under load does not fill it with what it cannot serve in time.
func (l *WaitEstimator) TooLong(tenant string, weight int, bound Time, inside, batch int) bool {
	if bound == 0 || inside < batch {
		return false
	}
	interval := l.interval
	if l.counted == 0 {
		interval = firstGuess / Time(max(batch, 1))
	}
	return interval*Time(l.Ahead(tenant, weight)) > bound
}

// Inside is the number of those in the line.
func (l *WaitEstimator) Inside() int { return l.inside.Inside() }
