package batch

import "sync"

// window is what a batch has in the queue. Its keeper fills it again when half of it has run, so that the lines of a large file do not fill
// the queue of all tenants.
type window struct {
	mu    sync.Mutex
	sizes []int  // of the lines in the queue, in bytes
	done  []bool // the lines with a result
	bytes int    // of all lines in the queue
}

func newWindow(lines int) *window {
	return &window{sizes: make([]int, lines), done: make([]bool, lines)}
}

// add counts a line that goes into the queue, unless it has a result. fits is false if the line is above the limit; then it does not count.
// A line always fits into an empty window.
func (w *window) add(line, size, limit int) (run, fits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done[line] {
		return false, true
	}
	more := size - w.sizes[line] // it may be there a second time
	if w.bytes > 0 && more > 0 && w.bytes+more > limit {
		return false, false
	}
	w.bytes += more
	w.sizes[line] = size
	return true, true
}

// finish counts a line that has a result.
func (w *window) finish(line int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line < 0 || line >= len(w.done) { // of a file that was not checked
		return
	}
	w.bytes -= w.sizes[line]
	w.sizes[line], w.done[line] = 0, true
}

// empty counts no line in the queue any more.
func (w *window) empty() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.sizes)
	w.bytes = 0
}

// low reports whether the window may be filled again.
func (w *window) low(limit int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes <= limit/2
}

// limit returns the bytes that a batch may have in the queue, 0 if it has to wait for older ones. Half of the queue is divided evenly among
// the tenants. The oldest batch of a tenant, whose lines run first, gets half of its share, the next one a quarter, and so on, if a line
// fits.
func (b *Batches) limit(r *Record) int {
	of := b.catalog.those(func(k *known) bool { return k.Tenant == r.Tenant && k.Runs() })
	older := 0
	for _, other := range of {
		if olderFirst(other, r) < 0 {
			older++
		}
	}
	n := 1
	if b.opts.Keys != nil {
		n = max(b.opts.Keys.Tenants(), 1)
	}
	limit := b.queue / 2 / n >> (older + 1)
	if older > 0 && limit < b.maxLine {
		return 0
	}
	return max(limit, 1)
}
