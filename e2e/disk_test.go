package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
)

// TestAPrefixFromTheDiskChangesNoBit compares answers of a process with those of the next one, whose prefixes come from the
// disk, and with those of one that finds the disk damaged.
func TestAPrefixFromTheDiskChangesNoBit(t *testing.T) {
	for _, kv := range []model.KVType{model.KVAuto, model.KVInt8, model.KVInt4} {
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
