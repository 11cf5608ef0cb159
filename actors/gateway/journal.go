package gateway

import (
	"context"
	"io"
	"sync"

	"github.com/millrace/millrace/api"
)

// journal holds the events of one request in order. The request's actor
// writes it and never waits; one stream reads it at its own pace, so a slow
// client costs its own journal (bounded by the request's token limit) and
// nothing else.
type journal struct {
	mu     sync.Mutex
	events []api.Event
	read   bool          // by the stream, an event
	wake   chan struct{} // holds a value when there is something new
}

// firstEvents is the room that a journal has from the beginning.
const firstEvents = 16

func newJournal() *journal {
	return &journal{events: make([]api.Event, 0, firstEvents), wake: make(chan struct{}, 1)}
}

// append numbers e and adds it. Nothing follows a Done event.
func (j *journal) append(e api.Event) {
	j.mu.Lock()
	if n := len(j.events); n > 0 && j.events[n-1].Done {
		j.mu.Unlock()
		return
	}
	e.Seq = uint64(len(j.events)) + 1
	j.events = append(j.events, e)
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// again drops the events and begins anew, if none of them was read or the reader shows
// nothing before the end: it gets a Restart event then. False if neither is so.
func (j *journal) again(buffered bool) bool {
	j.mu.Lock()
	read := j.read
	if !read {
		j.events = j.events[:0]
	}
	j.mu.Unlock()
	if read && buffered {
		j.append(api.Event{Restart: true})
	}
	return !read || buffered
}

// done says whether the last event is there.
func (j *journal) done() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := len(j.events)
	return n > 0 && j.events[n-1].Done
}

// at returns event number seq (from 1); ok is false when it is not there yet.
// An event after the Done one is io.EOF.
func (j *journal) at(seq uint64) (e api.Event, ok bool, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := uint64(len(j.events))
	switch {
	case seq <= n:
		j.read = true
		return j.events[seq-1], true, nil
	case n > 0 && j.events[n-1].Done:
		return api.Event{}, false, io.EOF
	}
	return api.Event{}, false, nil
}

// stream reads a journal from its beginning.
type stream struct {
	journal *journal
	next    uint64
	cancel  func()
}

func (s *stream) Next(ctx context.Context) (api.Event, error) {
	for {
		e, ok, err := s.journal.at(s.next)
		if err != nil {
			return api.Event{}, err
		}
		if ok {
			s.next++
			return e, nil
		}
		select {
		case <-s.journal.wake:
		case <-ctx.Done():
			return api.Event{}, ctx.Err()
		}
	}
}

func (s *stream) Close() {
	if !s.journal.done() {
		s.cancel()
	}
}
