package durable

import (
	"context"
	"slices"
	"sync"

	"github.com/millrace/millrace/api"
)

// tape holds the events of a call that its readers may see, in this process. One
// goroutine writes it; each reader has its own place, so that a slow one holds
// up nobody and costs nothing beyond the call's own events.
type tape struct {
	mu      sync.Mutex
	events  []api.Event
	err     error         // why no more will come; nil at the end of a whole answer
	ended   bool          // err is set, or the Done event is there
	changed chan struct{} // closed at the next change
}

func newTape() *tape { return &tape{changed: make(chan struct{})} }

func (t *tape) add(events []api.Event) {
	if len(events) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, events...)
	t.ended = t.ended || events[len(events)-1].Done
	t.wake()
}

// end says that no more will come from this process.
func (t *tape) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.ended {
		t.ended, t.err = true, err
		t.wake()
	}
}

func (t *tape) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// all returns the events so far. Nobody changes them.
func (t *tape) all() []api.Event {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clip(t.events)
}

// read sends the events to out, from the first on, and closes it behind the last
// or when ctx ends. An end without Done is an event with its error.
func (t *tape) read(ctx context.Context, out chan<- api.Event) {
	defer close(out)
	for n := 0; ; {
		t.mu.Lock()
		events, ended, err, changed := t.events[n:], t.ended, t.err, t.changed
		t.mu.Unlock()
		if ended && err != nil {
			last := uint64(n + len(events))
			events = append(slices.Clip(events),
				api.Event{Seq: last + 1, Finish: api.FinishError, Err: err, Done: true})
		}
		for _, ev := range events {
			select {
			case out <- ev:
			case <-ctx.Done():
				return
			}
		}
		if n += len(events); ended {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
