package actors

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// nullDevice answers at once: what is left is the pipeline's own cost.
type nullDevice struct {
	slabs  int
	logits []float32
}

func (d *nullDevice) Slabs() int                                 { return d.slabs }
func (d *nullDevice) SlabTokens() int                            { return testSlabTokens }
func (d *nullDevice) Vocab() int                                 { return len(d.logits) }
func (d *nullDevice) NewRegion(int) (compute.Region, error)      { return nullRegion{}, nil }
func (d *nullDevice) Run([]compute.Rows) (compute.Logits, error) { return d, nil }
func (d *nullDevice) Row(int) []float32                          { return d.logits }
func (d *nullDevice) Reload() error                              { return nil }

type nullRegion struct{}

func (nullRegion) Append([]int32) error { return nil }
func (nullRegion) Close()               {}

// BenchmarkStreams is the cost of a token from the device to the reader, with
// 1,000 streams at once.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 1000, 100
	tok, err := tokenizer.Load("../models/tiny-chat")
	if err != nil {
		b.Fatal(err)
	}
	d := &nullDevice{slabs: streams * 8, logits: make([]float32, 4096)}
	d.logits[300] = 1
	p, err := New(Config{
		ModelID: "m", Model: d, Tokenizer: tok, Context: 2048,
		Sched: sched.Config{
			MaxBatchTokens: streams, MaxBatchSize: streams, MaxSequenceTokens: 2048,
			SlabTokens: testSlabTokens, LeaseAheadTokens: 2 * testSlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close(context.Background()) //nolint:errcheck // nothing is running
	b.ReportAllocs()
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() {
				s, err := p.Submit(context.Background(), tokensRequest(strconv.Itoa(i), []int32{1, 2, 3}, tokens))
				if err != nil {
					b.Error(err)
					return
				}
				if _, last, err := read(s); err != nil || last.Finish != api.FinishLength {
					b.Error(err, last)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N)*streams*tokens/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(streams*tokens), "ns/token")
}
