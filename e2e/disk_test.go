package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestAPrefixFromTheDiskChangesNoBit compares answers of a process with those of the next one, whose prefixes come from the
// disk, and with those of one that finds the disk damaged.
func TestAPrefixFromTheDiskChangesNoBit(t *testing.T) {
	for _, kv := range kvTypes() {
		t.Run(kv.String(), func(t *testing.T) {
			s := size{rows: 128, chunk: 64, batch: 8, drafts: 8, kv: kv, kvMemory: 3 << 20, disk: t.TempDir()}
			p, _, end := startAndEnd(t, s)
			rng := rand.New(rand.NewPCG(5, uint64(len(kv.String()))))
			var cold []turn
			for i := range 8 {
				q := api.Request{
					ID: fmt.Sprint("-", i), Model: "tiny-chat", N: 1, PromptTokens: promptOf(rng, 150+i), MaxTokens: 20,
					TopLogprobs: 2, Arrival: time.Now(), IgnoreEOS: true,
				}
				if i%2 == 1 {
					q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
				}
				v, cached := talk(t, p, "a", q)
				require.Zero(t, cached)
				cold = append(cold, v)
			}
			end()
			same := func(damaged bool) {
				t.Helper()
				p, series, end := startAndEnd(t, s)
				for _, want := range cold {
					q := *want.request
					q.ID, q.Arrival = q.ID[1:], time.Now()
					got, cached := talk(t, p, "a", q)
					require.Equal(t, want.tokens, got.tokens)
					require.Equal(t, want.logs, got.logs)
					if whole := (len(q.PromptTokens) - 1) / 16; damaged {
						require.LessOrEqual(t, cached, whole*16)
					} else if whole > 1 {
						require.Equal(t, whole*16, cached)
					}
				}
				if !damaged {
					require.Zero(t, total(t, series, "millrace_kv_disk_errors_total"))
					require.Positive(t, total(t, series, "millrace_kv_disk_hits_total"))
				}
				_, cached := talk(t, p, "b", *cold[0].request)
				require.Zero(t, cached, "another tenant")
				state, err := p.KVState(t.Context(), false)
				require.NoError(t, err)
				require.Equal(t, "ok", state.Check)
				end()
			}
			same(false)
			names, err := filepath.Glob(filepath.Join(s.disk, "*"))
			require.NoError(t, err)
			require.Len(t, names, 1)
			raw, err := os.ReadFile(names[0])
			require.NoError(t, err)
			for at := 4096; at < len(raw); at += 4096 {
				raw[at+rng.IntN(min(4096, len(raw)-at))] ^= 1
			}
			require.NoError(t, os.WriteFile(names[0], raw, 0o600))
			same(true)
		})
	}
}

// TestAPromptSurvivesARestart restarts a server between two equal prompts.
func TestAPromptSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	g := golden{PromptIDs: promptOf(rand.New(rand.NewPCG(1, 1)), 100)}
	path, _, body := g.body(false)
	for i := range 3 {
		args := []string{"--kv-disk", dir, "--kv-disk-size", "64MiB", "--threads", "1"}
		if i == 2 {
			args = append(args, "--kv-type", "int8") // another file
		}
		s := startServer(t, args...)
		s.waitReady(t)
		code, _, reply := s.post(t, path, body)
		require.Equal(t, http.StatusOK, code, reply)
		cached := parseAnswer(t, reply).Usage.Details.Cached
		require.Equal(t, []int{0, 96, 0}[i], cached, reply)
		require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(t, <-s.ended)
	}
}

// TestWorkersWithDisksContinueForEachOther loses one of two workers while sequences run, and restarts it in its directory. The
// other one leaves then, so that all prompts come to the restarted one.
func TestWorkersWithDisksContinueForEachOther(t *testing.T) {
	url, dir := natstest.Start(t, nil).ClientURL(), t.TempDir()
	gateway, _, _ := member(t, url, model.KVAuto, cluster.Gateway, cluster.Tokenize, cluster.Detok)
	left := memberOn(t, dir, nil, url, model.KVAuto, cluster.Compute)
	right := memberOn(t, t.TempDir(), nil, url, model.KVAuto, cluster.Compute)
	require.Eventually(t, func() bool { return gateway.Ready() == nil }, patience, time.Millisecond)
	rng := rand.New(rand.NewPCG(8, 1))
	request := func(i, most int) api.Request {
		q := api.Request{
			ID: fmt.Sprint("-", i), Model: "tiny-chat", N: 1, PromptTokens: make([]int32, 100+rng.IntN(50)), MaxTokens: most,
			TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true,
		}
		for at := range q.PromptTokens {
			q.PromptTokens[at] = int32(rng.IntN(4096))
		}
		if i%2 == 1 {
			q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
		}
		return q
	}
	var cold []turn
	least := func() uint64 { return min(left.Member().Worker.Steps, right.Member().Worker.Steps) }
	for i := 0; i < 8 || least() == 0; i++ { // until the gateway knows both
		v, _ := talk(t, gateway, "a", request(i, 20))
		cold = append(cold, v)
	}
	begun := least()
	var requests []api.Request
	var streams []api.Stream
	for i := range 8 {
		q := request(1000+i, 500)
		q.Tenant = "a"
		s, err := gateway.Submit(t.Context(), &q)
		require.NoError(t, err)
		requests, streams = append(requests, q), append(streams, s)
	}
	require.Eventually(t, func() bool { return least() > begun+60 }, patience, time.Millisecond)
	left.conn.Close()
	for i, s := range streams {
		got, last, err := readAll(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		again, _ := talk(t, gateway, fmt.Sprint("cold", i), requests[i])
		require.Equal(t, again.tokens, got)
	}
	left.end()
	restarted := memberOn(t, dir, nil, url, model.KVAuto, cluster.Compute)
	right.end()
	hits := 0
	for _, want := range cold {
		q := *want.request
		q.ID, q.Arrival = q.ID[1:], time.Now()
		got, cached := talk(t, gateway, "a", q)
		require.Equal(t, want.tokens, got.tokens)
		hits += cached / 16
	}
	require.Positive(t, hits)
	require.InDelta(t, hits, total(t, restarted.series, "millrace_kv_disk_hits_total"), 0)
	require.Zero(t, total(t, restarted.series, "millrace_kv_disk_errors_total"))
}

// BenchmarkFirstTokenAfterRestart measures the time to the first token of a prompt of 900 tokens that is on the disk, in a process
// that has just started, in turn with that of a prompt which is computed.
func BenchmarkFirstTokenAfterRestart(b *testing.B) {
	s := size{rows: 512, chunk: 256, batch: 8, drafts: 8, kvMemory: 64 << 20, disk: b.TempDir()}
	rng := rand.New(rand.NewPCG(9, 1))
	prompt := func() []int32 {
		p := make([]int32, 900)
		for i := range p {
			p[i] = int32(rng.IntN(4096))
		}
		return p
	}
	stored := prompt()
	p, _, end := startAndEnd(b, s)
	_, cached := firstToken(b, p, stored)
	require.Zero(b, cached)
	end()
	var disk, computed []time.Duration
	for n := 0; b.Loop(); n++ {
		p, _, end := startAndEnd(b, s)
		firstToken(b, p, prompt()[:20]) // the first step is slower
		for i := range 2 {
			if (i+n)%2 == 0 {
				took, cached := firstToken(b, p, stored)
				require.Equal(b, 896, cached)
				disk = append(disk, took)
			} else {
				took, cached := firstToken(b, p, prompt())
				require.Zero(b, cached)
				computed = append(computed, took)
			}
		}
		end()
	}
	for unit, all := range map[string][]time.Duration{"ms-disk": disk, "ms-computed": computed} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, unit)
	}
}

// firstToken is the time to the first token of a prompt, and how many tokens of it were not computed.
func firstToken(b *testing.B, p *node.Node, prompt []int32) (took time.Duration, cached int) {
	b.Helper()
	begin := time.Now()
	stream, err := p.Submit(context.Background(), &api.Request{
		ID: fmt.Sprint(begin.UnixNano()), Tenant: "a", Model: "tiny-chat", N: 1, PromptTokens: prompt, MaxTokens: 4, TopLogprobs: -1,
		Arrival: begin, IgnoreEOS: true,
	})
	require.NoError(b, err)
	for {
		e, err := stream.Next(context.Background())
		require.NoError(b, err)
		require.NoError(b, e.Err)
		if took == 0 && len(e.Tokens) > 0 {
			took = time.Since(begin)
		}
		if e.Done {
			return took, e.Usage.CachedTokens
		}
	}
}
