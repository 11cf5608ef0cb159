package actors

import (
	"context"
	"fmt"
	"runtime"
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

// BenchmarkStreams is the cost of a token from the device to the reader, with so many
// streams at once. Allocations are those of everything: of short streams most are the
// requests', of long ones the tokens'.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []struct{ streams, tokens int }{{1, 1000}, {64, 1000}, {1000, 100}} {
		b.Run(fmt.Sprintf("streams=%d/tokens=%d", n.streams, n.tokens), func(b *testing.B) { benchmarkStreams(b, n.streams, n.tokens) })
	}
}

func benchmarkStreams(b *testing.B, streams, tokens int) {
	tok, err := tokenizer.Load("../models/tiny-chat")
	if err != nil {
		b.Fatal(err)
	}
	d := computetest.NewNull(streams*(tokens/computetest.SlabTokens+4), tok.VocabSize(), 300)
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
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
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
	runtime.ReadMemStats(&after)
	made := float64(b.N * streams * tokens)
	b.ReportMetric(made/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/made, "ns/token")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/made, "allocs/token")
}
