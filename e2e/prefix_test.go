package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/node"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/e2e/natstest"
)

// turn is a prompt of a conversation and its answer.
type turn struct {
	request *api.Request
	tokens  []int32
	logs    []api.TokenLogprob
}

// talk computes an answer and returns all that a client sees of its numbers.
func talk(t *testing.T, p *node.Node, tenant string, q api.Request) (turn, int) {
	t.Helper()
	q.Tenant, q.ID = tenant, fmt.Sprint(tenant, q.ID)
	s, err := p.Submit(t.Context(), &q)
	require.NoError(t, err)
	v := turn{request: &q}
	for {
		e, err := s.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, e.Err)
		v.tokens, v.logs = append(v.tokens, e.Tokens...), append(v.logs, e.Logprobs...)
		if e.Done {
			return v, e.Usage.CachedTokens
		}
	}
}

// TestAPrefixHitChangesNoBit compares conversations whose turns share one tenant's prefixes with the same turns, each as the
// only request of its tenant. The pool is too small for all of them, so slabs are evicted, too.
func TestAPrefixHitChangesNoBit(t *testing.T) {
	for _, kv := range kvTypes() {
		t.Run(kv.String(), func(t *testing.T) {
			t.Parallel()
			p := startPipeline(t, size{rows: 128, chunk: 64, batch: 8, drafts: 8, kv: kv, kvMemory: 3 << 20})
			rng := rand.New(rand.NewPCG(5, uint64(len(kv.String()))))
			system := promptOf(rng, 100)
			var cold []turn
			for i := range 12 {
				prompt := slices.Clone(system[:len(system)-i%3*5])
				for n := range 3 {
					prompt = append(prompt, promptOf(rng, 60)...)
					q := api.Request{
						ID: fmt.Sprint("-", i, "-", n), Model: "tiny-chat", N: 1, PromptTokens: slices.Clone(prompt),
						MaxTokens: 5 + rng.IntN(30), TopLogprobs: 2, Arrival: time.Now(), IgnoreEOS: true,
					}
					if i%2 == 1 {
						q.Sampling = sample.Params{Temperature: 1.1, TopP: 0.9, Seed: uint64(i)}
					}
					v, cached := talk(t, p, fmt.Sprint("cold", i, n), q)
					require.Zero(t, cached)
					cold = append(cold, v)
					prompt = append(prompt, v.tokens...)
				}
			}
			var wg sync.WaitGroup
			hits := make([]int, 12)
			for i := range hits { // all conversations at once, the turns of each in order
				wg.Go(func() {
					for _, want := range cold[3*i : 3*i+3] {
						got, cached := talk(t, p, "warm", *want.request)
						hits[i] += cached
						if !slices.Equal(got.tokens, want.tokens) || fmt.Sprint(got.logs) != fmt.Sprint(want.logs) {
							t.Errorf("%s: found %v, expected %v", want.request.ID, got.tokens, want.tokens)
						}
					}
				})
			}
			wg.Wait()
			total := 0
			for _, n := range hits {
				total += n
			}
			require.Positive(t, total)
			state, err := p.KVState(t.Context(), false)
			require.NoError(t, err)
			require.Equal(t, "ok", state.Check)
		})
	}
}

// TestASaltDividesThePrefixCacheOfAWorkerProcess sends equal prompts over HTTP and NATS to a gateway whose worker is another
// process.
func TestASaltDividesThePrefixCacheOfAWorkerProcess(t *testing.T) {
	hub := natstest.Start(t, nil)
	startRole(t, hub.ClientURL(), "compute")
	gateway := startRole(t, hub.ClientURL(), "gateway,tokenize,detok")
	gateway.waitReady(t)
	nc, err := nats.Connect(hub.ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	g := golden{PromptIDs: promptOf(rand.New(rand.NewPCG(1, 1)), 40)}
	path, subject, body := g.body(false)
	http := func(body string) string {
		_, _, reply := gateway.post(t, path, body)
		return reply
	}
	nats := func(body string) string {
		m, err := nc.Request(subject, []byte(body), patience)
		require.NoError(t, err)
		return string(m.Data)
	}
	text := ""
	for i, c := range []struct {
		salt string
		send func(string) string
		hit  bool
	}{{"", http, false}, {"a", http, false}, {"b", nats, false}, {"a", nats, true}, {"b", http, true}, {"", nats, true}} {
		salted := body
		if c.salt != "" {
			salted = strings.Replace(body, "{", fmt.Sprintf(`{"cache_salt":%q,`, c.salt), 1)
		}
		reply := c.send(salted)
		a := parseAnswer(t, reply)
		require.NotNil(t, a.Usage, reply)
		want := 0
		if c.hit {
			want = a.Usage.Prompt - 1
		}
		require.Equal(t, want, a.Usage.Details.Cached, "%d: %s", i, reply)
		if i == 0 {
			text = a.text()
		}
		require.Equal(t, text, a.text(), "a salt changes no token")
	}
}
