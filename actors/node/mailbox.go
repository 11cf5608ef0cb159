package node

import (
	"runtime"
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is protoactor's unbounded mailbox for actors that get a message with every
// token: nothing is allocated to wake its actor up, and its queue is used again.
// System messages go first; a panic escalates and the rest is kept.
type mailbox struct {
	invoker    actor.MessageInvoker
	dispatcher actor.Dispatcher
	process    func()

	mu           sync.Mutex
	system, user queue
	running      bool // process is scheduled, or runs
	suspended    bool
}

func newMailbox() actor.Mailbox {
	m := &mailbox{}
	m.process = m.run
	return m
}

// queue is first in, first out.
type queue struct {
	items []any
	first int
}

// firstMessages is the room of a queue that had none.
const firstMessages = 8

func (q *queue) len() int { return len(q.items) - q.first }

// push moves what waits to the front before it would ask for more room: a queue that is
// never quite empty does not grow with all that went through it.
func (q *queue) push(v any) {
	if q.items == nil {
		q.items = make([]any, 0, firstMessages)
	}
	if len(q.items) == cap(q.items) && q.first > len(q.items)/2 {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, v)
}

func (q *queue) pop() any {
	v := q.items[q.first]
	q.items[q.first] = nil
	if q.first++; q.first == len(q.items) {
		q.items, q.first = q.items[:0], 0
	}
	return v
}

func (m *mailbox) PostUserMessage(v any)   { m.post(&m.user, v) }
func (m *mailbox) PostSystemMessage(v any) { m.post(&m.system, v) }

func (m *mailbox) post(q *queue, v any) {
	m.mu.Lock()
	q.push(v)
	wake := !m.running
	m.running = true
	m.mu.Unlock()
	if wake {
		m.dispatcher.Schedule(m.process)
	}
}

func (m *mailbox) RegisterHandlers(invoker actor.MessageInvoker, dispatcher actor.Dispatcher) {
	m.invoker, m.dispatcher = invoker, dispatcher
}

func (m *mailbox) Start() {}

func (m *mailbox) UserMessageCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.user.len()
}

// run hands messages to the actor until there are none that it may have.
func (m *mailbox) run() {
	for n := 1; ; n++ {
		v, system, ok := m.next()
		if !ok {
			return
		}
		m.handle(v, system)
		if n%m.dispatcher.Throughput() == 0 {
			runtime.Gosched()
		}
	}
}

func (m *mailbox) next() (v any, system, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.system.len() > 0:
		return m.system.pop(), true, true
	case m.user.len() > 0 && !m.suspended:
		return m.user.pop(), false, true
	}
	m.running = false
	return nil, false, false
}

func (m *mailbox) handle(v any, system bool) {
	defer func() {
		if reason := recover(); reason != nil {
			m.invoker.EscalateFailure(reason, v)
		}
	}()
	if !system {
		m.invoker.InvokeUserMessage(v)
		return
	}
	switch v.(type) {
	case *actor.SuspendMailbox:
		m.suspend(true)
	case *actor.ResumeMailbox:
		m.suspend(false)
	default:
		m.invoker.InvokeSystemMessage(v)
	}
}

func (m *mailbox) suspend(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspended = yes
}
