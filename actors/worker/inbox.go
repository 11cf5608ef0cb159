package worker

import "sync"

// inbox hands messages from the compute actor to the goroutine that owns the
// device. Neither side waits for the other; admission at the gateway bounds it.
type inbox struct {
	mu    sync.Mutex
	items []any
	wake  chan struct{} // holds a value when there is something new
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) push(m any) {
	b.mu.Lock()
	b.items = append(b.items, m)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// drain swaps what has come in for buf.
func (b *inbox) drain(buf []any) []any {
	clear(buf)
	b.mu.Lock()
	defer b.mu.Unlock()
	items := b.items
	b.items = buf[:0]
	return items
}
