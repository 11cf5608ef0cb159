package edge

import "container/list"

// table chooses the connection to close when there are too many: the one that has waited for its
// client for the longest time, between requests or within one. A connection that is being answered
// is never chosen. The table has no clock: its order is that of the calls.
type table[C comparable] struct {
	capacity int
	conns    map[C]*entry
	waiting  *list.List // of C: the connections without an answer, the longest wait first
}

type entry struct {
	answers int           // requests that are being answered
	idle    bool          // between requests
	waits   *list.Element // nil while answers > 0
}

func newTable[C comparable](capacity int) *table[C] {
	return &table[C]{capacity: capacity, conns: make(map[C]*entry), waiting: list.New()}
}

// enter adds a connection. If the table is full, evicted says that victim is removed for it and has
// to be closed; added is false if no connection may be closed: then the new one is not added.
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

// leave removes a connection. A connection that is not in the table changes nothing, here and in
// the other methods.
func (t *table[C]) leave(c C) {
	if e := t.conns[c]; e != nil {
		t.stopWaiting(e)
		delete(t.conns, c)
	}
}

// beginRequest says that a request has begun. A wait within the first request counts from enter.
func (t *table[C]) beginRequest(c C) {
	if e := t.conns[c]; e != nil && e.idle {
		e.idle = false
		t.wait(c, e)
	}
}

// beginAnswer says that a request is complete: its answer begins.
func (t *table[C]) beginAnswer(c C) {
	if e := t.conns[c]; e != nil {
		e.idle = false
		e.answers++
		t.stopWaiting(e)
	}
}

// endAnswer says that one of a connection's answers has ended.
func (t *table[C]) endAnswer(c C) {
	e := t.conns[c]
	if e == nil || e.answers == 0 {
		return
	}
	if e.answers--; e.answers == 0 {
		t.wait(c, e)
	}
}

// setIdle says that a connection has no request.
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
