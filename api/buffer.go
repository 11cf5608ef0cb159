package api

import (
	"context"
	"io"
	"slices"
	"sync"
)

// Buffer holds all events of one answer. Its writer never waits. Each reader has its own position,
// so a slow reader delays nobody: it costs memory for the events of its answer, which has a token
// limit.
type Buffer struct {
	mu      sync.Mutex
	events  []Event
	read    bool  // a reader has received an event
	ended   bool  // no more events follow
	err     error // why it ended; nil after a Done event
	readers []*BufferReader
}

// firstEvents is the capacity of a new buffer.
const firstEvents = 16

// NewBuffer returns an empty buffer.
func NewBuffer() *Buffer { return &Buffer{events: make([]Event, 0, firstEvents)} }

// Append numbers events and adds them. It drops events after the end of the answer.
func (b *Buffer) Append(events ...Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range events {
		if b.ended {
			break
		}
		b.events = append(b.events, events[i])
		n := len(b.events)
		b.events[n-1].Seq, b.ended = uint64(n), events[i].Done
	}
	b.wake()
}

// End ends an answer without a Done event. Readers get an event with err instead.
func (b *Buffer) End(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended, b.err = true, err
		b.wake()
	}
}

// Restart drops the events if no reader has received one of them. Otherwise, if the request is
// buffered (see Request.Buffered), it adds an event that voids those before it. It reports whether
// the answer can start over.
func (b *Buffer) Restart(buffered bool) bool {
	b.mu.Lock()
	read := b.read
	if !read {
		b.events = b.events[:0]
	}
	b.mu.Unlock()
	if read && buffered {
		b.Append(Event{Restart: true})
	}
	return !read || buffered
}

// Ended reports whether the answer has ended.
func (b *Buffer) Ended() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

// Events returns the events so far. The caller must not change them.
func (b *Buffer) Events() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clip(b.events)
}

func (b *Buffer) wake() {
	for _, r := range b.readers {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// Reader returns a reader that begins at the first event.
func (b *Buffer) Reader() *BufferReader {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &BufferReader{buffer: b, wake: make(chan struct{}, 1)}
	b.readers = append(b.readers, r)
	return r
}

// BufferReader reads a buffer. It is for one goroutine.
type BufferReader struct {
	buffer *Buffer
	next   int           // index of the next event
	wake   chan struct{} // holds a value when there may be a new event
}

// Next waits for the next event. After the last one it returns io.EOF.
func (r *BufferReader) Next(ctx context.Context) (Event, error) {
	for {
		if e, ok, err := r.try(); ok || err != nil {
			return e, err
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

func (r *BufferReader) try() (e Event, ok bool, err error) {
	b := r.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	switch n := len(b.events); {
	case r.next < n:
		e = b.events[r.next]
	case b.err != nil && r.next == n:
		e = Event{Seq: uint64(n) + 1, Finish: FinishError, Err: b.err, Done: true}
	case b.ended:
		return Event{}, false, io.EOF
	default:
		return Event{}, false, nil
	}
	r.next++
	b.read = true
	return e, true, nil
}

// Close removes the reader from its buffer.
func (r *BufferReader) Close() {
	r.buffer.mu.Lock()
	defer r.buffer.mu.Unlock()
	r.buffer.readers = slices.DeleteFunc(r.buffer.readers, func(o *BufferReader) bool { return o == r })
}
