package cluster

import (
	"cmp"
	"slices"
	"time"
)

// table holds what was heard of others. A node is dead after some silence, or as soon as its
// beat is late and nobody listens for it. The table judges silence only while this node
// itself is heard: a beat of ours that does not come back means that the fault is
// near, and a node that was stopped for a while has to listen first.
type table struct {
	self    string
	dead    time.Duration // of silence
	members map[string]*entry
	list    []*Member // those that are not silent, by node
	lent    bool      // live returned the list: it is copied before it changes
	echo    time.Time // when our own beat was last heard
	back    time.Time // when it was heard again after a while
	deaf    bool
}

type entry struct {
	*Member
	heard  time.Time
	silent bool
	left   bool   // with a goodbye; silent, too
	word   string // of the question whether it is there, since its beat is late
}

// question asks whether a node is there. Its answer has the same word.
type question struct{ node, word string }

// forget is how long a silent node is kept, to be seen.
const forget = time.Minute

func newTable(self string, dead time.Duration, now time.Time) *table {
	return &table{self: self, dead: dead, members: make(map[string]*entry), echo: now}
}

// hear takes a beat. It returns whether the node is new, or new again.
func (t *table) hear(now time.Time, m Member) (joined bool) {
	if m.Node == t.self {
		if t.deaf || now.Sub(t.echo) > t.dead/2 {
			t.pardon(now)
			t.back = now
		}
		t.echo, t.deaf = now, false
		return false
	}
	if m.Left {
		t.members[m.Node] = &entry{Member: &m, heard: now, silent: true, left: true}
		t.take(m.Node)
		return false
	}
	e := t.members[m.Node]
	if e == nil {
		e = &entry{silent: true}
		t.members[m.Node] = e
	}
	joined = e.silent
	*e = entry{Member: &m, heard: now}
	t.put(&m)
	return joined
}

// pardon counts everybody who was not silent before as heard now.
func (t *table) pardon(now time.Time) {
	for _, e := range t.members {
		if !e.silent {
			e.heard = now
		}
	}
}

// tick judges, and returns the nodes that have become silent.
func (t *table) tick(now time.Time) (silent []string) {
	t.deaf = now.Sub(t.echo) > t.dead/2
	if t.deaf {
		return nil
	}
	for node, e := range t.members {
		switch quiet := now.Sub(e.heard); {
		case quiet > max(forget, t.dead):
			delete(t.members, node)
			t.take(node)
		case quiet > max(t.dead, 3*e.BeatsEvery) && !e.silent:
			e.silent = true
			t.take(node)
			silent = append(silent, node)
		}
	}
	slices.Sort(silent)
	return silent
}

// late asks for the nodes whose beat should have come. A question keeps its word until the
// node is heard: its answer may come after the next question.
func (t *table) late(now time.Time, word func() string) (list []question) {
	for node, e := range t.members {
		if !t.isLate(now, e) {
			continue
		}
		if e.word == "" {
			e.word = word()
		}
		list = append(list, question{node, e.word})
	}
	slices.SortFunc(list, func(a, b question) int { return cmp.Compare(a.node, b.node) })
	return list
}

// isLate: not while the fault may be near. Behind a restart of the NATS server, others need
// a while to come back, as this node did.
func (t *table) isLate(now time.Time, e *entry) bool {
	return !e.silent && e.BeatsEvery > 0 && now.Sub(e.heard) > e.BeatsEvery+e.BeatsEvery/5 &&
		now.Sub(t.echo) <= t.dead/2 && now.Sub(t.back) > 2*t.dead
}

// gone takes the answer that nobody listens for a late node any more. It returns whether that
// is new.
func (t *table) gone(now time.Time, q question) bool {
	e := t.members[q.node]
	if e == nil || !t.isLate(now, e) || e.word == "" || q.word != e.word {
		return false
	}
	e.silent = true
	t.take(q.node)
	return true
}

// live lists the members that are not silent, by node. Every request asks for the list: what
// was returned, and the members in it, are never written again.
func (t *table) live() []*Member {
	t.lent = true
	return slices.Clip(t.list)
}

// put brings a member's news into the list.
func (t *table) put(m *Member) {
	t.own()
	if i, there := t.place(m.Node); there {
		t.list[i] = m
	} else {
		t.list = slices.Insert(t.list, i, m)
	}
}

// take takes a node out of the list, if it is there.
func (t *table) take(node string) {
	if i, there := t.place(node); there {
		t.own()
		t.list = slices.Delete(t.list, i, i+1)
	}
}

func (t *table) place(node string) (i int, there bool) {
	return slices.BinarySearchFunc(t.list, node, func(m *Member, node string) int { return cmp.Compare(m.Node, node) })
}

// own copies the list if somebody else has it.
func (t *table) own() {
	if t.lent {
		t.list, t.lent = slices.Clone(t.list), false
	}
}

func (t *table) alive(node string) bool {
	e := t.members[node]
	return node == t.self || e != nil && !e.silent
}

// died says whether a node is silent that has not said goodbye.
func (t *table) died(node string) bool {
	e := t.members[node]
	return e != nil && e.silent && !e.left
}

func (t *table) silentCount() (n int) {
	for _, e := range t.members {
		if e.silent && !e.left {
			n++
		}
	}
	return n
}
