package kvmgr

import (
	"errors"
	"fmt"
	"slices"
)

// ErrComputing is a prompt whose prefix another sequence is computing: wait until Ready returns the sequence, and
// reserve again. It is wrapped in a *ComputingError.
var ErrComputing = errors.New("kvmgr: another sequence computes the prefix")

// ComputingError says which sequence computes the prefix of a prompt.
type ComputingError struct {
	Seq    Seq // that waits
	By     Seq
	Tokens int // of the prefix
}

func (e *ComputingError) Error() string {
	return fmt.Sprintf("%v: %d tokens of sequence %d, by sequence %d", ErrComputing, e.Tokens, e.Seq, e.By)
}

func (e *ComputingError) Unwrap() error { return ErrComputing }

// Copy is slabs to copy in part: the first Tokens tokens of each slab of From to the slab at the same place of To. There is nothing to copy
// when Tokens is 0.
type Copy struct {
	From, To []int32
	Tokens   int
}

// Prompt is the known tokens of a sequence that begins: their keys and values may be in the pool already.
type Prompt struct {
	// Space names what keys and values depend on besides tokens, and who may share them: adapter, tenant, salt.
	Space  string
	Tokens []int32 // not kept
	AtOnce bool    // it does not wait for others that compute its tokens
}

// Hit is the part of a prompt whose keys and values are there.
type Hit struct {
	Tokens int  // that need not be computed, at most all but the last one
	Slabs  int  // positions that hold them: the first ones of the sequence. In windowed groups it has the last of these only, see Live
	Copy   Copy // of the slabs of the last of these positions, and of a state: do it before the next step
	Branch int  // see Spec.NextSnapshot; 0: none
}

// ReservePrompt is Reserve for a sequence that begins with the tokens of p. It leases the slabs of their
// longest prefix that is computed: that of which full groups have all slabs, and windowed groups the last window, and where there are
// states a snapshot of the one after it. Errors: those of Reserve, and ErrComputing.
func (m *Manager) ReservePrompt(seq Seq, l Length, p Prompt) (Hit, error) {
	if err := m.checkPrompt(seq, l, p); err != nil {
		return Hit{}, err
	}
	return m.begin(&region{seq: seq, end: l.End, tokens: l.Promise, beams: 1}, p, 0)
}

func (m *Manager) checkPrompt(seq Seq, l Length, p Prompt) error {
	if err := m.checkReserve(seq, l); err != nil {
		return err
	}
	if len(p.Tokens) < 1 || len(p.Tokens) > l.Promise {
		return fmt.Errorf("%w: %d tokens at the start of %d promised", ErrInvalid, len(p.Tokens), l.Promise)
	}
	return nil
}

// begin admits a region that begins with the slabs of a prompt's longest computed prefix, less those of windowed groups before position
// from.
func (m *Manager) begin(r *region, p Prompt, from int) (Hit, error) {
	if !m.spec.Shares {
		return Hit{}, m.add(r, &found{})
	}
	for i := range m.trees {
		m.trees[i].clock++
	}
	// The last token is always computed: the first token of the answer is sampled from its logits.
	last := len(p.Tokens) - 1
	f := m.match(p.Space, p.Tokens[:last], r.imported, r.prompt > 0, hasSlab)
	whole := f.whole * m.slabTokens
	if !p.AtOnce && m.pays(&f, last-whole) {
		f.pending.waiters = append(f.pending.waiters, r.seq)
		return Hit{}, &ComputingError{Seq: r.seq, By: f.pending.by, Tokens: whole + f.soon}
	}
	if from > f.whole {
		f.partial = 0
	}
	r.cached, r.space, r.first, r.known = true, p.Space, max(f.first, from), len(p.Tokens)
	if err := m.add(r, &f); err != nil {
		return Hit{}, err
	}
	for group := range m.trees {
		for _, n := range r.rest(&f, group) {
			n.uses++
			m.trees[group].touch(n)
		}
	}
	r.branch = f.branches(whole)
	h := Hit{Tokens: whole, Slabs: f.whole, Branch: r.branch}
	switch {
	case f.state != nil:
		m.resume(r, &f, &h)
	case f.partial > 0:
		m.copyTail(r, &f, &h)
	}
	m.pend(r, p.Tokens)
	return h, nil
}

// copyTail leases the next position of a region, whose first tokens other slabs have, and adds them to its hit.
func (m *Manager) copyTail(r *region, f *found, h *Hit) {
	var from []int32
	for group := range f.groups {
		m.trees[group].touch(f.groups[group].next)
		from = append(from, f.groups[group].next.slab) // the lease may evict it, and even return it: its contents stay until a step
	}
	to := m.extend(r, f.whole+1)
	m.leased(r.seq, f.whole*m.groups.Count(), to)
	h.Slabs++
	var c Copy
	for group, id := range to {
		switch slices.Index(from, id) {
		case -1:
			c.From, c.To, c.Tokens = append(c.From, from[group]), append(c.To, id), f.partial
		case group:
		default:
			return // a copy would overwrite what another one reads
		}
	}
	h.Tokens, h.Copy = h.Tokens+f.partial, c
}

// pays says whether a sequence should wait for pending nodes: for at least a slab, or for all that it has to compute of left
// tokens. Many prompts begin with the same few tokens, and it does not pay to compute one after the other for these.
func (m *Manager) pays(f *found, left int) bool {
	return f.soon > f.partial && (f.soon >= m.slabTokens || f.soon == left)
}

// share makes a region begin with the whole slabs of what was found, of windowed groups those from its first one on.
func (m *Manager) share(r *region, f *found) {
	n, most := m.groups.Count(), m.slabsOf(r, r.tokens)
	if m.groups.Full == 0 {
		most = r.first + m.liveOf(r, most)
	}
	r.slabs = make([]int32, f.whole*n, max(f.whole, most)*n)
	for i := range r.slabs {
		r.slabs[i] = -1
	}
	if f.whole == 0 {
		return
	}
	for group := range m.trees {
		path := f.groups[group].path
		for i := r.from(group); i < f.whole; i++ {
			m.ref(r, group, path[i].slab)
			r.slabs[i*n+group] = path[i].slab
		}
		r.paths[group].inTree = f.whole
		m.follow(r, group, path[f.whole-1])
	}
}

// follow makes a node the place in the tree of a group that a region's next slab is below; nil: it has none.
func (m *Manager) follow(r *region, group int, n *node) {
	p := &r.paths[group]
	if n != nil {
		n.pins++
	}
	if p.last != nil {
		p.last.pins--
		m.trees[group].prune(p.last)
	}
	p.last = n
}

// pend adds pending nodes for the rest of a prompt, in the first group: all groups compute a token in one step.
func (m *Manager) pend(r *region, tokens []int32) {
	t, parent := &m.trees[0], m.parent(r, 0)
	for i := r.paths[0].inTree; i*m.slabTokens < len(tokens); i++ {
		part := tokens[i*m.slabTokens : min(len(tokens), (i+1)*m.slabTokens)]
		at, ok := parent.find(part)
		if ok && (!t.slides || parent.children[at].pending) { // another sequence computes it too, or has just computed it
			break
		}
		if !ok {
			t.insert(parent, at, part)
		}
		if parent = parent.children[at]; parent.slab < 0 && i >= r.from(0) {
			parent.pending, parent.by = true, r.seq
			parent.keeps = m.states != nil && !r.imported &&
				m.spec.NextSnapshot((i+1)*m.slabTokens-1, len(tokens), r.branch) == (i+1)*m.slabTokens
			r.pending = append(r.pending, parent)
		}
	}
}

// Slabs returns all slabs leased to a sequence, by position; nil without the sequence. Those that it gave back, see Live, are of no use,
// and those that it never had are -1. The slice is the caller's to read for ever.
func (m *Manager) Slabs(seq Seq) []int32 {
	r := m.regions[seq]
	if r == nil {
		return nil
	}
	if r.head != nil {
		return slices.Concat(r.head, r.slabs)
	}
	return slices.Clip(r.slabs)
}

// Ready returns the sequences whose wait for a prefix has ended since the last call: see ErrComputing.
func (m *Manager) Ready() []Seq {
	ready := m.ready
	m.ready = nil
	return ready
}

// Commit offers the slabs of a sequence's first tokens, whose keys and values are written, to other sequences. With tail
// they get a part of a slab at the end too, where they need no state: its later tokens may be written all the same. A sequence of Reserve
// offers nothing, and one with beams its prompt. Errors: ErrUnknownSequence, ErrBeyondReservation (tokens that are not leased).
func (m *Manager) Commit(seq Seq, tokens []int32, tail bool) error {
	r, ok := m.regions[seq]
	if !ok {
		return fmt.Errorf("%w: commit for %d", ErrUnknownSequence, seq)
	}
	if m.slabsOf(r, len(tokens)) > r.positions() {
		return fmt.Errorf("%w: sequence %d commits %d tokens, leased slabs of %d for %d", ErrBeyondReservation, seq, len(tokens),
			m.slabTokens,
			r.positions())
	}
	for group := len(m.trees) - 1; group >= 0 && r.cached; group-- { // who waits for the first group finds the others
		m.commitTo(r, group, tokens, tail)
	}
	return nil
}

// commitTo offers the slabs of a region's first tokens in one group.
func (m *Manager) commitTo(r *region, group int, tokens []int32, tail bool) {
	p := &r.paths[group]
	for whole := len(tokens) / m.slabTokens; p.inTree < whole; p.inTree++ {
		at := p.inTree * m.slabTokens
		if part := tokens[at : at+m.slabTokens]; p.inTree < r.from(group) {
			m.pass(r, group, part)
		} else if !m.commit(r, group, part) {
			return
		}
	}
	if rest := tokens[min(p.inTree*m.slabTokens, len(tokens)):]; tail && m.states == nil && len(rest) > 0 && p.inTree >= r.from(group) {
		m.commitTail(r, group, rest)
	}
}

// parent is the node below which a region's next slab of a group belongs.
func (m *Manager) parent(r *region, group int) *node {
	if last := r.paths[group].last; last != nil {
		return last
	}
	return m.trees[group].root(r.space)
}

// pass leads a region over a slab of its tokens that it has not.
func (m *Manager) pass(r *region, group int, tokens []int32) {
	t, parent := &m.trees[group], m.parent(r, group)
	at, ok := parent.find(tokens)
	if !ok {
		t.insert(parent, at, tokens)
	}
	n := parent.children[at]
	m.follow(r, group, n)
	t.stored(n)
}

// commit adds the next slab of a region to the tree of a group. If the tree has these tokens from a slab of another region, this one
// holds that slab too, unless it may go before its tokens do: see tree. Where the pool would be unsafe then, it offers nothing from here
// on, and commit returns false.
func (m *Manager) commit(r *region, group int, tokens []int32) bool {
	m.cutTail(r, group)
	t, p, parent := &m.trees[group], &r.paths[group], m.parent(r, group)
	slab := r.at(p.inTree, group)
	at, ok := parent.find(tokens)
	if !ok {
		t.insert(parent, at, tokens)
	}
	n := parent.children[at]
	switch {
	case n.slab < 0:
		m.ready = append(m.ready, t.fill(n, slab)...)
	case n.held && t.slides: // the node stays, as long as the region follows it
	case n.held: // another sequence computed the same tokens meanwhile
		p.doubles++
		if m.ref(r, group, n.slab); !m.alone(r) || !m.safe() {
			m.unref(r, group, n.slab)
			p.doubles--
			r.cached = false
			m.settle(r)
			return false
		}
	default:
		m.free.put(int(t.replace(n, slab)))
	}
	m.follow(r, group, n)
	return true
}

// commitTail adds the next slab of a region, of which only the first tokens are computed. Another one with these and more tokens does as
// well, unless a sequence writes to it: nobody could copy it then.
func (m *Manager) commitTail(r *region, group int, tokens []int32) {
	p, parent := &r.paths[group], m.parent(r, group)
	slab := r.at(p.inTree, group)
	n, common := parent.nearest(tokens, func(n *node) bool {
		return n.slab != slab && (quiet(n) || hasSlab(n) && len(n.tokens) == len(tokens))
	})
	if n != nil && common == len(tokens) {
		return // it is there
	}
	m.cutTail(r, group)
	parent = m.parent(r, group) // a root goes with its last child
	at, ok := parent.find(tokens)
	if !ok {
		m.trees[group].insert(parent, at, tokens)
	}
	p.tail = parent.children[at]
	m.ready = append(m.ready, m.trees[group].fill(p.tail, slab)...)
}

// cutTail takes a region's tail of a group back: its slab has more tokens now.
func (m *Manager) cutTail(r *region, group int) {
	if p := &r.paths[group]; p.tail != nil {
		m.trees[group].remove(p.tail)
		p.tail = nil
	}
}

// Settle says that a sequence commits no more tokens: nobody waits for them from here on.
func (m *Manager) Settle(seq Seq) {
	if r := m.regions[seq]; r != nil {
		m.settle(r)
	}
}

// settle removes the pending nodes of a region.
func (m *Manager) settle(r *region) {
	for _, n := range slices.Backward(r.pending) {
		if n.pending && n.by == r.seq && n.parent != nil { // neither computed nor removed
			m.ready = append(m.ready, m.trees[0].cut(n)...)
		}
	}
	r.pending = nil
}

// Forget empties the prefix trees: the memory has lost its contents. Regions stay, and offer nothing from here on.
func (m *Manager) Forget() {
	for _, r := range m.regions {
		m.settle(r)
		for group, id := range r.twins() {
			m.unref(r, group, id)
		}
		r.cached, r.lent, r.late, r.left = false, nil, nil, nil
		clear(r.paths)
	}
	if m.states != nil {
		for _, v := range m.states.heap {
			m.discard(v)
		}
		m.states = &states{every: m.states.every}
	}
	for id, n := range m.bySlab {
		if n == nil {
			continue
		}
		m.trees[n.group].removed(n)
		if !n.held {
			m.free.put(id)
		}
	}
	clear(m.bySlab)
	for group := range m.trees {
		t := &m.trees[group]
		noted, listed := t.changes, t.cold
		*t = newTree(m.bySlab, group, m.spec, t.worthOf)
		t.changes, t.observer, t.states = noted, m.observer, m.states
		t.cold = cold{wanted: listed.wanted, hollow: listed.hollow, next: -1}
	}
}
