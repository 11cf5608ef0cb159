package sched

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/kvmgr"
)

// churn keeps a scheduler full: every output is sampled, every answer of the KV
// manager comes one step later, and each sequence that ends is replaced.
type churn struct {
	s         *Scheduler
	next      ID
	events    []Event
	submitted []Sequence // of events
}

func newChurn(tb testing.TB, size int) *churn {
	tb.Helper()
	s, err := New(Config{
		MaxBatchTokens: 2*size + 256, ChunkTokens: 256, MaxBatchSize: size, MaxWaiting: size,
		WaitingServedRatio: 0.3, MaxSequenceTokens: 4096, KV: kvmgr.NewSpec(16, kvmgr.Full{}), LeaseAheadTokens: 32,
	})
	if err != nil {
		tb.Fatal(err)
	}
	c := &churn{s: s, submitted: make([]Sequence, 2*size)}
	for range 2 * size {
		c.submit()
	}
	for range 3000 { // until every buffer has its size
		c.step(tb)
	}
	return c
}

func (c *churn) submit() {
	c.next++
	n := int(c.next)
	q := &c.submitted[n%len(c.submitted)]
	*q = Sequence{ID: c.next, PromptTokens: 50 + n%100, MaxNewTokens: 100 + n%37}
	c.events = append(c.events, Submit(q))
}

// step is a round; a step that is held is taken again with the answer.
func (c *churn) step(tb testing.TB) (rows int) {
	p := c.plan(tb)
	for p.Hold {
		p = c.plan(tb)
	}
	return p.Rows
}

func (c *churn) plan(tb testing.TB) *Plan {
	p, err := c.s.Step(0, c.events)
	if err != nil {
		tb.Fatal(err)
	}
	c.events = c.events[:0]
	for _, r := range p.Reserve {
		c.events = append(c.events, Granted(r.ID, r.Lease))
	}
	for _, l := range p.Lease {
		c.events = append(c.events, Granted(l.ID, l.UpTo))
	}
	for _, k := range p.Chunks {
		if k.Output {
			c.events = append(c.events, Sampled(k.ID))
		}
	}
	for range p.Ended {
		c.submit()
	}
	return p
}

func TestStepDoesNotAllocate(t *testing.T) {
	c := newChurn(t, 37)
	if n := testing.AllocsPerRun(2000, func() { c.step(t) }); n != 0 {
		t.Errorf("%g allocations per step", n)
	}
	if c.s.Running() == 0 {
		t.Error("nothing runs")
	}
}

func BenchmarkStep(b *testing.B) {
	for _, size := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			c := newChurn(b, size)
			b.ReportAllocs()
			rows := 0
			for b.Loop() {
				rows += c.step(b)
			}
			b.ReportMetric(float64(rows)/float64(b.N), "rows/step")
		})
	}
}
