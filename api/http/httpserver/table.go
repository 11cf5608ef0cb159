package httpserver

import "container/list"

// table chooses the connection to close when it is full: the one that has waited longest for its
// client, between requests or within one. It never chooses a connection that is being answered. The
// table has no clock: its order is the order of the method calls.
type table[C comparable] struct {
	capacity int
	conns    map[C]*entry
	waiting  *list.List // of C: the connections that are not being answered, the longest wait first
}

type entry struct {
	answers int           // requests being answered
	idle    bool          // between requests
	waits   *list.Element // nil while answers > 0
}

func newTable[C comparable](capacity int) *table[C] {
	return &table[C]{capacity: capacity, conns: make(map[C]*entry), waiting: list.New()}
}

// enter adds a connection. If the table is full it removes another one, victim, which the caller must
// close, and evicted is true. If all others are being answered, added is false.
func (t *table[C]) enter(c C) (victim C, evicted, added bool) {
	if len(t.conns) >= t.capacity {
		oldest := t.waiting.Front()
		if oldest == nil {
			return victim, false, false
		}
		victim, evicted = oldest.Value.(C), true
		t.leave(victim)
	}
	t.conns[c] = &entry{waits: t.waiting.PushBack(c)}
	return victim, evicted, true
}

// leave removes a connection. This method and those below ignore a connection that is not in the table.
func (t *table[C]) leave(c C) {
	if e := t.conns[c]; e != nil {
		t.stopWaiting(e)
		delete(t.conns, c)
	}
}

// beginRequest notes that a request has begun. The wait of a first request counts from enter.
func (t *table[C]) beginRequest(c C) {
	if e := t.conns[c]; e != nil && e.idle {
		e.idle = false
		t.wait(c, e)
	}
}

// beginAnswer notes that a request is complete and its answer begins.
func (t *table[C]) beginAnswer(c C) {
	if e := t.conns[c]; e != nil {
		e.idle = false
		e.answers++
		t.stopWaiting(e)
	}
}

// endAnswer notes that one of a connection's answers has ended.
func (t *table[C]) endAnswer(c C) {
	e := t.conns[c]
	if e == nil || e.answers == 0 {
		return
	}
	if e.answers--; e.answers == 0 {
		t.wait(c, e)
	}
}

// setIdle notes that a connection has no request.
func (t *table[C]) setIdle(c C) {
	if e := t.conns[c]; e != nil {
		e.idle, e.answers = true, 0
		t.wait(c, e)
	}
}

func (t *table[C]) wait(c C, e *entry) {
	t.stopWaiting(e)
	if e.answers == 0 {
		e.waits = t.waiting.PushBack(c)
	}
}

func (t *table[C]) stopWaiting(e *entry) {
	if e.waits != nil {
		t.waiting.Remove(e.waits)
		e.waits = nil
	}
}
