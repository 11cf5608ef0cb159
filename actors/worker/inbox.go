package worker

import (
	"sync"

	"github.com/millrace/millrace/metrics"
)

// inbox hands messages from the compute actor to the goroutine that owns the
// device. Neither side waits for the other; admission at the gateway bounds it. Each message counts in the
// stage until the loop has served it, whoever sends it.
type inbox struct {
	stage *metrics.Stage
	mu    sync.Mutex
	items []any
	wake  chan struct{} // holds a value when there is something new
}

func newInbox(s *metrics.Stage) *inbox { return &inbox{stage: s, wake: make(chan struct{}, 1)} }

func (b *inbox) push(m any) {
	b.stage.Enqueued()
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
