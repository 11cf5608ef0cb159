package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/metrics/metricstest"
	"github.com/millrace/millrace/tokenizer"
)

const demoModel = "../models/tiny-chat"

// kvTypes returns the types of KV caches that the tests go through: with -short one that has codes and scales.
func kvTypes() []model.KVType {
	if testing.Short() {
		return []model.KVType{model.KVInt8}
	}
	return []model.KVType{model.KVAuto, model.KVInt8, model.KVInt4}
}

// patience bounds the wait for an event. Only a failing test waits that long.
const patience = time.Minute

// size holds the settings of a pipeline that the tests vary.
type size struct {
	rows, chunk, batch, requests int
	drafts                       int // rows of a step up to which it has draft tokens
	layers                       int // first layers that make these; 0: they are looked up
	kv                           model.KVType
	kvMemory                     int64
	disk                         string // directory of the KV disk
	predict                      bool   // admission of predicted answers
	spill                        string // directory of the spill tier
	ranks                        int    // with a thread each; 0: one with all threads
}

func startPipeline(t *testing.T, s size) *node.Node {
	t.Helper()
	p, _ := startMeasured(t, s)
	return p
}

// demoTokenizer is loaded once for all tests and never closed. Pipelines only read it.
var demoTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Load(demoModel) })

func startMeasured(t *testing.T, s size) (*node.Node, *metrics.Metrics) {
	t.Helper()
	p, series, _ := startAndEnd(t, s)
	return p, series
}

// startAndEnd starts a pipeline. end drains it, once.
func startAndEnd(t testing.TB, s size) (p *node.Node, series *metrics.Metrics, end func()) {
	t.Helper()
	series = metrics.New(metrics.Build{})
	tok, err := demoTokenizer()
	require.NoError(t, err)
	m, err := compute.Open(compute.Options{
		Dir: demoModel, Device: device.Options{Backend: "cpu", Threads: s.ranks, Ranks: s.ranks},
		MaxRows: s.rows, MaxOutputs: max(s.batch, s.drafts), MaxSequences: s.batch, KV: s.kv, KVMemory: s.kvMemory,
		DraftLayers: s.layers, DraftRows: s.drafts,
	})
	require.NoError(t, err)
	p, err = node.New(node.Config{
		ModelID: "tiny-chat", Model: m, Drafter: m.Drafter(), Tokenizer: tok, Facts: api.WeightFacts{ContextLength: m.Program.MaxPositions},
		Sched: sched.Config{
			MaxBatchTokens: s.rows, ChunkTokens: s.chunk, MaxBatchSize: s.batch, MaxWaiting: 4096, DraftRows: s.drafts, Predict: s.predict,
			MaxSequenceTokens: m.Program.MaxPositions, KV: kvmgr.NewSpec(device.SlabTokens, kvmgr.Full{}),
			LeaseAheadTokens: 2 * device.SlabTokens,
		},
		KVSpill:     node.KVDisk{Dir: s.spill, Size: 16 << 20},
		KVDisk:      node.KVDisk{Dir: s.disk, Size: 64 << 20},
		MaxRequests: s.requests, Metrics: series, Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	end = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Close(ctx))
		m.Close()
	})
	t.Cleanup(end)
	return p, series, end
}

// readAll reads a stream to its end.
func readAll(s api.Stream) (tokens []int32, last api.Event, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		e, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return tokens, last, nil
		}
		if err != nil {
			return tokens, last, err
		}
		tokens, last = append(tokens, e.Tokens...), e
	}
}

// promptOf returns a prompt of random tokens and length for a number.
func promptOf(r *rand.Rand, longest int) []int32 {
	prompt := make([]int32, 1+r.IntN(longest))
	for i := range prompt {
		prompt[i] = int32(r.IntN(4096))
	}
	return prompt
}

func variedRequest(i int) *api.Request {
	r := rand.New(rand.NewPCG(7, uint64(i)))
	q := &api.Request{
		ID: strconv.Itoa(i), Model: "tiny-chat", N: 1, PromptTokens: promptOf(r, 200), MaxTokens: 5 + r.IntN(40),
		TopLogprobs: -1, Sampling: sample.Params{}, Arrival: time.Now(), IgnoreEOS: true,
	}
	switch i % 4 {
	case 1:
		q.Sampling = allSamplers(uint64(i))
	case 3:
		q.Sampling = sample.Params{Temperature: 1.2, TopP: 0.95, TopK: 200, RepetitionPenalty: 1.1, Seed: uint64(i)}
	}
	return q
}

// answersAlone returns the tokens of the answers to n requests, each computed alone.
func answersAlone(t *testing.T, n int, request func(int) *api.Request) [][]int32 {
	t.Helper()
	p := startPipeline(t, size{rows: 512, batch: 1})
	answers := make([][]int32, n)
	for i := range answers {
		s, err := p.Submit(context.Background(), request(i))
		require.NoError(t, err)
		tokens, last, err := readAll(s)
		require.NoError(t, err)
		require.Equal(t, api.FinishLength, last.Finish)
		answers[i] = tokens
	}
	return answers
}

// expect submits a request and compares the answer's tokens.
func expect(t *testing.T, p *node.Node, q *api.Request, want []int32) {
	s, err := p.Submit(context.Background(), q)
	if err != nil {
		t.Errorf("request %s: %v", q.ID, err)
		return
	}
	tokens, _, err := readAll(s)
	if err != nil || !slices.Equal(tokens, want) {
		t.Errorf("request %s: %v: found %v, expected %v", q.ID, err, tokens, want)
	}
}

func TestTheSameTokensAloneAndInAnyCompanyAndChunking(t *testing.T) {
	const n = 64
	want := answersAlone(t, n, variedRequest)
	for _, s := range []size{{rows: 512, batch: 64}, {rows: 64, chunk: 7, batch: 64}, {rows: 33, chunk: 16, batch: 11},
		{rows: 100, chunk: 61, batch: 29}} {
		t.Run(fmt.Sprintf("rows %d, chunk %d, batch %d", s.rows, s.chunk, s.batch), func(t *testing.T) {
			p := startPipeline(t, s)
			var wg sync.WaitGroup
			for _, i := range rand.Perm(n) {
				for range rand.IntN(2000) { // arrivals spread over the run
					runtime.Gosched()
				}
				wg.Go(func() { expect(t, p, variedRequest(i), want[i]) })
			}
			wg.Wait()
		})
	}
}

// TestDraftTokensChangeNoToken: over texts with repetitions, greedy and sampled, alone and three at a
// time, looked up and made by the first layers.
func TestDraftTokensChangeNoToken(t *testing.T) {
	request := func(i int) *api.Request {
		q := variedRequest(i)
		q.PromptTokens, q.MaxTokens = slices.Repeat(promptOf(rand.New(rand.NewPCG(8, uint64(i))), 12), 6), 100
		switch {
		case q.Sampling.DRY != nil: // which would end the repetitions that make draft tokens
			q.Sampling.Temperature, q.Sampling.TopK, q.Sampling.DRY.Multiplier = 0.6, 5, 0.01
		case q.Sampling.Temperature > 0:
			q.Sampling = sample.Params{Temperature: 0.6, TopK: 5, FrequencyPenalty: 0.01, Seed: uint64(i)}
		}
		return q
	}
	const n = 24
	want := answersAlone(t, n, request)
	for _, c := range []struct{ together, layers int }{{1, 0}, {3, 0}, {3, 2}} {
		together := c.together
		p, series := startMeasured(t, size{rows: 512, batch: 4, drafts: 8, layers: c.layers})
		var wg sync.WaitGroup
		for first := range together {
			wg.Go(func() {
				for i := first; i < n; i += together {
					expect(t, p, request(i), want[i])
				}
			})
		}
		wg.Wait()
		drafted, accepted := metricstest.Sum(t, series.Registry(), "millrace_draft_tokens_total"),
			metricstest.Sum(t, series.Registry(), "millrace_draft_tokens_accepted_total")
		t.Logf("%d together, %d layers: %v of %v draft tokens were accepted, of %d tokens", together, c.layers, accepted, drafted, n*100)
		require.Greater(t, accepted, 200.0)
		require.Greater(t, drafted, accepted, "rejected ones, too")
	}
}

// TestOverloadWithATenthOfTheKVMemoryLosesNothing has 2,000 requests, in short mode 600, of which 200 run or wait at once.
func TestOverloadWithATenthOfTheKVMemoryLosesNothing(t *testing.T) {
	const atOnce = 200
	requests := 2000
	if testing.Short() {
		requests = 600
	}
	// A batch of 64 at full length would take 512 MiB.
	p := startPipeline(t, size{rows: 256, batch: 64, requests: 150, kvMemory: 50 << 20})
	runOne(t, p, requests) // makes the allocations that happen once
	memory, goroutines := residentBytes(t), runtime.NumGoroutine()
	var full, cancelled, refused atomic.Int64
	var wg sync.WaitGroup
	limit := make(chan struct{}, atOnce)
	ended := make(chan struct{}, requests) // a refused client retries when another one has ended
	for i := range requests {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			r := rand.New(rand.NewPCG(9, uint64(i)))
			q := variedRequest(i)
			q.PromptTokens, q.MaxTokens = promptOf(r, 300), 1+r.IntN(40)
			s, err := p.Submit(context.Background(), q)
			var e *api.Error
			if errors.As(err, &e) && e.Code == api.CodeOverloaded && e.RetryAfter > 0 {
				refused.Add(1)
				<-ended
				return
			}
			defer func() { ended <- struct{}{} }()
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			if i%3 == 0 {
				for range r.IntN(q.MaxTokens) {
					if _, err := s.Next(context.Background()); err != nil {
						break
					}
				}
				s.Close()
			}
			_, last, err := readAll(s)
			switch {
			case err != nil || !last.Done:
				t.Errorf("request %d: %v, ended with %+v", i, err, last)
			case last.Finish == api.FinishLength && last.Usage.CompletionTokens == q.MaxTokens:
				full.Add(1)
			case last.Finish == api.FinishCancelled && i%3 == 0:
				cancelled.Add(1)
			default:
				t.Errorf("request %d ended with %+v", i, last)
			}
		})
	}
	wg.Wait()
	t.Logf("%d full answers, %d cancelled, %d refused", full.Load(), cancelled.Load(), refused.Load())
	require.EqualValues(t, requests, full.Load()+cancelled.Load()+refused.Load())
	require.NotZero(t, full.Load()*cancelled.Load()*refused.Load(), "each of the three kinds")
	require.Eventually(t, func() bool { return kvIsClean(p) }, patience, time.Millisecond, "every slab comes back")
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+10 }, patience, time.Millisecond, "goroutines")
	runtime.GC()
	require.Less(t, residentBytes(t), memory+64<<20, "resident memory")
}

func runOne(t *testing.T, p *node.Node, i int) {
	s, err := p.Submit(context.Background(), variedRequest(i))
	require.NoError(t, err)
	_, _, err = readAll(s)
	require.NoError(t, err)
}

// kvIsClean reports whether the KV manager is consistent and empty.
func kvIsClean(p *node.Node) bool {
	s, err := p.KVState(context.Background(), false)
	return err == nil && s.Check == "ok" && s.Stats.Regions == 0 && s.Stats.Free == s.Stats.Slabs
}

func residentBytes(t *testing.T) int64 {
	data, err := os.ReadFile("/proc/self/statm")
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(data))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}
