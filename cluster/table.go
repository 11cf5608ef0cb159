package cluster

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// table holds the last beat of each other node. A node is considered dead after some silence, when its beat is late and the NATS
// server has no subscription for it, or when the server has none for two probes in a row. The table judges
// only while it receives this node's own beats: without them the fault may be here, and a process
// that was stopped for a while has to receive beats first.
type table struct {
	self    string
	dead    time.Duration // silence after which a node is dead
	members map[string]*entry
	list    []*Member // members that are not silent, by node
	lent    bool      // live returned list: copy it before a change
	probes  uint64    // made so far
	echo    time.Time // when this node's own beat last arrived
	back    time.Time // when it arrived again after a pause
	// partitioned: this node's own beats do not arrive.
	partitioned bool
}

type entry struct {
	*Member
	last   time.Time // when the last beat arrived
	silent bool
	left   bool      // it said so; it is silent, too
	nonce  string    // of the probes since its last beat
	absent uint64    // number of the first probe since then that found no subscription; 0: none did
	since  time.Time // when the answer to that probe came
	gone   time.Time // when probes said that it is; zero: they did not
}

// probe is a message to a node. An answer of the NATS server has its nonce and its number.
type probe struct {
	node, nonce string
	number      uint64 // from 1, in the order in which they are sent
}

// forget is how long a silent node stays in the table.
const forget = time.Minute

func newTable(self string, dead time.Duration, now time.Time) *table {
	return &table{self: self, dead: dead, members: make(map[string]*entry), echo: now}
}

// beatsLate is how long the last beats of a dead node may be on their way in a busy process, whose probes have been answered since. A node
// that lives sends others.
const beatsLate = 100 * time.Millisecond

// receive applies a beat. It returns whether the node is new, or back after silence.
func (t *table) receive(now time.Time, m Member) (joined bool) {
	if m.Node == t.self {
		if t.partitioned || now.Sub(t.echo) > t.dead/2 {
			t.resetTimers(now)
			t.back = now
		}
		t.echo, t.partitioned = now, false
		return false
	}
	if m.Left {
		t.members[m.Node] = &entry{Member: &m, last: now, silent: true, left: true}
		t.remove(m.Node)
		return false
	}
	e := t.members[m.Node]
	if e == nil {
		e = &entry{silent: true}
		t.members[m.Node] = e
	}
	if e.silent && now.Sub(e.gone) < max(m.BeatsEvery, beatsLate) {
		return false
	}
	joined = e.silent
	*e = entry{Member: &m, last: now}
	t.put(&m)
	return joined
}

// resetTimers sets the last beat of all nodes that are not silent to now.
func (t *table) resetTimers(now time.Time) {
	for _, e := range t.members {
		if !e.silent {
			e.last = now
		}
	}
}

// tick updates the table and returns the nodes that have become silent.
func (t *table) tick(now time.Time) (silent []string) {
	t.partitioned = now.Sub(t.echo) > t.dead/2
	if t.partitioned {
		return nil
	}
	for node, e := range t.members {
		switch quiet := now.Sub(e.last); {
		case quiet > max(forget, t.dead):
			delete(t.members, node)
			t.remove(node)
		case quiet > max(t.dead, 3*e.BeatsEvery) && !e.silent:
			e.silent = true
			t.remove(node)
			silent = append(silent, node)
		}
	}
	slices.Sort(silent)
	return silent
}

// late returns probes for the nodes whose beat is late. A node's nonce stays the same until its next
// beat: an answer may arrive after the next probe. nonce makes one.
func (t *table) late(now time.Time, nonce func() string) (list []probe) {
	for _, node := range slices.Sorted(maps.Keys(t.members)) {
		if t.isLate(now, t.members[node]) {
			list = append(list, t.probe(node, nonce))
		}
	}
	return list
}

// probe returns the next probe, for a node. It has no nonce if the node is unknown.
func (t *table) probe(node string, nonce func() string) probe {
	t.probes++
	q := probe{node: node, number: t.probes}
	if e := t.members[node]; e != nil {
		if e.nonce == "" {
			e.nonce = nonce()
		}
		q.nonce = e.nonce
	}
	return q
}

// judges says whether a node without a subscription may be dead. It may not while the fault may be here: after a restart of the
// NATS server other nodes need a while to reconnect, as this node did.
func (t *table) judges(now time.Time, e *entry) bool {
	return !e.silent && e.BeatsEvery > 0 && now.Sub(t.echo) <= t.dead/2 && now.Sub(t.back) > 2*t.dead
}

// isLate says whether a node's beat is late.
func (t *table) isLate(now time.Time, e *entry) bool {
	return t.judges(now, e) && now.Sub(e.last) > e.BeatsEvery+e.BeatsEvery/5
}

// absentFor is the least time between two answers without a subscription that make a node dead before its beat is late, as a
// share of the time between two beats. A single one may be older than the node's last beat.
const absentFor = 10

// gone applies the answer that a node has no subscription. It returns whether the node is
// silent from now on: it is if its beat is late, or if an earlier probe since its last beat found none either.
func (t *table) gone(now time.Time, q probe) bool {
	e := t.members[q.node]
	if e == nil || e.nonce == "" || q.nonce != e.nonce {
		return false
	}
	if e.absent == 0 {
		e.since = now
	}
	if e.absent == 0 || q.number < e.absent {
		e.absent = q.number
	}
	if again := t.judges(now, e) && now.Sub(e.since) > e.BeatsEvery/absentFor; !again && !t.isLate(now, e) {
		return false
	}
	e.silent, e.gone = true, now
	t.remove(q.node)
	return true
}

// live returns the members that are not silent, by node. Every request uses the list, so a returned
// list and its members never change.
func (t *table) live() []*Member {
	t.lent = true
	return slices.Clip(t.list)
}

// put adds a member to the list, or replaces it.
func (t *table) put(m *Member) {
	t.own()
	if i, there := t.place(m.Node); there {
		t.list[i] = m
	} else {
		t.list = slices.Insert(t.list, i, m)
	}
}

// remove takes a node out of the list, if it is there.
func (t *table) remove(node string) {
	if i, there := t.place(node); there {
		t.own()
		t.list = slices.Delete(t.list, i, i+1)
	}
}

func (t *table) place(node string) (i int, there bool) {
	return slices.BinarySearchFunc(t.list, node, func(m *Member, node string) int { return cmp.Compare(m.Node, node) })
}

// own copies the list if a caller of live has it.
func (t *table) own() {
	if t.lent {
		t.list, t.lent = slices.Clone(t.list), false
	}
}

func (t *table) alive(node string) bool {
	e := t.members[node]
	return node == t.self || e != nil && !e.silent
}

// finished says whether a node has left and had nothing of this one in hand then.
func (t *table) finished(node string) bool {
	e := t.members[node]
	return e != nil && e.left && e.Worker != nil && e.Worker.Gateways[t.self] == 0
}

// died says whether a node was there at the probe with a number, and has died since. Silence is not
// death: the NATS server keeps the subscription of a process that was stopped or cut off.
func (t *table) died(node string, number uint64) bool {
	e := t.members[node]
	return e != nil && e.silent && !e.left && e.absent > number
}

func (t *table) silentCount() (n int) {
	for _, e := range t.members {
		if e.silent && !e.left {
			n++
		}
	}
	return n
}
