package bridge

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/actors/msg/msgpb"
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

// publish sends messages in their order: those of a kind that follow each other go
// together, as far as one NATS message holds them.
func (l *link) publish(list []outgoing) {
	largest := max(int(l.b.conn.MaxPayload())-overhead, overhead)
	frame, size, kind := &msgpb.Frame{From: l.b.node}, 0, ""
	now := time.Now()
	for _, o := range list {
		e, err := msg.Marshal(o.to, o.m, now)
		if err != nil {
			l.b.drop("undecodable", 1, fmt.Errorf("to %s at %s: %w", o.to, l.node, err))
			continue
		}
		n := proto.Size(e) + 8 // its tag and length
		if k := msg.Kind(o.m); k != kind || size+n > largest {
			l.send(frame, kind, largest)
			frame, size, kind = &msgpb.Frame{From: l.b.node}, 0, k
		}
		frame.Messages = append(frame.Messages, e)
		msg.Recycle(o.m)
		size += n
	}
	l.send(frame, kind, largest)
}

// send publishes a frame, in parts if it is too large.
func (l *link) send(f *msgpb.Frame, kind string, largest int) {
	n := len(f.GetMessages())
	if n == 0 {
		return
	}
	data, err := proto.Marshal(f)
	if err != nil {
		l.b.drop("undecodable", n, fmt.Errorf("to %s: %w", l.node, err))
		return
	}
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
		part, err := proto.Marshal(&msgpb.Frame{From: l.b.node, Part: p})
		if err != nil {
			return err
		}
		if err := l.write(part, kind); err != nil {
			return err
		}
	}
	return nil
}

func (l *link) write(data []byte, kind string) error {
	l.b.metrics.BytesOut.Add(float64(len(data)))
	return l.b.conn.Publish(Subject(l.node, kind), data)
}
