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
	blocks  []*[blockEvents]Event // an event stays where it was written
	n       int                   // number of events
	read    bool                  // a reader has received an event
	ended   bool                  // no more events follow
	err     error                 // why it ended; nil after a Done event
	readers []*BufferReader
}

// blockEvents is the number of events for which a buffer allocates memory at once.
const blockEvents = 16

// NewBuffer returns an empty buffer.
func NewBuffer() *Buffer { return &Buffer{} }

// Append numbers events and adds them. It drops events after the end of the answer.
func (b *Buffer) Append(events ...Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range events {
		if b.ended {
			break
		}
		if b.n == len(b.blocks)*blockEvents {
			b.blocks = append(b.blocks, new([blockEvents]Event))
		}
		e := &b.blocks[b.n/blockEvents][b.n%blockEvents]
		b.n++
		*e = events[i]
		e.Seq, b.ended = uint64(b.n), e.Done
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
		b.blocks, b.n = nil, 0
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

// Len returns the number of events so far.
func (b *Buffer) Len() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.n
}

// Events returns a copy of the events so far.
func (b *Buffer) Events() []Event {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]Event, 0, len(b.blocks)*blockEvents)
	for _, block := range b.blocks {
		all = append(all, block[:]...)
	}
	return all[:b.n:b.n]
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
	next   int           // index of the event after ready
	ready  []Event       // events of one block, which Next returns without the buffer's lock
	wake   chan struct{} // holds a value when there may be a new event
}

// Next waits for the next event. After the last one it returns io.EOF.
func (r *BufferReader) Next(ctx context.Context) (Event, error) {
	for {
		if e, ok, err := r.Poll(); ok || err != nil {
			return e, err
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Poll is Next without a wait: ok is false if there is no event yet.
func (r *BufferReader) Poll() (e Event, ok bool, err error) {
	if len(r.ready) == 0 {
		if err := r.fill(); err != nil {
			return Event{}, false, err
		}
	}
	if len(r.ready) == 0 {
		return Event{}, false, nil
	}
	e = r.ready[0]
	r.ready = r.ready[1:]
	return e, true, nil
}

// Wake returns a channel that receives a value when Poll may have more than in its last call.
func (r *BufferReader) Wake() <-chan struct{} { return r.wake }

// fill makes the next events ready, if there are any. After the last one it returns io.EOF.
func (r *BufferReader) fill() error {
	b := r.buffer
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.next < b.n:
		first := r.next % blockEvents
		r.ready = b.blocks[r.next/blockEvents][first:min(first+b.n-r.next, blockEvents)]
	case b.err != nil && r.next == b.n:
		r.ready = []Event{{Seq: uint64(b.n) + 1, Finish: FinishError, Err: b.err, Done: true}}
	case b.ended:
		return io.EOF
	default:
		return nil
	}
	r.next += len(r.ready)
	b.read = true
	return nil
}

// Close removes the reader from its buffer.
func (r *BufferReader) Close() {
	r.buffer.mu.Lock()
	defer r.buffer.mu.Unlock()
	r.buffer.readers = slices.DeleteFunc(r.buffer.readers, func(o *BufferReader) bool { return o == r })
}
