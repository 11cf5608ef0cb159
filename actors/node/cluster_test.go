package node

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/e2e/natstest"
	"github.com/millrace/millrace/metrics"
)

// node is a process of a cluster, as far as its pipeline goes.
type node struct {
	*Node
	conn   *nats.Conn
	device *testDevice
	once   sync.Once
}

// testNodes are the processes that serve together.
type testNodes struct {
	t    *testing.T
	url  string
	dead time.Duration // see Cluster; 0: 2 s, which is longer than a busy machine makes a node silent
}

func newTestNodes(t *testing.T) *testNodes {
	return &testNodes{t: t, url: natstest.Start(t, nil).ClientURL()}
}

func (c *testNodes) start(change func(*Config), roles ...cluster.Role) *node {
	c.t.Helper()
	conn, err := nats.Connect(c.url, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(c.t, err)
	n := &node{conn: conn, device: newTestDevice(200)}
	cfg := testConfig(c.t, n.device)
	cfg.Roles, cfg.MaxRequests = roles, 100
	cfg.Cluster = Cluster{Conn: conn, Beat: 20 * time.Millisecond, Dead: cmp.Or(c.dead, 2*time.Second), FailoverTimeout: patience}
	cfg.Metrics, cfg.Log = metrics.New(metrics.Build{}), zerolog.New(zerolog.NewTestWriter(c.t))
	if change != nil {
		change(&cfg)
	}
	if cluster.ComputingOf(roles) == "" {
		cfg.Model = nil
	}
	if !hasRole(roles, cluster.Tokenize) && !hasRole(roles, cluster.Detok) && cluster.ComputingOf(roles) == "" {
		cfg.Tokenizer = nil
	}
	n.Node, err = New(cfg)
	require.NoError(c.t, err)
	c.t.Cleanup(n.kill)
	return n
}

func hasRole(list []cluster.Role, r cluster.Role) bool {
	return (&cluster.Member{Roles: list}).Has(r)
}

// kill cuts a node off without a word, and then stops what is left of it.
func (n *node) kill() {
	n.once.Do(func() {
		n.conn.Close()
		if n.device.gate != nil {
			n.device.open1()
		}
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = n.Close(ctx) // it has lost everything
	})
}

// sees waits until a node knows of a number of others and is ready.
func (n *node) sees(t *testing.T, others int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(n.members.Others()) == others && n.Ready() == nil }, patience, time.Millisecond)
}

// open1 lets a gated device run freely.
func (d *testDevice) open1() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.freed {
		d.freed = true
		close(d.gate)
	}
}

// gated lets the test open each step of a device, one step ahead at most.
func gated(c *Config) { c.Model.(*testDevice).gate = make(chan struct{}, 1) }

// four is a gateway, tokenizers, detokenizers and compute processes apart from each
// other.
func four(c *testNodes, workers int, change func(*Config)) (gateway, tokenize, detok *node, compute []*node) {
	gateway = c.start(nil, cluster.Gateway)
	tokenize = c.start(nil, cluster.Tokenize)
	detok = c.start(nil, cluster.Detok)
	for range workers {
		compute = append(compute, c.start(change, cluster.Compute))
	}
	gateway.sees(c.t, 2+workers)
	return gateway, tokenize, detok, compute
}

func TestRolesInProcessesOfTheirOwnServeTogether(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, detok, compute := four(c, 2, nil)
	first := gateway.Models()[0]
	require.Equal(t, []api.Model{{ID: "m",
		TextFacts: api.TextFacts{EOS: []int32{2, 6}},
		WeightFacts: api.WeightFacts{
			Created: first.Created, ContextLength: 2048, Vocab: 4096, Embedding: api.Embedding{Width: testWidth, Pooling: api.PoolLast},
		},
	}}, gateway.Models())
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			prompt := []int32{int32(i), 7}
			s, err := gateway.Submit(context.Background(), tokensRequest(fmt.Sprint(i), prompt, 50))
			if err != nil {
				t.Error(err)
				return
			}
			tokens, last, err := read(s)
			if err != nil || last.Finish != api.FinishLength || !equal(tokens, expected(compute[0].device, prompt, 50)) {
				t.Errorf("request %d: %v, %+v, %v", i, err, last, tokens)
			}
		})
	}
	wg.Wait()
	for _, n := range compute {
		require.Positive(t, n.device.steps, "both have work")
		requireClean(t, n.Node, n.device)
	}
	require.Zero(t, detok.detokenizers.Load())

	last := requireText(t, gateway, "Once upon a time")
	ids, err := gateway.Tokenize(context.Background(), &api.TokenizeRequest{Prompt: "Once upon a time", AddSpecialTokens: true})
	require.NoError(t, err)
	require.Len(t, ids, last.Usage.PromptTokens)
	text, err := gateway.Detokenize(context.Background(), "m", ids)
	require.NoError(t, err)
	require.Contains(t, text, "Once upon a time")
	_, err = gateway.Tokenize(context.Background(), &api.TokenizeRequest{Prompt: "\xff"})
	require.ErrorContains(t, err, "UTF-8")
}

// requireText requires that a text prompt is answered with 5 tokens, and returns the answer's last event.
func requireText(t *testing.T, gateway *node, prompt string) api.Event {
	t.Helper()
	r := tokensRequest("text", nil, 5)
	r.Prompt = prompt
	s, err := gateway.Submit(context.Background(), r)
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.Equal(t, api.FinishLength, last.Finish)
	return last
}

func TestALongPromptTravelsThroughAServerWithASmallLimit(t *testing.T) {
	c := &testNodes{t: t, url: natstest.Start(t, &server.Options{MaxPayload: 16 << 10}).ClientURL()}
	long := func(cfg *Config) {
		cfg.Facts.ContextLength, cfg.Sched.MaxSequenceTokens, cfg.Sched.MaxBatchTokens = 1<<18, 1<<18, 1<<14
		if d, ok := cfg.Model.(*testDevice); ok {
			d.slabs = 1 << 14
		}
	}
	gateway := c.start(long, cluster.Gateway)
	c.start(long, cluster.Tokenize)
	c.start(long, cluster.Detok)
	compute := c.start(long, cluster.Compute)
	gateway.sees(t, 3)
	prompt := make([]int32, 200_000)
	for i := range prompt {
		prompt[i] = int32(i % 4096)
	}
	s, err := gateway.Submit(context.Background(), tokensRequest("long", prompt, 20))
	require.NoError(t, err)
	tokens, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(compute.device, prompt, 20), tokens)

	text := make([]byte, 0, 1<<20)
	for len(text) < 800_000 {
		text = append(text, "Once upon a time there was a word. "...)
	}
	r := tokensRequest("long text", nil, 20)
	r.Prompt = string(text)
	s, err = gateway.Submit(context.Background(), r)
	require.NoError(t, err)
	_, last, err = read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Greater(t, last.Usage.PromptTokens, 100_000)
}

func TestRolesAloneAreRefused(t *testing.T) {
	cfg := testConfig(t, newTestDevice(100))
	cfg.Roles, cfg.Log = []cluster.Role{cluster.Compute}, zerolog.Nop()
	_, err := New(cfg)
	require.ErrorContains(t, err, "without a NATS connection")
}
