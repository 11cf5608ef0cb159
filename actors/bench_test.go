package actors

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// BenchmarkStreams is the cost of a token from the device to the reader, with
// 1,000 streams at once.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 1000, 100
	tok, err := tokenizer.Load("../models/tiny-chat")
	if err != nil {
		b.Fatal(err)
	}
	d := computetest.NewNull(streams*8, tok.VocabSize(), 300)
	p, err := New(Config{
		ModelID: "m", Model: d, Tokenizer: tok, Context: 2048,
		Sched: sched.Config{
			MaxBatchTokens: streams, MaxBatchSize: streams, MaxSequenceTokens: 2048,
			SlabTokens: computetest.SlabTokens, LeaseAheadTokens: 2 * computetest.SlabTokens,
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
