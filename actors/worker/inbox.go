package worker

import (
	"sync"

	"github.com/millrace/millrace/actors/msg"
)

// inbox hands messages to the goroutine that owns the device. Neither side waits for the other; admission at the gateway bounds it.
// Each message counts in the stage until the loop has served it, whoever sends it.
type inbox struct {
	loop  *loop
	mu    sync.Mutex
	items []any
	held  map[msg.SeqID][]any // messages to sequences whose keys and values are on their way from another worker
	wake  chan struct{}       // holds a value when there is something new
}

func newInbox(l *loop) *inbox {
	return &inbox{loop: l, held: make(map[msg.SeqID][]any), wake: make(chan struct{}, 1)}
}

func (b *inbox) push(m any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(m)
}

// add is push for a caller that holds the lock.
func (b *inbox) add(m any) {
	b.loop.Stage.Enqueued()
	b.items = append(b.items, m)
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
