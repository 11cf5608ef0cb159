package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
)

// startFixture serves a model of testdata/models, which has no text.
func startFixture(t *testing.T, name, backend string, s size) *node.Node {
	t.Helper()
	dir := filepath.Join("../testdata/models", name)
	m, err := compute.Open(compute.Options{
		Dir: dir, Device: device.Options{Backend: backend, Threads: 2},
		MaxRows: s.rows, MaxOutputs: s.batch, MaxSequences: s.batch, KVMemory: s.kvMemory,
	})
	require.NoError(t, err)
	tok, err := tokenizer.Bare(dir, m.Vocab())
	require.NoError(t, err)
	p, err := node.New(node.Config{
		ModelID: name, Model: m, Tokenizer: tok, Facts: api.WeightFacts{ContextLength: m.Program.MaxPositions},
		Sched: sched.Config{
			MaxBatchTokens: s.rows, ChunkTokens: s.chunk, MaxBatchSize: s.batch, MaxWaiting: 4096,
			MaxSequenceTokens: m.Program.MaxPositions, KV: kvmgr.NewSpec(device.SlabTokens, kvmgr.Full{}),
			LeaseAheadTokens: 2 * device.SlabTokens,
		},
		Metrics: metrics.New(metrics.Build{}), Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, p.Close(ctx))
		m.Close()
		require.NoError(t, tok.Close())
	})
	return p
}

// readChoices reads a stream to its end, choice by choice.
func readChoices(t *testing.T, s api.Stream, n int) (tokens [][]int32, finish []api.Finish) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tokens, finish = make([][]int32, n), make([]api.Finish, n)
	for {
		e, err := s.Next(ctx)
		require.NoError(t, err)
		require.NoError(t, e.Err)
		tokens[e.Choice] = append(tokens[e.Choice], e.Tokens...)
		if e.Finish != api.FinishNone {
			finish[e.Choice] = e.Finish
		}
		if e.Done {
			return tokens, finish
		}
	}
}

// waitKV waits until the state of the KV pool satisfies ok.
func waitKV(t *testing.T, p *node.Node, ok func(*node.KVState) bool) *node.KVState {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		state, err := p.KVState(ctx, false)
		require.NoError(t, err)
		require.Equal(t, "ok", state.Check)
		if ok(state) {
			return state
		}
		require.NoError(t, ctx.Err(), "found %+v", state.Stats)
	}
}

func idleKV(s *node.KVState) bool { return s.Stats.Regions == 0 && s.Stats.Free == s.Stats.Slabs }

// TestBeamSearchesServedTogetherEqualTransformers runs beam searches of all widths
// beside plain requests, in steps and in a KV pool that hold only some of them.
func TestBeamSearchesServedTogetherEqualTransformers(t *testing.T) {
	for _, name := range []string{"llama-gqa", "gptj", "opt-prenorm", "bloom-6-heads"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			groups, err := fixture.Beams(filepath.Join("../testdata/beams", name+".json"))
			require.NoError(t, err)
			p := startFixture(t, name, "ref", size{rows: 40, chunk: 7, batch: 19})
			type search struct {
				c      *fixture.BeamCase
				beams  int
				stream api.Stream
			}
			var searches []search
			for _, g := range groups {
				for i := range g.Cases {
					c := &g.Cases[i]
					params, err := c.Params(g.Beams)
					require.NoError(t, err)
					r := &api.Request{
						ID: fmt.Sprint(g.Beams, "-", i), Model: name, N: 2, PromptTokens: c.Prompt, MaxTokens: c.MaxNew,
						StopTokens: c.EOS, IgnoreEOS: true, TopLogprobs: -1, Beams: &params, Arrival: time.Now(),
					}
					s, err := p.Submit(context.Background(), r)
					require.NoError(t, err)
					searches = append(searches, search{c, g.Beams, s})
					plain := &api.Request{
						ID: fmt.Sprint("plain-", g.Beams, "-", i), Model: name, N: 1, PromptTokens: c.Prompt, MaxTokens: 3 + i%9,
						IgnoreEOS: true, TopLogprobs: -1, Arrival: time.Now(),
					}
					_, err = p.Submit(context.Background(), plain)
					require.NoError(t, err)
				}
			}
			ties := 0
			for i, s := range searches {
				tokens, finish := readChoices(t, s.stream, 2)
				if s.c.Tie {
					ties++
					continue
				}
				require.Equal(t, s.c.Answers, tokens, "search %d, %d beams: %+v", i, s.beams, s.c)
				for n := range tokens {
					want := api.FinishLength
					if last := tokens[n][len(tokens[n])-1]; slices.Contains(s.c.EOS, last) {
						want = api.FinishStop
					}
					require.Equal(t, want, finish[n])
				}
			}
			t.Logf("%d searches, %d ties", len(searches), ties)
			waitKV(t, p, idleKV)
		})
	}
}

// TestBeamSearchReservesEquation3AndGivesItBackWhenCancelled while it runs.
func TestBeamSearchReservesEquation3AndGivesItBackWhenCancelled(t *testing.T) {
	p := startFixture(t, "llama-gqa", "cpu", size{rows: 40, batch: 8})
	prompt := make([]int32, 21)
	for i := range prompt {
		prompt[i] = int32(3*i + 1)
	}
	for _, beams := range []int{2, 5, 8} {
		var s api.Stream
		var state *node.KVState
		for seen := false; !seen; { // on a busy machine a search ends before the state is read
			var err error
			s, err = p.Submit(context.Background(), &api.Request{
				ID: "search", Model: "llama-gqa", N: 1, PromptTokens: prompt, MaxTokens: 100, IgnoreEOS: true,
				TopLogprobs: -1, Beams: &sample.BeamParams{Width: beams, LengthPenalty: 1}, Arrival: time.Now(),
			})
			require.NoError(t, err)
			state = waitKV(t, p, func(s *node.KVState) bool { seen = s.Stats.Regions == 1; return seen || p.Running() == 0 })
		}
		want := kvmgr.SegmentSlabs(kvmgr.Segments{Prompt: 21, Response: 100, Beams: beams}, device.SlabTokens)
		require.Equal(t, want, state.Stats.Used+state.Stats.Promised)
		require.Equal(t, want, state.Regions[0].ReservedSlabs)
		require.Equal(t, beams, state.Regions[0].Beams)
		s.Close()
		waitKV(t, p, idleKV)
		waitRequests(t, p)
	}
}

// waitRequests waits until the pipeline has no request.
func waitRequests(t *testing.T, p *node.Node) {
	t.Helper()
	waitKV(t, p, func(*node.KVState) bool { return p.Running() == 0 })
}

// TestABeamSearchComputesItsPromptOnce: a search, and a plain request, begin with what another one has computed, and answer as
// without it.
func TestABeamSearchComputesItsPromptOnce(t *testing.T) {
	p := startPipeline(t, size{rows: 128, chunk: 64, batch: 8, kvMemory: 32 << 20})
	rng, prompt := rand.New(rand.NewPCG(3, 1)), make([]int32, 200)
	for i := range prompt {
		prompt[i] = rng.Int32N(1000)
	}
	beams := func(tenant string, n int) (tokens [][]int32, cached int) {
		s, err := p.Submit(t.Context(), &api.Request{
			ID: "search", Tenant: tenant, Model: "tiny-chat", N: 3, PromptTokens: prompt[:n], MaxTokens: 40, IgnoreEOS: true,
			TopLogprobs: -1, Beams: &sample.BeamParams{Width: 3, LengthPenalty: 1}, Arrival: time.Now(),
		})
		require.NoError(t, err)
		tokens = make([][]int32, 3)
		for {
			e, err := s.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, e.Err)
			tokens[e.Choice] = append(tokens[e.Choice], e.Tokens...)
			if e.Done {
				return tokens, e.Usage.CachedTokens
			}
		}
	}
	plain := func(tenant string) (tokens []int32, cached int) {
		v, cached := talk(t, p, tenant, api.Request{
			Model: "tiny-chat", N: 1, PromptTokens: prompt, MaxTokens: 40, IgnoreEOS: true, TopLogprobs: -1, Arrival: time.Now(),
		})
		return v.tokens, cached
	}
	search, cached := beams("a", 200)
	require.Zero(t, cached)
	again, cached := beams("a", 200)
	require.Equal(t, 199, cached)
	require.Equal(t, search, again)
	answer, cached := plain("a")
	require.Equal(t, 199, cached)
	alone, cached := plain("b")
	require.Zero(t, cached)
	require.Equal(t, alone, answer)
	after, cached := beams("b", 200)
	require.Equal(t, 199, cached)
	require.Equal(t, search, after)
	part, cached := beams("b", 150) // ends inside a slab
	require.Equal(t, 149, cached)
	cold, _ := beams("c", 150)
	require.Equal(t, cold, part)
	waitKV(t, p, idleKV)
}

func TestBeamSearchesThatCannotBeAreRefused(t *testing.T) {
	p := startFixture(t, "llama-gqa", "cpu", size{rows: 40, batch: 8, kvMemory: 1 << 16})
	request := func(change func(*api.Request)) *api.Request {
		r := &api.Request{
			ID: "search", Model: "llama-gqa", N: 1, PromptTokens: []int32{1, 2, 3}, MaxTokens: 10, IgnoreEOS: true,
			TopLogprobs: -1, Beams: &sample.BeamParams{Width: 4, LengthPenalty: 1}, Arrival: time.Now(),
		}
		change(r)
		return r
	}
	for param, change := range map[string]func(*api.Request){
		"num_beams":      func(r *api.Request) { r.Beams.Width = 9 },
		"length_penalty": func(r *api.Request) { r.Beams.LengthPenalty = 11 },
		"early_stopping": func(r *api.Request) { r.Beams.Early = 3 },
		"n":              func(r *api.Request) { r.N = 5 },
		"logprobs":       func(r *api.Request) { r.TopLogprobs = 0 },
		"stop":           func(r *api.Request) { r.Stop = []string{"x"} },
		"max_tokens":     func(r *api.Request) { r.MaxTokens = 120 }, // fits once, not four times
	} {
		s, err := p.Submit(context.Background(), request(change))
		if err == nil {
			_, last, _ := readAll(s)
			err = last.Err
			waitRequests(t, p)
		}
		var e *api.Error
		require.ErrorAs(t, err, &e, param)
		require.Equal(t, api.CodeInvalid, e.Code)
		require.Equal(t, param, e.Param)
	}
	// A search without a limit takes the space of four beams: 16 slabs, one of them
	// for the prompt.
	s, err := p.Submit(context.Background(), request(func(r *api.Request) { r.MaxTokens = 0 }))
	require.NoError(t, err)
	tokens, finish := readChoices(t, s, 1)
	require.Len(t, tokens[0], 15/4*device.SlabTokens)
	require.Equal(t, api.FinishLength, finish[0])
	waitRequests(t, p)

	s, err = p.Submit(context.Background(), request(func(r *api.Request) { r.StopTokens = everyTokenBut(131, 2) }))
	require.NoError(t, err)
	_, last, _ := readAll(s)
	require.ErrorContains(t, last.Err, "found 4, expected 1 to 2")
}

func everyTokenBut(vocab, n int) []int32 {
	var ids []int32
	for id := range int32(vocab - n) {
		ids = append(ids, id)
	}
	return ids
}

// TestBeamSearchOverHTTPAndNATSIsTheOneOfGenerate compares whole and streamed answers.
func TestBeamSearchOverHTTPAndNATSIsTheOneOfGenerate(t *testing.T) {
	const prompt, search = "Once upon a time there was", `"use_beam_search":true,"num_beams":4,"length_penalty":0.8`
	s := startServer(t)
	path, err := program()
	require.NoError(t, err)
	out, err := exec.Command(path, "generate", "--model", demoModel, "--prompt", prompt, "-n", "24",
		"--beams", "4", "--length-penalty", "0.8", "--json", "--log-level", "error").Output()
	require.NoError(t, err)
	var want struct {
		Text string `json:"text"`
	}
	require.NoError(t, json.Unmarshal(out, &want))
	require.NotEmpty(t, want.Text)

	type completion struct {
		Choices []struct {
			Text   string `json:"text"`
			Index  int    `json:"index"`
			Finish string `json:"finish_reason"`
		} `json:"choices"`
	}
	body := fmt.Sprintf(`{"prompt":%q,"max_tokens":24,"n":3,%s`, prompt, search)
	status, _, text := s.post(t, "/v1/completions", body+`}`)
	require.Equal(t, 200, status, text)
	var whole completion
	require.NoError(t, json.Unmarshal([]byte(text), &whole))
	require.Len(t, whole.Choices, 3)
	require.Equal(t, want.Text, whole.Choices[0].Text)
	require.NotEqual(t, whole.Choices[0].Text, whole.Choices[1].Text)

	status, _, text = s.post(t, "/v1/completions", body+`,"stream":true}`)
	require.Equal(t, 200, status, text)
	streamed := make([]string, 3)
	for line := range strings.SplitSeq(text, "\n") {
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok || data == "[DONE]" {
			continue
		}
		var chunk completion
		require.NoError(t, json.Unmarshal([]byte(data), &chunk), data)
		for _, c := range chunk.Choices {
			streamed[c.Index] += c.Text
		}
	}
	for _, c := range whole.Choices {
		require.Equal(t, c.Text, streamed[c.Index])
	}

	reply, err := s.connect(t).Request("millrace.v1.completions", []byte(body+`}`), patience)
	require.NoError(t, err)
	var overNATS completion
	require.NoError(t, json.Unmarshal(reply.Data, &overNATS), string(reply.Data))
	require.Equal(t, whole, overNATS)

	for _, c := range []struct{ field, param string }{
		{`"temperature":1`, "temperature"}, {`"stop":["x"]`, "stop"}, {`"logprobs":1`, "logprobs"}, {`"n":5`, "n"},
	} {
		status, _, text = s.post(t, "/v1/completions", fmt.Sprintf(`{"prompt":"a",%s,%s}`, search, c.field))
		require.Equal(t, 400, status, text)
		require.Contains(t, text, fmt.Sprintf(`"param":%q`, c.param))
	}
}
