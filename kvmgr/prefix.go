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

// Copy is a slab to copy in part: the first Tokens tokens of slab From to slab To. There is nothing to copy when Tokens
// is 0.
type Copy struct {
	From, To int32
	Tokens   int
}

// Prompt is the known tokens of a sequence that begins: their keys and values may be in the pool already.
type Prompt struct {
	// Space names what keys and values depend on besides tokens, and who may share them: adapter, tenant, salt.
	Space  string
	Tokens []int32 // not kept
}

// Hit is the part of a prompt whose keys and values are there.
type Hit struct {
	Tokens int  // that need not be computed, at most all but the last one
	Slabs  int  // that hold them: the first ones of the sequence. With a window the sequence has the last of these only, see Live
	Copy   Copy // of the last of these slabs: do it before the next step
}

// ReservePrompt is Reserve for a sequence that begins with the tokens of p. It leases the slabs of their
// longest prefix that is computed. Errors: those of Reserve, and ErrComputing.
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

// begin admits a region that begins with the slabs of a prompt's longest computed prefix, less those before its slab from.
func (m *Manager) begin(r *region, p Prompt, from int) (Hit, error) {
	m.tree.clock++
	// The last token is always computed: the first token of the answer is sampled from its logits.
	last := len(p.Tokens) - 1
	found := m.tree.match(p.Space, p.Tokens[:last], m.sees(r))
	whole := len(found.path) * m.slabTokens
	if m.pays(&found, last-whole) {
		found.pending.waiters = append(found.pending.waiters, r.seq)
		return Hit{}, &ComputingError{Seq: r.seq, By: found.pending.by, Tokens: whole + found.soon}
	}
	if from > len(found.path) {
		found.partial = 0
	}
	r.cached, r.space, r.first = true, p.Space, max(found.first, from)
	if err := m.add(r, found.path); err != nil {
		return Hit{}, err
	}
	for _, n := range r.rest(found.path) {
		n.uses++
		m.tree.touch(n)
	}
	h := Hit{Tokens: whole + found.partial, Slabs: len(found.path)}
	if found.partial > 0 {
		m.tree.touch(found.next)
		from := found.next.slab // the lease may evict it, and even return it: its contents stay until a step
		to := m.extend(r, len(r.slabs)+1)[0]
		m.leased(r.seq, len(found.path), []int32{to})
		if to != from {
			h.Copy = Copy{From: from, To: to, Tokens: found.partial}
		}
		h.Slabs++
	}
	m.pend(r, p.Tokens)
	return h, nil
}

// sees is the window of a region's tokens. A beam search keeps all slabs of its prompt.
func (m *Manager) sees(r *region) int {
	if r.prompt > 0 {
		return 0
	}
	return m.tree.window
}

// pays says whether a sequence should wait for pending nodes: for at least a slab, or for all that it has to compute of left
// tokens. Many prompts begin with the same few tokens, and it does not pay to compute one after the other for these.
func (m *Manager) pays(found *match, left int) bool {
	return found.soon > found.partial && (found.soon >= m.slabTokens || found.soon == left)
}

// share makes a region begin with the slabs of a path, those from its first one on.
func (m *Manager) share(r *region, path []*node) {
	r.slabs = make([]int32, 0, r.first+r.quota)
	for range r.first {
		r.slabs = append(r.slabs, -1)
	}
	for _, n := range r.rest(path) {
		m.ref(r, n.slab)
		r.slabs = append(r.slabs, n.slab)
	}
	if r.inTree = len(path); r.inTree > 0 {
		m.follow(r, path[r.inTree-1])
	}
}

// follow makes a node the place in the tree that a region's next slab is below; nil: it has none.
func (m *Manager) follow(r *region, n *node) {
	if n != nil {
		n.pins++
	}
	if r.last != nil {
		r.last.pins--
		m.tree.prune(r.last)
	}
	r.last = n
}

// pend adds pending nodes for the rest of a prompt.
func (m *Manager) pend(r *region, tokens []int32) {
	parent := m.parent(r)
	for i := r.inTree; i*m.slabTokens < len(tokens); i++ {
		part := tokens[i*m.slabTokens : min(len(tokens), (i+1)*m.slabTokens)]
		at, ok := parent.find(part)
		if ok && (m.tree.window == 0 || parent.children[at].pending) { // another sequence computes it too, or has just computed it
			break
		}
		if !ok {
			m.tree.insert(parent, at, part)
		}
		if parent = parent.children[at]; parent.slab < 0 && i >= r.first {
			parent.pending, parent.by = true, r.seq
			r.pending = append(r.pending, parent)
		}
	}
}

// Slabs returns all slabs leased to a sequence, by position; nil without the sequence. Those that it gave back, see Live, are of no use. The
// slice is the caller's to read for ever.
func (m *Manager) Slabs(seq Seq) []int32 {
	r := m.regions[seq]
	if r == nil {
		return nil
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
// they get a part of a slab at the end too: its later tokens may be written all the same. A sequence of Reserve
// offers nothing, and one with beams its prompt. Errors: ErrUnknownSequence, ErrBeyondReservation (tokens that are not leased).
func (m *Manager) Commit(seq Seq, tokens []int32, tail bool) error {
	r, ok := m.regions[seq]
	if !ok {
		return fmt.Errorf("%w: commit for %d", ErrUnknownSequence, seq)
	}
	if m.slabsFor(len(tokens)) > len(r.slabs) {
		return fmt.Errorf("%w: sequence %d commits %d tokens, leased %d slabs of %d", ErrBeyondReservation, seq, len(tokens), len(r.slabs), m.slabTokens)
	}
	if !r.cached {
		return nil
	}
	for whole := len(tokens) / m.slabTokens; r.inTree < whole; r.inTree++ {
		at := r.inTree * m.slabTokens
		if part := tokens[at : at+m.slabTokens]; r.inTree < r.first {
			m.pass(r, part)
		} else if !m.commit(r, part) {
			return nil
		}
	}
	if rest := tokens[min(r.inTree*m.slabTokens, len(tokens)):]; tail && len(rest) > 0 {
		m.commitTail(r, rest)
	}
	return nil
}

// parent is the node below which a region's next slab belongs.
func (m *Manager) parent(r *region) *node {
	if r.last == nil {
		return m.tree.root(r.space)
	}
	return r.last
}

// pass leads a region over a slab of its tokens that it has not.
func (m *Manager) pass(r *region, tokens []int32) {
	parent := m.parent(r)
	at, ok := parent.find(tokens)
	if !ok {
		m.tree.insert(parent, at, tokens)
	}
	n := parent.children[at]
	m.follow(r, n)
	m.tree.stored(n)
}

// commit adds the next slab of a region to the tree. If the tree has these tokens from a slab of another region, this one
// holds that slab too, unless it may go before its tokens do: see tree. Where the pool would be unsafe then, it offers nothing from here on,
// and commit returns false.
func (m *Manager) commit(r *region, tokens []int32) bool {
	m.cutTail(r)
	parent, slab := m.parent(r), r.slabs[r.inTree]
	at, ok := parent.find(tokens)
	if !ok {
		m.tree.insert(parent, at, tokens)
	}
	n := parent.children[at]
	switch {
	case n.slab < 0:
		m.ready = append(m.ready, m.tree.fill(n, slab)...)
	case n.held && m.tree.window > 0: // the node stays, as long as the region follows it
	case n.held: // another sequence computed the same tokens meanwhile
		r.doubles++
		if m.ref(r, n.slab); !m.alone(r) || !m.safe() {
			m.unref(r, n.slab)
			r.doubles--
			r.cached = false
			m.settle(r)
			return false
		}
	default:
		m.free.put(int(m.tree.replace(n, slab)))
	}
	m.follow(r, n)
	return true
}

// commitTail adds the next slab of a region, of which only the first tokens are computed.
func (m *Manager) commitTail(r *region, tokens []int32) {
	parent, slab := m.parent(r), r.slabs[r.inTree]
	n, common := parent.nearest(tokens, func(n *node) bool { return n.slab >= 0 && n.slab != slab })
	if n != nil && common == len(tokens) {
		return // it is there
	}
	m.cutTail(r)
	parent = m.parent(r) // a root goes with its last child
	at, ok := parent.find(tokens)
	if !ok {
		m.tree.insert(parent, at, tokens)
	}
	r.tail = parent.children[at]
	m.ready = append(m.ready, m.tree.fill(r.tail, slab)...)
}

// cutTail takes a region's tail back: its slab has more tokens now.
func (m *Manager) cutTail(r *region) {
	if r.tail != nil {
		m.tree.remove(r.tail)
		r.tail = nil
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
			m.ready = append(m.ready, m.tree.cut(n)...)
		}
	}
	r.pending = nil
}

// Forget empties the prefix tree: the memory has lost its contents. Regions stay, and offer nothing from here on.
func (m *Manager) Forget() {
	for _, r := range m.regions {
		m.settle(r)
		for id := range r.twins() {
			m.unref(r, id)
		}
		r.cached, r.last, r.inTree, r.tail, r.doubles = false, nil, 0, nil, 0
	}
	for id, n := range m.tree.bySlab {
		if n == nil {
			continue
		}
		m.tree.removed(n)
		if !n.held {
			m.free.put(id)
		}
	}
	noted, wanted := m.tree.changes, m.tree.cold.wanted
	m.tree = newTree(len(m.refs), m.slabTokens, m.tree.window, m.tree.worthOf)
	m.tree.changes, m.tree.cold.wanted, m.tree.observer = noted, wanted, m.observer
}
