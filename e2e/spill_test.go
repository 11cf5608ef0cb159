package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
)

// longAnswer is a request, greedy or sampled, whose answer needs most of a pool of about 40 slabs.
func longAnswer(i, tokens int) *api.Request {
	rng := rand.New(rand.NewPCG(11, uint64(i)))
	q := &api.Request{
		ID: fmt.Sprint(i), Model: "tiny-chat", N: 1, PromptTokens: append(promptOf(rng, 40), make([]int32, 20)...), MaxTokens: tokens,
		TopLogprobs: -1, Arrival: time.Now(), IgnoreEOS: true,
	}
	if i%2 == 1 {
		q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.95, RepetitionPenalty: 1.1, Seed: uint64(i)}
	}
	return q
}

// TestSpilledSequencesHaveTheirTokens: in a pool that holds one and a half of the sequences that run, with a tier for the others, all
// answers reach their declared ends with the tokens that they have in a large pool, and nothing is computed again.
func TestSpilledSequencesHaveTheirTokens(t *testing.T) {
	const n, tokens = 6, 400
	short := map[model.KVType]int64{model.KVAuto: 2560 << 10, model.KVInt8: 1408 << 10, model.KVInt4: 800 << 10}
	type variant struct {
		kv    model.KVType
		ranks int
	}
	variants := []variant{{ranks: 2}}
	for _, kv := range kvTypes() {
		variants = append(variants, variant{kv: kv})
	}
	for _, v := range variants {
		kv := v.kv
		t.Run(fmt.Sprintf("%s/%d", kv, max(1, v.ranks)), func(t *testing.T) {
			s := size{rows: 128, chunk: 64, batch: 8, drafts: 8, kv: kv, kvMemory: 64 << 20, predict: true, ranks: v.ranks}
			p, _, end := startAndEnd(t, s)
			want := make([][]int32, n)
			var wg sync.WaitGroup
			for i := range n {
				wg.Go(func() {
					stream, err := p.Submit(context.Background(), longAnswer(i, tokens))
					if err == nil {
						want[i], _, err = readAll(stream)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			end()
			s.kvMemory = short[kv]
			for _, damaged := range []bool{false, true} {
				s.spill = t.TempDir()
				p, series, end := startAndEnd(t, s)
				for i := range 20 { // short answers: the long ones are not predicted
					stream, err := p.Submit(context.Background(), longAnswer(100+i, 5))
					require.NoError(t, err)
					_, _, err = readAll(stream)
					require.NoError(t, err)
				}
				quit := make(chan struct{})
				var flipping sync.WaitGroup
				if damaged {
					flipping.Go(func() {
						flipTier(t, s.spill, quit, func() float64 { return total(t, series, "millrace_kv_spill_replays_total") })
					})
				}
				for i := range n {
					wg.Go(func() { expect(t, p, longAnswer(i, tokens), want[i]) })
				}
				wg.Wait()
				close(quit)
				flipping.Wait()
				restores, replays := total(t, series, "millrace_kv_spill_restores_total"),
					total(t, series, "millrace_kv_spill_replays_total")
				again := total(t, series, "millrace_recomputed_tokens_total")
				state, err := p.KVState(t.Context(), false)
				require.NoError(t, err)
				t.Logf("%d slabs, %d slots: %v restores, %v replays of %v tokens, %v growths denied", state.Stats.Slabs, state.Stats.Slots,
					restores, replays, again, total(t, series, "millrace_kv_growth_denied_total"))
				require.Equal(t, "ok", state.Check)
				require.Zero(t, state.Stats.Spilled)
				if damaged {
					require.Positive(t, replays)
					require.Positive(t, again)
				} else {
					require.Positive(t, restores)
					require.Zero(t, replays)
					require.Zero(t, again)
				}
				end()
			}
		})
	}
}

// flipTier flips bytes of the file that a process has in a directory, which has no name there, until a copy was found damaged.
func flipTier(t *testing.T, dir string, quit chan struct{}, replays func() float64) {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Error(err)
		return
	}
	var f *os.File
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && strings.HasPrefix(to, dir) {
			if f, err = os.OpenFile(link, os.O_RDWR, 0); err != nil {
				t.Error(err)
				return
			}
			defer f.Close() //nolint:errcheck // of a test
		}
	}
	if f == nil {
		t.Error("no file is open in " + dir)
		return
	}
	for b := make([]byte, 1); replays() == 0; {
		select {
		case <-quit:
			return
		case <-time.After(time.Millisecond):
		}
		for at := int64(100); at < 2<<20; at += 4096 {
			if _, err := f.ReadAt(b, at); err != nil {
				t.Error(err)
				return
			}
			b[0] ^= 1
			if _, err := f.WriteAt(b, at); err != nil {
				t.Error(err)
				return
			}
		}
	}
}
