package node

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// BenchmarkStreams is the cost of a token from the device to the reader, with a number of
// streams at once. Allocations are those of everything: of short streams most are the
// requests', of long ones the tokens'.
func BenchmarkStreams(b *testing.B) {
	for _, n := range []struct{ streams, tokens int }{{1, 1000}, {64, 1000}, {1000, 100}} {
		b.Run(fmt.Sprintf("streams=%d/tokens=%d", n.streams, n.tokens), func(b *testing.B) { benchmarkStreams(b, n.streams, n.tokens) })
	}
}

// benchPipeline runs on a device that costs nothing, with room for the streams and their tokens.
func benchPipeline(b *testing.B, streams, tokens int) *Node {
	tok, err := tokenizer.Load("../../models/tiny-chat")
	if err != nil {
		b.Fatal(err)
	}
	d := computetest.NewNull(streams*(tokens/computetest.SlabTokens+4), tok.VocabSize(), 300)
	p, err := New(Config{
		ModelID: "m", Model: d, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: 2048},
		Sched: sched.Config{
			MaxBatchTokens: streams, MaxBatchSize: streams, MaxSequenceTokens: 2048,
			KV: kvmgr.NewSpec(computetest.SlabTokens, kvmgr.Full{}), LeaseAheadTokens: 2 * computetest.SlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { p.Close(context.Background()) }) //nolint:errcheck // nothing is running
	return p
}

// benchRequest requests a number of tokens and reads them; false: something went wrong.
func benchRequest(b *testing.B, p *Node, id, tokens int) bool {
	s, err := p.Submit(context.Background(), tokensRequest(strconv.Itoa(id), []int32{1, 2, 3}, tokens))
	if err != nil {
		b.Error(err)
		return false
	}
	_, last, err := read(s)
	if err != nil || last.Finish != api.FinishLength {
		b.Error(err, last)
		return false
	}
	return true
}

func benchmarkStreams(b *testing.B, streams, tokens int) {
	p := benchPipeline(b, streams, tokens)
	b.ReportAllocs()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for b.Loop() {
		var wg sync.WaitGroup
		for i := range streams {
			wg.Go(func() { benchRequest(b, p, i, tokens) })
		}
		wg.Wait()
	}
	runtime.ReadMemStats(&after)
	made := float64(b.N * streams * tokens)
	b.ReportMetric(made/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/made, "ns/token")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/made, "allocs/token")
}

// BenchmarkRequests is the cost of a request with an answer of one token, and what the heap
// keeps after all of them: `-benchtime 50000x`.
func BenchmarkRequests(b *testing.B) {
	const streams = 64
	p := benchPipeline(b, streams, 1)
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	var turn atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			for {
				if i := int(turn.Add(1)); i > b.N || !benchRequest(b, p, i, 1) {
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
	b.ReportMetric((heap()-before)/(1<<20), "MiB-kept")
}
