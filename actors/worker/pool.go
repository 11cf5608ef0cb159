package worker

import (
	"math"
	"slices"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// pool is the vector of a sequence that generates nothing. It is computed like any prompt, in chunks. The sum of its hidden states grows by
// one token after the other in the order of the prompt, so that its bits do not depend on the chunks.
type pool struct {
	*api.Pool
	sum    []float64 // of the hidden states of the first tokens
	tokens int       // of them
	vector []float32 // of PoolLogits, PoolLogprobs and PoolClasses
}

func newPool(p *api.Pool, width int) *pool {
	switch p.Pooling {
	case api.PoolLogits, api.PoolLogprobs, api.PoolClasses, api.PoolNone:
		width = 0
	case api.PoolLast, api.PoolMean, api.PoolText:
	}
	return &pool{Pool: p, sum: make([]float64, width)}
}

// ask makes rows have the hidden states that the vector is made of.
func (p *pool) ask(rows *compute.Rows) {
	switch p.Pooling {
	case api.PoolMean:
		rows.Hidden, rows.Output = len(rows.Tokens), false
	case api.PoolLast, api.PoolText:
		if rows.Output {
			rows.Hidden, rows.Output = 1, false
		}
	case api.PoolLogits, api.PoolLogprobs, api.PoolClasses, api.PoolNone:
	}
}

// add adds the hidden state of the token at a position. Those that it has are computed again after a loss of KV memory.
func (p *pool) add(position int, hidden []float32) {
	if p.Pooling == api.PoolMean && position < p.tokens {
		return
	}
	for i, v := range hidden {
		p.sum[i] += float64(v)
	}
	p.tokens++
}

// logits takes the vector from the logits after the last token.
func (p *pool) logits(row []float32) (err error) {
	switch p.Pooling {
	case api.PoolClasses:
		p.vector = slices.Clone(row)
	case api.PoolLogprobs:
		p.vector, err = sample.Logprobs(row, p.Tokens)
	case api.PoolLogits, api.PoolLast, api.PoolMean, api.PoolText, api.PoolNone:
		p.vector = make([]float32, len(p.Tokens))
		for i, id := range p.Tokens {
			p.vector[i] = row[id]
		}
	}
	return err
}

// result returns the vector.
func (p *pool) result() []float32 {
	if p.vector == nil {
		p.vector = make([]float32, len(p.sum))
		for i, v := range p.sum {
			p.vector[i] = float32(v / float64(p.tokens))
		}
	}
	return p.vector
}

// pooled are the rows of a sequence in a step whose hidden states are read.
type pooled struct {
	seq  *sequence
	rows compute.Rows
	last bool // of them is the prompt's
}

// readPools adds the hidden states of the step to their sequences' vectors.
func (l *loop) readPools() {
	next := 0
	for i := range l.pools {
		p := &l.pools[i]
		position := p.rows.Position + len(p.rows.Tokens) - p.rows.Hidden
		for k := range p.rows.Hidden {
			p.seq.pool.add(position+k, l.logits.Hidden(next))
			next++
		}
		if p.last {
			l.endPool(p.seq)
		}
	}
}

// score takes the log probability of a token of the prompt from the logits of the row before it.
func (s *sequence) score(row []float32, at int) (err error) {
	s.scored[at-1], err = sample.Score(row, s.gen.Prompt[at], *s.gen.Scored)
	return err
}

// addScores adds the log probabilities of the prompt to the first token of a sequence, or to its end.
func (s *sequence) addScores(t *msg.Token) {
	if s.scored == nil {
		return
	}
	if t.Extra == nil {
		t.Extra = &msg.Extra{}
	}
	t.Extra.Scored, t.Extra.Prompt, t.Extra.First, s.scored = true, s.scored, s.gen.Prompt[0], nil
}

// endPool sends the vector of a sequence, which ends it.
func (l *loop) endPool(s *sequence) {
	vector := s.pool.result()
	for _, v := range vector {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			l.end(s, api.FinishError, &api.Error{Code: api.CodeInternal, Message: "the model's output is no finite number"})
			l.events = append(l.events, sched.Finished(s.id(), sched.ReasonError))
			return
		}
	}
	t := msg.Token{Finish: api.FinishStop, Extra: &msg.Extra{Vector: vector}, Cached: s.cached}
	if s.pool.Pooling == api.PoolNone {
		t.Finish = api.FinishLength
	}
	s.addScores(&t)
	l.sendEnd(s, t)
	l.events = append(l.events, sched.Finished(s.id(), sched.ReasonStop))
}
