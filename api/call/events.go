package call

import (
	"context"
	"io"
	"iter"
	"sync"

	"github.com/millrace/millrace/api"
)

// EventStream is the events of a call, from the first one on. It is for one goroutine, which takes the events where the engine wrote
// them: an answer of one request has no goroutine of its own.
type EventStream interface {
	// Poll returns the next event: ok is false if there is none yet. After Done, and when the call's context has ended, it returns io.EOF.
	Poll() (ev api.Event, ok bool, err error)
	// Wake returns a channel that receives a value when Poll may have more than in its last call.
	Wake() <-chan struct{}
}

// Next waits for the next event.
func Next(ctx context.Context, e EventStream) (api.Event, error) {
	for {
		if ctx.Err() != nil {
			return api.Event{}, ctx.Err()
		}
		if ev, ok, err := e.Poll(); ok || err != nil {
			return ev, err
		}
		select {
		case <-e.Wake():
		case <-ctx.Done():
		}
	}
}

// All returns the events until there are no more, or ctx ends.
func All(ctx context.Context, e EventStream) iter.Seq[api.Event] {
	return func(yield func(api.Event) bool) {
		for {
			if ev, err := Next(ctx, e); err != nil || !yield(ev) {
				return
			}
		}
	}
}

// EventsOf returns the events of a list.
func EventsOf(list ...api.Event) EventStream {
	q := NewQueue(len(list))
	q.events = list
	q.closed = true
	return q
}

// Queue passes events from other goroutines to the reader of a call.
type Queue struct {
	room chan struct{} // holds a value for each event
	wake chan struct{}

	mu     sync.Mutex
	events []api.Event
	closed bool
}

// NewQueue returns a queue of at most size events.
func NewQueue(size int) *Queue {
	return &Queue{room: make(chan struct{}, size), wake: make(chan struct{}, 1)}
}

// Send waits for room and adds an event. It returns false if ctx ends first.
func (q *Queue) Send(ctx context.Context, ev api.Event) bool {
	select {
	case q.room <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	q.mu.Lock()
	q.events = append(q.events, ev)
	q.mu.Unlock()
	q.notify()
	return true
}

// Close says that no events follow.
func (q *Queue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.notify()
}

func (q *Queue) notify() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Poll implements EventStream.
func (q *Queue) Poll() (ev api.Event, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case len(q.events) > 0:
		ev, q.events = q.events[0], q.events[1:]
		select {
		case <-q.room:
		default: // of a list
		}
		return ev, true, nil
	case q.closed:
		return api.Event{}, false, io.EOF
	}
	return api.Event{}, false, nil
}

// Wake implements EventStream.
func (q *Queue) Wake() <-chan struct{} { return q.wake }
