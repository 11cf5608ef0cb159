package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// patience bounds what must happen soon: only a failing test waits for it.
const patience = 20 * time.Second

// demoTokenizer is loaded once for all tests and never closed: a node only reads it.
var demoTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) { return tokenizer.Load("../../models/tiny-chat") })

func testConfig(t *testing.T, d *testDevice) Config {
	tok, err := demoTokenizer()
	require.NoError(t, err)
	return Config{
		ModelID: "m", Model: d, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: 2048},
		Sched: sched.Config{
			MaxBatchTokens: 64, MaxBatchSize: 8, MaxWaiting: 1000, MaxSequenceTokens: 2048,
			KV: kvmgr.NewSpec(testSlabTokens, kvmgr.Full{}), LeaseAheadTokens: 2 * testSlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	}
}

func start(t *testing.T, cfg Config) *Node {
	p, _ := startAndEnd(t, cfg)
	return p
}

// startAndEnd is start of a process that may end before its test does.
func startAndEnd(t *testing.T, cfg Config) (p *Node, end func()) {
	p, err := New(cfg)
	require.NoError(t, err)
	end = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Close(ctx))
	})
	t.Cleanup(end)
	return p, end
}

func tokensRequest(id string, prompt []int32, maxTokens int) *api.Request {
	return &api.Request{
		ID: id, Model: "m", N: 1, PromptTokens: prompt, MaxTokens: maxTokens,
		IgnoreEOS: true, TopLogprobs: -1, Sampling: sample.Params{}, Arrival: time.Now(),
	}
}

// read reads a stream to its end.
func read(s api.Stream) (tokens []int32, last api.Event, err error) {
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

// expected is what the test device makes of a prompt.
func expected(d *testDevice, prompt []int32, n int) []int32 {
	token, at := prompt[len(prompt)-1], len(prompt)-1
	out := make([]int32, n)
	for i := range out {
		token = nextToken(token, at, d.vocab)
		at++
		out[i] = token
	}
	return out
}

func TestEveryRequestGetsItsOwnTokensWhateverRunsBesideIt(t *testing.T) {
	d := newTestDevice(64) // 1,024 tokens: not all requests fit at once
	p := start(t, testConfig(t, d))
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			prompt := make([]int32, 1+i*7%150)
			for j := range prompt {
				prompt[j] = int32((i*31 + j) % d.vocab)
			}
			n := 1 + i*13%60
			s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), prompt, n))
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			tokens, last, err := read(s)
			if err != nil || last.Finish != api.FinishLength || !last.Done {
				t.Errorf("request %d: %v, ended with %+v", i, err, last)
			}
			if want := expected(d, prompt, n); !equal(tokens, want) {
				t.Errorf("request %d: found %v, expected %v", i, tokens, want)
			}
		})
	}
	wg.Wait()
	requireClean(t, p, d)
	require.LessOrEqual(t, d.largest, 64, "rows of a step")
}

func equal(a, b []int32) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// requireClean waits until the last slab is back and checks the allocator.
func requireClean(t *testing.T, p *Node, d *testDevice) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := p.KVState(context.Background(), false)
		if err != nil {
			return false
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		return state.Check == "ok" && state.Stats.Regions == 0 && state.Stats.Free == d.slabs && d.open == 0 && len(d.owner) == 0
	}, patience, time.Millisecond, "every slab and region comes back")
	require.Empty(t, d.faults)
	require.Zero(t, p.Running())
}

func TestCancelledRequestsFreeTheirKVAndNobodyElseNotices(t *testing.T) {
	d := newTestDevice(100)
	p := start(t, testConfig(t, d))
	before := runtime.NumGoroutine()
	var wg sync.WaitGroup
	limit := make(chan struct{}, 50)
	for i := range 500 {
		limit <- struct{}{}
		wg.Go(func() {
			defer func() { <-limit }()
			r := rand.New(rand.NewPCG(1, uint64(i)))
			prompt := []int32{int32(i), 5, 6}
			n := 1 + r.IntN(300)
			s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), prompt, n))
			if err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
			if i%3 == 0 { // goes away somewhere in the middle
				for range r.IntN(n) {
					if _, err := s.Next(context.Background()); err != nil {
						break
					}
				}
				s.Close()
			}
			_, last, err := read(s)
			if err != nil || !last.Done || last.Finish != api.FinishLength && (i%3 != 0 || last.Finish != api.FinishCancelled) {
				t.Errorf("request %d: %v, ended with %+v", i, err, last)
			}
		})
	}
	wg.Wait()
	requireClean(t, p, d)
	require.Eventually(t, func() bool { return runtime.NumGoroutine() <= before+10 }, patience, time.Millisecond, "goroutines go back")
}

func TestAFullPipelineRefusesAtOnce(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	cfg := testConfig(t, d)
	cfg.MaxRequests = 3
	p := start(t, cfg)
	var streams []api.Stream
	for i := range 3 {
		s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), []int32{1}, 5))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	_, err := p.Submit(context.Background(), tokensRequest("one more", []int32{1}, 5))
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeOverloaded, e.Code)
	require.Positive(t, e.RetryAfter)
	close(d.gate)
	for _, s := range streams {
		_, last, err := read(s)
		require.NoError(t, err)
		require.Equal(t, api.FinishLength, last.Finish)
	}
	s, err := p.Submit(context.Background(), tokensRequest("room again", []int32{1}, 5))
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.True(t, last.Done)
}

func TestEveryStageIsCounted(t *testing.T) {
	cfg := testConfig(t, newTestDevice(100))
	p := start(t, cfg)
	r := tokensRequest("r", nil, 5)
	r.Prompt = "Once"
	s, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	_, _, err = read(s)
	require.NoError(t, err)
	requireStagesServed(t, cfg)
}

// requireStagesServed checks that each stage served something, and that its messages are counted as often when they are sent as when they
// are served.
func requireStagesServed(t *testing.T, cfg Config) {
	t.Helper()
	require.Eventually(t, func() bool {
		page := httptest.NewRecorder()
		cfg.Metrics.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		text := page.Body.String()
		for _, stage := range []string{"tokenize", "compute", "detok"} {
			if strings.Contains(text, `millrace_stage_service_seconds_count{stage="`+stage+`"} 0`) ||
				!strings.Contains(text, `millrace_stage_queue_depth{stage="`+stage+`"} 0`) {
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "each stage served something and has nothing left")
}

// TestStagesCountEachMessage that an actor sends to itself, that fails, or that ends a sequence at once.
func TestStagesCountEachMessage(t *testing.T) {
	d := newTestDevice(400)
	cfg := testConfig(t, d)
	cfg.maskPatience = time.Nanosecond
	p := start(t, cfg)
	answers(t, p, guided("late", tale, 2, 1000))
	reply, got := probe(p)
	p.system.Root.Send(p.tokenizers.Next(), &msg.Tokenize{Reply: reply})
	require.ErrorContains(t, receive[*msg.Tokenized](t, got).Err, "tokenize stage failed")
	for i, g := range []msg.Generate{{Prompt: []int32{1 << 20}, MaxTokens: 3}, {Prompt: []int32{1}, Generated: []int32{2}, MaxTokens: 1}} {
		g.Seq = msg.SeqID(1000 + i)
		g.Choices, g.Reply, g.Detok = []msg.SeqID{g.Seq}, reply, p.detokenizers.Next()
		p.system.Root.Send(p.worker.PID(), &g)
	}
	r := tokensRequest("text", nil, 5)
	r.Prompt = "Once"
	answers(t, p, r)
	requireStagesServed(t, cfg)
}

func TestAStalledDeviceIsNotReady(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	cfg := testConfig(t, d)
	cfg.StallAfter = time.Nanosecond
	p := start(t, cfg)
	require.NoError(t, p.Ready(), "idle is ready")
	s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1}, 5))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Ready() != nil }, patience, time.Millisecond)
	require.ErrorContains(t, p.Ready(), "no step")
	close(d.gate)
	_, _, err = read(s)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond)
}

func TestCloseLetsRunningRequestsEndAndThenEndsThemWithAMessage(t *testing.T) {
	for _, patient := range []bool{true, false} {
		d := newTestDevice(100)
		d.gate = make(chan struct{}, 1000)
		p, err := New(testConfig(t, d))
		require.NoError(t, err)
		s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1}, 50))
		require.NoError(t, err)
		d.gate <- struct{}{}
		_, err = s.Next(context.Background())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		closed := make(chan error, 1)
		go func() { closed <- p.Close(ctx) }()
		require.Eventually(t, func() bool { return p.Ready() != nil }, patience, time.Millisecond)
		if !patient {
			cancel()
		}
		for range 100 {
			d.gate <- struct{}{}
		}
		_, last, err := read(s)
		require.NoError(t, err)
		if patient {
			require.Equal(t, api.FinishLength, last.Finish)
		} else if last.Finish == api.FinishError { // else its last steps came first
			require.ErrorContains(t, last.Err, "shutting down")
		}
		require.NoError(t, <-closed)
		cancel()
	}
}

func TestAStopStringEndsAChoiceWithoutItsText(t *testing.T) {
	d := newTestDevice(100)
	p := start(t, testConfig(t, d))
	full, err := p.Submit(context.Background(), tokensRequest("full", []int32{300}, 30))
	require.NoError(t, err)
	text := readText(t, full)
	cut := []rune(text)
	stop := string(cut[len(cut)/2 : len(cut)/2+2])
	r := tokensRequest("stop", []int32{300}, 30)
	r.Stop = []string{stop}
	s, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	got := readText(t, s)
	require.NotContains(t, got, stop)
	require.Equal(t, text[:len(got)], got)
	require.Equal(t, stop, text[len(got):len(got)+len(stop)])
	r = tokensRequest("which", []int32{300}, 30)
	r.Stop = []string{stop}
	s, err = p.Submit(context.Background(), r)
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, stop, last.Stop)
	requireClean(t, p, d)
}

func readText(t *testing.T, s api.Stream) string {
	text := ""
	for {
		e, err := s.Next(context.Background())
		if errors.Is(err, io.EOF) {
			return text
		}
		require.NoError(t, err)
		require.NoError(t, e.Err)
		text += e.Text
	}
}

func TestTokensThatTheModelLacksAreRefused(t *testing.T) {
	d := newTestDevice(100)
	p := start(t, testConfig(t, d))
	for name, change := range map[string]func(*api.Request){
		"prompt":         func(r *api.Request) { r.PromptTokens = []int32{1, 4096} },
		"stop_token_ids": func(r *api.Request) { r.StopTokens = []int32{-1} },
		"logit_bias":     func(r *api.Request) { r.Sampling.LogitBias = map[int32]float32{5000: 1} },
	} {
		r := tokensRequest(name, []int32{1}, 5)
		change(r)
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		_, last, err := read(s)
		require.NoError(t, err)
		var e *api.Error
		require.ErrorAs(t, last.Err, &e, name)
		require.Equal(t, api.CodeInvalid, e.Code)
		require.Equal(t, name, e.Param)
	}
	require.NoError(t, p.Ready())
}
