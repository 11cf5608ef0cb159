package grammar

import (
	"errors"
	"fmt"
	"slices"
)

// ErrToken means a token that the grammar does not allow where it came. The sequence was made with another grammar.
var ErrToken = errors.New("grammar: token not allowed")

// phase is where a sequence is.
type phase uint8

const (
	free   phase = iota // before the end of Spec.After: anything may come
	inside              // of the grammar
	ended               // nothing may follow but an end
	either              // free, on the way to Spec.Opening, or inside: more tokens decide
)

// Matcher follows one sequence. It depends on the Spec and the tokens only, so that a new one, advanced by the same
// tokens, takes its place. It is for one goroutine at a time.
type Matcher struct {
	spec    *Spec
	vocab   Vocabulary
	marker  *marker // nil: none
	program Program
	size    int  // of masks, in tokens
	longest bool // see Options
	now     state
	past    []state // one before each token that Rollback can take back
}

// state is a place in a sequence.
type state struct {
	phase phase
	at    place // free, either
	run   *run  // inside, and after it: the automaton; either: nil if the grammar does not allow the tokens so far
	depth int   // tokens that run had taken
}

// run is an automaton that has taken some tokens.
type run struct {
	automaton Automaton
	taken     int
	closed    bool
}

// close frees the automaton, unless it is kept.
func (r *run) close(keep *run) {
	if r != nil && r != keep && !r.closed {
		r.closed = true
		r.automaton.Close()
	}
}

// Options of a Matcher.
type Options struct {
	Vocab   int  // size of the model's vocabulary: of masks. Tokens that the grammar's vocabulary lacks are not allowed inside
	Longest bool // an end is allowed only where nothing else is (ignore_eos)
}

// newMatcher returns a matcher before the first token.
func newMatcher(s *Spec, v Vocabulary, m *marker, p Program, o Options) (*Matcher, error) {
	q := &Matcher{spec: s, vocab: v, marker: m, program: p, size: o.Vocab, longest: o.Longest}
	if m == nil {
		return q, q.enter(&q.now)
	}
	if m.first.stage == undecided {
		err := q.enter(&q.now)
		q.now.phase, q.now.at = either, m.first
		return q, err
	}
	q.now.at = m.first
	return q, nil
}

// enter begins the grammar.
func (m *Matcher) enter(s *state) error {
	a, err := m.program.Start()
	if err != nil {
		return err
	}
	*s = state{phase: inside, run: &run{automaton: a}}
	return nil
}

// Free reports whether anything may come, so that no mask is needed.
func (m *Matcher) Free() bool {
	return m.now.phase == free && m.spec.Optional && len(m.marker.across(m.vocab, m.now.at)) == 0
}

// Mask sets the bits of the tokens that may come next, and clears the others. The mask has the size of Options.Vocab.
func (m *Matcher) Mask(mask Mask) error {
	switch m.now.phase {
	case free:
		m.freeMask(mask)
	case ended:
		mask.fill(0)
		m.ends(mask.allow)
	default:
		mask.fill(0)
		if m.now.run != nil {
			if err := m.now.run.automaton.Mask(mask); err != nil {
				return err
			}
		}
		if m.now.phase == either {
			m.openingMask(mask)
		}
		if m.longest {
			m.withoutEnds(mask)
		}
	}
	if mask.empty() {
		return fmt.Errorf("%w: the grammar allows no token of the model here", ErrToken)
	}
	return nil
}

func (m *Matcher) freeMask(mask Mask) {
	mask.fill(^uint32(0))
	if !m.spec.Optional {
		m.ends(mask.forbid)
	}
	for _, id := range m.marker.across(m.vocab, m.now.at) {
		mask.forbid(id)
	}
	for id := m.size; id < 32*len(mask); id++ {
		mask.forbid(int32(id))
	}
}

// openingMask allows the tokens that lead to the free part, too.
func (m *Matcher) openingMask(mask Mask) {
	for _, id := range m.marker.toOpening(m.vocab, m.now.at) {
		if int(id) < m.size {
			mask.allow(id)
		}
	}
}

// withoutEnds forbids the ends unless nothing else is allowed.
func (m *Matcher) withoutEnds(mask Mask) {
	m.ends(mask.forbid)
	if mask.empty() {
		m.ends(mask.allow)
	}
}

func (m *Matcher) ends(do func(id int32)) {
	for _, id := range m.vocab.Ends() {
		do(id)
	}
}

// Advance takes the next token. ok: the grammar allows it; else nothing changes.
func (m *Matcher) Advance(token int32) (ok bool, err error) {
	next, ok, err := m.after(token)
	if !ok || err != nil {
		return false, err
	}
	m.past = append(m.past, m.now)
	m.now = next
	return true, nil
}

func (m *Matcher) after(token int32) (next state, ok bool, err error) {
	next = m.now
	isEnd := slices.Contains(m.vocab.Ends(), token)
	switch {
	case isEnd && (next.phase == ended || next.phase == inside || next.phase == either):
		next.phase = ended // where the grammar may end: only a mask that allows an end leads here
		return next, true, nil
	case next.phase == ended, isEnd && !m.spec.Optional:
		return next, false, nil
	case next.phase == free:
		return m.afterFree(token)
	case next.phase == either:
		return m.afterEither(token)
	}
	taken, over, err := next.run.automaton.Advance(token)
	if !taken || err != nil {
		return next, false, err
	}
	next.run.taken++
	next.depth = next.run.taken
	switch {
	case over && m.spec.Repeat:
		next = state{phase: free, run: next.run, depth: next.depth}
	case over:
		next.phase = ended
	}
	return next, true, nil
}

func (m *Matcher) afterFree(token int32) (next state, ok bool, err error) {
	next = m.now
	more := m.vocab.Bytes(token)
	now, read := m.marker.next(next.at, more)
	switch {
	case !m.marker.ends(now):
		next.at = now
	case read < len(more):
		return next, false, nil
	default:
		err = m.enter(&next)
	}
	return next, err == nil, err
}

// afterEither takes a token for the free part, for the grammar, or for both.
func (m *Matcher) afterEither(token int32) (next state, ok bool, err error) {
	next = m.now
	opens := slices.Contains(m.marker.toOpening(m.vocab, next.at), token)
	at, _ := m.marker.next(next.at, m.vocab.Bytes(token))
	if opens && at.stage != undecided {
		next = state{phase: free, at: at}
		if m.marker.ends(at) {
			err = m.enter(&next)
		}
		return next, err == nil, err
	}
	taken, over := false, false
	if next.run != nil {
		if taken, over, err = next.run.automaton.Advance(token); err != nil {
			return next, false, err
		}
	}
	switch {
	case taken:
		next.run.taken++
		next.depth = next.run.taken
	case opens: // the grammar is out
		next.run, next.depth = nil, 0
	default:
		return next, false, nil
	}
	switch next.at = at; {
	case !opens && over:
		next.phase = ended
	case !opens:
		next.phase = inside
	}
	return next, true, nil
}

// Forced fills tokens with the ones that the mask allows alone, one after the other, and returns their number.
func (m *Matcher) Forced(tokens []int32) (int, error) {
	if len(tokens) == 0 || m.now.phase != inside { // an end is drawn: the rows after it would be of no use
		return 0, nil
	}
	return m.now.run.automaton.Forced(tokens)
}

// Ended reports whether the answer may have no further token.
func (m *Matcher) Ended() bool { return m.now.phase == ended }

// Rollback takes back the last n tokens, which came after the last Commit.
func (m *Matcher) Rollback(n int) error {
	if n == 0 {
		return nil
	}
	if n > len(m.past) {
		return fmt.Errorf("grammar: rollback of %d tokens, expected at most %d", n, len(m.past))
	}
	from := len(m.past) - n
	back := m.past[from]
	m.now.run.close(back.run)
	for _, s := range m.past[from:] {
		s.run.close(back.run)
	}
	m.past, m.now = m.past[:from], back
	if r := back.run; r != nil && r.taken > back.depth {
		err := r.automaton.Rollback(r.taken - back.depth)
		r.taken = back.depth
		return err
	}
	return nil
}

// Commit keeps the tokens so far: Rollback cannot take them back.
func (m *Matcher) Commit() {
	for _, s := range m.past {
		s.run.close(m.now.run)
	}
	m.past = m.past[:0]
}

// Replay takes the tokens of a sequence that began elsewhere. A token that is not allowed is an ErrToken.
func (m *Matcher) Replay(tokens []int32) error {
	for i, token := range tokens {
		ok, err := m.Advance(token)
		if err != nil {
			return err
		}
		if !ok {
			return fmt.Errorf("%w: token %d of the answer is %d", ErrToken, i, token)
		}
		m.Commit()
	}
	return nil
}

// Close frees the matcher's memory.
func (m *Matcher) Close() {
	m.Commit()
	m.now.run.close(nil)
}
