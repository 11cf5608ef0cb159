package sched

import "time" //nolint:depguard // for a duration; there is no clock here

// WaitEstimator estimates how long one more request would wait for its first row. It counts the
// accepted requests that have not begun, by tenant, and measures the mean time between two
// starts. It measures only while requests wait: the starts of an idle server say nothing about
// its capacity. It keeps the last estimate while the server is idle.
type WaitEstimator struct {
	waiting  *SharedLimit
	interval Time // mean of about the last lineStarts intervals between starts; 0: not known yet
	counted  int
	// The last two times at which requests that had waited for standing began, and whether the
	// last one had been passed over at the time before.
	last, before Time
	stood        bool
}

const (
	// lineStarts is the number of starts that the mean is of.
	lineStarts = 32
	// standing is how long a request waits at least before it counts as passed over when
	// another one begins. It is longer than tokenizing a prompt and waiting for the next step
	// take on a server with free capacity.
	standing = 100 * time.Millisecond
	// firstBatch is the assumed run time of a batch while no interval is known.
	firstBatch = time.Second
)

// NewWaitEstimator returns a WaitEstimator without requests.
func NewWaitEstimator() *WaitEstimator { return &WaitEstimator{waiting: NewSharedLimit(0)} }

// Enter adds a request.
func (w *WaitEstimator) Enter(tenant string, weight int) { w.waiting.Admit(tenant, weight, 1) }

// Leave removes a request of a tenant that ends before it begins.
func (w *WaitEstimator) Leave(tenant string) { w.waiting.Leave(tenant, 1) }

// Start removes a request that entered at a time and begins now. Requests that begin in the
// same step are reported one by one, with the same now. A start counts if the request was
// passed over at least twice: the first time its KV reservation may still have been on its way.
func (w *WaitEstimator) Start(tenant string, entered, now Time) {
	w.waiting.Leave(tenant, 1)
	gap := Time(0)
	if now > w.last {
		if now-entered < standing {
			return // it did not wait, so it says nothing about the rate
		}
		gap, w.stood = now-w.last, w.before-entered >= standing
		w.before, w.last = w.last, now
	}
	if w.stood {
		w.counted = min(w.counted+1, lineStarts)
		w.interval += (gap - w.interval) / Time(w.counted)
	}
}

// Ahead returns how many requests begin before one more of a tenant: all that wait or, since
// tenants take turns, those until the tenant's own requests have had theirs.
func (w *WaitEstimator) Ahead(tenant string, weight int) int {
	return min(w.waiting.Inside(), w.waiting.Turns(tenant, weight))
}

// Wait returns how long one more request of a tenant would wait for its start. 0: not known yet.
func (w *WaitEstimator) Wait(tenant string, weight int) Time {
	return w.interval * Time(w.Ahead(tenant, weight))
}

// TooLong says whether one more request would wait longer than bound (0: no bound). inside is the
// number of requests that wait or run, batch the number that run at once. While the batch has
// free places the answer is no: requests wait for each other's prompts only, not for answers.
// While no interval is known, a batch is assumed to run for firstBatch, so that a server that
// starts under load does not accept requests that it cannot serve in time.
func (w *WaitEstimator) TooLong(tenant string, weight int, bound Time, inside, batch int) bool {
	if bound == 0 || inside < batch {
		return false
	}
	interval := w.interval
	if w.counted == 0 {
		interval = firstBatch / Time(max(batch, 1))
	}
	return interval*Time(w.Ahead(tenant, weight)) > bound
}

// Inside returns the number of requests that wait.
func (w *WaitEstimator) Inside() int { return w.waiting.Inside() }
