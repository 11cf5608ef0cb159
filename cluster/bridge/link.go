package bridge

import (
	"fmt"
	"time"
)

// link is what waits for one node. Its goroutine encodes and publishes.
type link struct {
	b     *Bridge
	node  string
	wake  chan struct{} // holds a value when there is something new
	quit  chan struct{}
	queue []outgoing // under the bridge's mutex
	spare []outgoing
}

type outgoing struct {
	to string
	m  any
}

func (l *link) run() {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		select {
		case <-l.wake:
			l.flush()
			timer.Reset(idle)
		case <-timer.C:
			if l.end() {
				return
			}
			timer.Reset(idle)
		case <-l.quit:
			l.flush()
			return
		}
	}
}

// end gives up an idle link; the next message makes another one.
func (l *link) end() bool {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if len(l.queue) > 0 || l.b.closed {
		return false
	}
	delete(l.b.links, l.node)
	return true
}

func (l *link) flush() {
	l.b.mu.Lock()
	list := l.queue
	l.queue = l.spare[:0]
	l.b.mu.Unlock()
	l.publish(list)
	clear(list)
	l.spare = list
}

// publish sends messages in their order. Consecutive messages of one kind share a NATS
// message, up to its largest size.
func (l *link) publish(list []outgoing) {
	largest := max(int(l.b.conn.MaxPayload())-overhead, overhead)
	f, size, kind := &frame{from: l.b.node}, 0, ""
	now := time.Now()
	for _, o := range list {
		data, err := l.b.codec.Encode(o.to, o.m, now)
		if err != nil {
			l.b.drop("undecodable", 1, fmt.Errorf("to %s at %s: %w", o.to, l.node, err))
			continue
		}
		n := len(data) + fieldOverhead
		if k := l.b.codec.Kind(o.m); k != kind || size+n > largest {
			l.send(f, kind, largest)
			f, size, kind = &frame{from: l.b.node}, 0, k
		}
		f.messages = append(f.messages, data)
		l.b.codec.Recycle(o.m)
		size += n
	}
	l.send(f, kind, largest)
}

// send publishes a frame, in parts if it is too large.
func (l *link) send(f *frame, kind string, largest int) {
	n := len(f.messages)
	if n == 0 {
		return
	}
	data := f.encode()
	var err error
	if len(data) <= largest {
		err = l.write(data, kind)
	} else {
		err = l.parts(data, kind, largest)
	}
	if err != nil {
		l.b.drop("unsent", n, fmt.Errorf("to %s: %w", l.node, err))
		return
	}
	l.b.metrics.MessagesOut.Add(float64(n))
}

func (l *link) parts(data []byte, kind string, largest int) error {
	l.b.mu.Lock()
	l.b.frames++
	id := l.b.frames
	l.b.mu.Unlock()
	for _, p := range split(id, data, largest) {
		if err := l.write((&frame{from: l.b.node, part: p}).encode(), kind); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) write(data []byte, kind string) error {
	l.b.metrics.BytesOut.Add(float64(len(data)))
	return l.b.conn.Publish(Subject(l.node, kind), data)
}
