package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// Conversations of the test: what all of them have at their ends fills the memory one and a half times.
const (
	talks      = 200
	talkTurns  = 5
	talkers    = 24      // at a time
	said       = 40      // tokens of a message
	answered   = 24      // tokens of an answer
	talkMemory = 4 * 700 // slabs
)

// conversation is the token ids of all messages and answers so far, and the number of turns.
type conversation struct {
	ids   []int32
	turns int
}

// conversations are those that wait for their next turn.
type conversations struct {
	mu               sync.Mutex
	rng              *rand.Rand
	idle             []*conversation
	prompted, cached int // tokens of prompts
}

// next says something in a random conversation; nil if all have ended, or have their turn.
func (c *conversations) next() *conversation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == 0 {
		return nil
	}
	i, last := c.rng.IntN(len(c.idle)), len(c.idle)-1
	v := c.idle[i]
	c.idle[i] = c.idle[last]
	c.idle = c.idle[:last]
	for range said {
		v.ids = append(v.ids, c.rng.Int32N(4000))
	}
	return v
}

func (c *conversations) answered(v *conversation, ids []int32, cached int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prompted, c.cached = c.prompted+len(v.ids), c.cached+cached
	v.ids = append(v.ids, ids...)
	if v.turns++; v.turns < talkTurns {
		c.idle = append(c.idle, v)
	}
}

// talkAll has all conversations, by token ids, and returns the share of their prompts that was cached.
func talkAll(t *testing.T, s *server, seed uint64) (cached float64) {
	t.Helper()
	c := conversations{rng: rand.New(rand.NewPCG(seed, 1))}
	for range talks {
		c.idle = append(c.idle, &conversation{})
	}
	var wg sync.WaitGroup
	for range talkers {
		wg.Go(func() {
			for v := c.next(); v != nil; v = c.next() {
				ids, hit, err := sayIDs(s, v.ids)
				if err != nil {
					t.Error(err)
					return
				}
				c.answered(v, ids, hit)
			}
		})
	}
	wg.Wait()
	require.Empty(t, c.idle)
	return float64(c.cached) / float64(c.prompted)
}

// sayIDs completes a prompt of token ids.
func sayIDs(s *server, ids []int32) (answer []int32, cached int, err error) {
	prompt, err := json.Marshal(ids)
	if err != nil {
		return nil, 0, err
	}
	body := fmt.Sprintf(`{"model":"tiny-chat","prompt":%s,"max_tokens":%d,"ignore_eos":true,"return_token_ids":true}`, prompt, answered)
	client := http.Client{Timeout: patience}
	r, err := client.Post("http://"+s.http+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return nil, 0, err
	}
	defer r.Body.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, 0, err
	}
	var got struct {
		Choices []struct {
			IDs []int32 `json:"token_ids"`
		} `json:"choices"`
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
	}
	if err := json.Unmarshal(data, &got); err != nil || len(got.Choices) != 1 || len(got.Choices[0].IDs) != answered {
		return nil, 0, fmt.Errorf("%s: %.300s: %w", r.Status, data, err)
	}
	return got.Choices[0].IDs, got.Usage.Details.Cached, nil
}

// simulated are the settings of a worker with a simulated device and a number of slabs.
func simulated(t *testing.T, slabs, batch int) []string {
	t.Helper()
	device := filepath.Join(t.TempDir(), "device.json")
	require.NoError(t, os.WriteFile(device, []byte(`{"base":"cpu","speed":0.3,"answer_tokens":0}`), 0o600))
	const slabBytes = 64 << 10 // of the demo model, with 16-bit keys and values
	return []string{"--backend", "sim", "--device", device, "--kv-memory", fmt.Sprint(slabs * slabBytes), "--max-batch-size",
		fmt.Sprint(batch)}
}

// TestFourWorkersFindThePrefixesThatOneFinds compares four workers with one that has the memory of all. Steps take milliseconds
// of modeled time, so the counts hardly depend on how busy this machine is. In short mode it has one seed.
func TestFourWorkersFindThePrefixesThatOneFinds(t *testing.T) {
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			one := startServer(t, simulated(t, talkMemory, 4*talkers)...)
			alone := talkAll(t, one, seed)
			require.NoError(t, one.cmd.Process.Kill())

			url := natstest.Start(t, &natsserver.Options{JetStream: true}).ClientURL()
			startRole(t, url, "tokenize")
			startRole(t, url, "detok")
			var workers []*server
			for range 4 {
				workers = append(workers, startRole(t, url, "compute", simulated(t, talkMemory/4, talkers)...))
			}
			gateway := startRole(t, url, "gateway")
			require.Eventually(t, func() bool { return metric(t, gateway, "millrace_prefix_index_snapshots_total") == 4 }, patience,
				10*time.Millisecond)
			together := talkAll(t, gateway, seed)
			t.Logf("share of prompt tokens from the cache: one worker %.3f, four %.3f", alone, together)
			require.Less(t, alone, 0.8, "the memory holds everything: nothing is evicted")
			require.GreaterOrEqual(t, together, 0.9*alone)
			requireEven(t, workers)
		})
	}
}

// requireEven compares the tokens that workers computed.
func requireEven(t *testing.T, workers []*server) {
	t.Helper()
	computed, sum := make([]float64, len(workers)), 0.0
	for i, w := range workers {
		prompts := metric(t, w, "millrace_prefix_cache_queries_total") - metric(t, w, "millrace_prefix_cache_hits_total")
		computed[i] = prompts + metric(t, w, "millrace_generation_tokens_total")
		sum += computed[i]
	}
	for i := range computed {
		share := computed[i] / sum * float64(len(workers))
		t.Logf("worker %d computed %.3f of an even share", i, share)
		require.InDelta(t, 1, share, 0.15, "worker %d", i)
	}
}
