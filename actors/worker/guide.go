package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// guide is the grammar of one sequence. A goroutine computes the masks of the sequence's next step while that step runs; sampling
// reads them and advances the matcher. Only one of both has the guide at a time.
type guide struct {
	gen   *msg.Generate
	make  func() (*grammar.Matcher, error)
	vocab int
	done  chan struct{} // of the loop: receives a value after each computation

	matcher *grammar.Matcher
	masks   []grammar.Mask // of the step's rows: the sequence's own and one for each draft token; reused
	free    []bool         // of them, those that allow everything
	rows    int            // of them, those that are computed: a draft token that is not allowed is the last
	ahead   int            // draft tokens that the matcher has taken
	err     error

	mu      sync.Mutex
	running bool
	late    func() // called when the computation ends; nil: nobody waits for it
	closed  bool
}

func (l *loop) newGuide(g *msg.Generate) *guide {
	q := &guide{gen: g, vocab: l.Runner.Vocab(), done: l.masked}
	q.make = func() (*grammar.Matcher, error) {
		return l.Grammars.Matcher(g.Tenant, g.Grammar, grammar.Options{Vocab: q.vocab, Longest: g.Longest}, g.Generated)
	}
	return q
}

// compute starts the computation of the masks of the next step, which has draft tokens, the first of them forced.
func (g *guide) compute(drafts []int32, forced int) {
	drafts = slices.Clone(drafts)
	g.mu.Lock()
	g.running = true
	g.mu.Unlock()
	go func() {
		g.err = g.maskRows(drafts, forced)
		g.finish()
	}()
}

func (g *guide) finish() {
	g.mu.Lock()
	g.running = false
	late, closed := g.late, g.closed
	g.late = nil
	g.mu.Unlock()
	if closed {
		g.release()
		return
	}
	if late != nil {
		late()
		return
	}
	select {
	case g.done <- struct{}{}:
	default:
	}
}

// maskRows computes the masks of a step's rows. Rows before forced tokens need none.
func (g *guide) maskRows(drafts []int32, forced int) (err error) {
	g.rows, g.ahead = 0, 0
	if g.matcher == nil {
		if g.matcher, err = g.make(); err != nil {
			return err
		}
	}
	for {
		if err := g.maskRow(g.rows >= forced); err != nil {
			return err
		}
		row := g.rows - 1
		if row == len(drafts) || !g.free[row] && !g.masks[row].Allows(drafts[row]) {
			return nil
		}
		ok, err := g.matcher.Advance(drafts[row])
		if !ok || err != nil {
			return err
		}
		g.ahead++
	}
}

// maskRow computes the mask of the next row, if it is needed.
func (g *guide) maskRow(needed bool) error {
	if g.rows == len(g.masks) {
		g.masks, g.free = append(g.masks, grammar.NewMask(g.vocab)), append(g.free, false)
	}
	at := g.rows
	if g.free[at] = !needed || g.matcher.Free(); !g.free[at] {
		if err := g.matcher.Mask(g.masks[at]); err != nil {
			return err
		}
	}
	g.rows++
	return nil
}

// mask returns the mask of a row of the step, nil for all tokens.
func (g *guide) mask(row int) ([]uint32, error) {
	switch {
	case g.err != nil:
		return nil, g.err
	case row >= g.rows:
		return nil, fmt.Errorf("%w: no mask for row %d of a step", grammar.ErrToken, row)
	case g.free[row]:
		return nil, nil
	}
	return g.masks[row], nil
}

// take advances the matcher by the sampled tokens. All but the last one are draft tokens.
func (g *guide) take(tokens int, last int32) error {
	back := g.ahead - (tokens - 1)
	if g.err == nil && back < 0 {
		g.err = fmt.Errorf("%w: %d tokens were drawn, expected at most %d", grammar.ErrToken, tokens, g.ahead+1)
	}
	if g.err != nil {
		return g.err
	}
	if err := g.matcher.Rollback(back); err != nil {
		return err
	}
	ok, err := g.matcher.Advance(last)
	if err == nil && !ok {
		err = fmt.Errorf("%w: token %d was drawn", grammar.ErrToken, last)
	}
	g.matcher.Commit()
	return err
}

// mostForced is the number of forced tokens that a sequence takes at once.
const mostForced = 64

// forced returns the tokens that must follow, or the first of them.
func (g *guide) forced(buffer []int32, most int) ([]int32, error) {
	if most <= 0 {
		return nil, nil
	}
	tokens := slices.Grow(buffer, most)[:most]
	n, err := g.matcher.Forced(tokens)
	for i, token := range tokens[:n] {
		if int(token) >= g.vocab {
			return tokens[:i], err
		}
	}
	return tokens[:n], err
}

// ready reports whether the masks are computed.
func (g *guide) ready() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return !g.running
}

// after makes late be called when the computation ends; false if it has ended.
func (g *guide) after(late func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		g.late = late
	}
	return g.running
}

// close frees the matcher, now or after the computation.
func (g *guide) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	if g.closed = true; !g.running {
		g.release()
	}
}

func (g *guide) release() {
	if g.matcher != nil {
		g.matcher.Close()
	}
}

// failure is the error of the sequence's request.
func (l *loop) failure(s *sequence, err error) error {
	if s.guide == nil || errors.Is(err, sample.ErrLogits) {
		return &api.Error{Code: api.CodeInternal, Message: err.Error()}
	}
	if !errors.Is(err, grammar.ErrSpec) { // else another compilation gives the same
		l.Grammars.Forget(s.gen.Tenant, s.gen.Grammar)
	}
	return api.GrammarError(s.gen.Grammar, err)
}

// maskPatience is how long a step waits at most for masks. A sequence whose masks come later gets its token later, and
// others do not wait for it.
const maskPatience = 2 * time.Millisecond

// awaitMasks waits for the masks of the step's outputs, and takes the outputs out whose masks are late.
func (l *loop) awaitMasks() {
	var patience <-chan time.Time
	for i := range l.outputs {
		o := &l.outputs[i]
		g := o.seq.guide
		if g == nil || o.scores > 0 {
			continue
		}
		for !g.ready() && !o.late {
			if patience == nil {
				patience = time.After(cmp.Or(l.MaskPatience, max(maskPatience, l.took/16)))
			}
			select {
			case <-l.masked:
			case <-patience:
				expired := make(chan time.Time)
				close(expired) // for the next ones, too
				patience = expired
				o.late = l.postpone(o)
			}
		}
	}
}

// latelySampled says that the masks of a sequence are there whose output was postponed.
type latelySampled struct{ seq *sequence }

// postpone keeps the logits of an output until its masks are there; false if they are.
func (l *loop) postpone(o *output) bool {
	s := o.seq
	s.postponed = &postponed{output: *o, logits: make(keptLogits, 1+o.drafts-o.forced)}
	for i := range s.postponed.logits {
		s.postponed.logits[i] = slices.Clone(l.logits.Row(o.row + i))
	}
	s.postponed.row = 0
	late := s.guide.after(func() { l.inbox.push(&latelySampled{s}) })
	if !late {
		s.postponed = nil
	}
	return late
}

// postponed is an output whose masks were late.
type postponed struct {
	output
	logits keptLogits
}

// keptLogits are rows that outlive their step.
type keptLogits [][]float32

// Hidden returns nothing: no sequence with a grammar has hidden states.
func (k keptLogits) Hidden(int) []float32 { return nil }

// Row returns a row.
func (k keptLogits) Row(i int) []float32 { return k[i] }

var _ compute.Logits = keptLogits(nil)

// sampleLate draws the tokens of a sequence whose masks were late.
func (l *loop) sampleLate(s *sequence) {
	p := s.postponed
	s.postponed = nil
	if p == nil || s.endIsSent || l.sequences[s.id()] != s {
		return
	}
	p.err = s.sample(stepRows{Logits: p.logits}, &p.output, &l.samplers[0].scratch)
	l.accept(&p.output, 0)
	if s.cancelled {
		l.events = append(l.events, sched.Cancel(s.id()))
	}
}
