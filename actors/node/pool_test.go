package node

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// poolRequest is a request for a vector.
func poolRequest(id string, p api.Pool, prompt []int32) *api.Request {
	r := tokensRequest(id, prompt, 1)
	r.Pool = &p
	return r
}

// pooledPrompt is prompt i, of up to 400 tokens: several steps of 64 rows.
func pooledPrompt(i int) []int32 {
	prompt := make([]int32, 1+i*37%400)
	for j := range prompt {
		prompt[j] = int32((i*31 + j*j) % 4096)
	}
	return prompt
}

// expectedVector is what the test device makes of a prompt.
func expectedVector(d *testDevice, p api.Pool, prompt []int32) []float32 {
	last := len(prompt) - 1
	switch p.Pooling {
	case api.PoolLast:
		return hiddenState(prompt[last], last)
	case api.PoolLogits:
		row, out := d.logits(prompt[last], last), make([]float32, len(p.Tokens))
		for i, id := range p.Tokens {
			out[i] = row[id]
		}
		return out
	}
	sum := make([]float64, testWidth)
	for i, token := range prompt {
		for k, v := range hiddenState(token, i) {
			sum[k] += float64(v)
		}
	}
	out := make([]float32, testWidth)
	for k, v := range sum {
		out[k] = float32(v / float64(len(prompt)))
	}
	return out
}

// testPools are all poolings.
func testPools(d *testDevice, prompt []int32) []api.Pool {
	next := nextToken(prompt[len(prompt)-1], len(prompt)-1, d.vocab)
	return []api.Pool{{Pooling: api.PoolMean}, {Pooling: api.PoolLast}, {Pooling: api.PoolLogits, Tokens: []int32{next, next ^ 1}}}
}

// vectorOf reads a stream that has one event.
func vectorOf(t *testing.T, s api.Stream) ([]float32, *api.Usage) {
	t.Helper()
	_, last, err := read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, uint64(1), last.Seq, "events")
	require.Equal(t, api.FinishStop, last.Finish)
	require.NotNil(t, last.Extra)
	return last.Extra.Vector, last.Usage
}

func TestAVectorDependsOnItsPromptAlone(t *testing.T) {
	d := newTestDevice(64) // 1,024 tokens: not all prompts fit at once
	p := start(t, testConfig(t, d))
	var wg sync.WaitGroup
	for i := range 90 {
		wg.Go(func() {
			prompt := pooledPrompt(i)
			if i%4 == 3 { // answers beside the vectors
				s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), prompt, 20))
				if err != nil {
					t.Error(err)
					return
				}
				if tokens, _, err := read(s); err != nil || !equal(tokens, expected(d, prompt, 20)) {
					t.Errorf("request %d: %v, %v", i, err, tokens)
				}
				return
			}
			pool := testPools(d, prompt)[i%3]
			s, err := p.Submit(context.Background(), poolRequest(fmt.Sprint(i), pool, prompt))
			if err != nil {
				t.Error(err)
				return
			}
			_, last, err := read(s)
			if err != nil || last.Finish != api.FinishStop || !last.Done {
				t.Errorf("request %d: %v, %+v", i, err, last)
				return
			}
			if want := expectedVector(d, pool, prompt); last.Extra == nil || fmt.Sprint(last.Extra.Vector) != fmt.Sprint(want) {
				t.Errorf("request %d, %s of %d tokens: found %v, expected %v", i, pool.Pooling, len(prompt), last.Extra, want)
			}
			if last.Usage.PromptTokens != len(prompt) || last.Usage.CompletionTokens != 0 {
				t.Errorf("request %d: usage %+v", i, last.Usage)
			}
		})
	}
	wg.Wait()
	requireClean(t, p, d)
}

func TestAMeanReadsNoPrefixCacheAndTheLastTokenDoes(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	prompt := pooledPrompt(9) // of more than a slab
	require.Greater(t, len(prompt), 2*testSlabTokens)
	s, err := p.Submit(context.Background(), tokensRequest("first", prompt, 20)) // fills the cache
	require.NoError(t, err)
	_, _, err = read(s)
	require.NoError(t, err)
	for i, pool := range testPools(d, prompt) {
		s, err := p.Submit(context.Background(), poolRequest(fmt.Sprint(i), pool, prompt))
		require.NoError(t, err)
		vector, usage := vectorOf(t, s)
		require.Equal(t, expectedVector(d, pool, prompt), vector, pool.Pooling)
		if pool.Pooling == api.PoolMean {
			require.Zero(t, usage.CachedTokens)
		} else {
			require.GreaterOrEqual(t, usage.CachedTokens, testSlabTokens, pool.Pooling)
		}
	}
	scored, err := p.Submit(context.Background(), scoredRequest("scored", prompt, 5, 2))
	require.NoError(t, err)
	scores, tokens, last := firstEvents(t, scored)
	requireScores(t, d, prompt, scores)
	require.Equal(t, expected(d, prompt, 5), tokens)
	require.Zero(t, last.Usage.CachedTokens, "every token of the prompt is scored")
	requireClean(t, p, d)
}

// vectorsOf requests 24 vectors, of each pooling in turn.
func vectorsOf(t *testing.T, gateway *node, d *testDevice) (pools []api.Pool, streams []api.Stream) {
	t.Helper()
	for i := range 24 {
		prompt := pooledPrompt(i)
		pools = append(pools, testPools(d, prompt)[i%3])
		s, err := gateway.Submit(context.Background(), poolRequest(fmt.Sprint(i), pools[i], prompt))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	return pools, streams
}

func TestVectorsSurviveTheDeathOfTheirWorker(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, gated)
	pools, streams := vectorsOf(t, gateway, compute[0].device)
	untilSteps(t, compute, 0) // a step each: most prompts are incomplete
	compute[0].kill()
	compute[1].device.open1()
	for i, s := range streams {
		vector, usage := vectorOf(t, s)
		require.Equal(t, expectedVector(compute[1].device, pools[i], pooledPrompt(i)), vector, "stream %d, %s", i, pools[i].Pooling)
		require.Equal(t, len(pooledPrompt(i)), usage.PromptTokens)
	}
	requireClean(t, compute[1].Node, compute[1].device)
}

func TestVectorsSurviveAFailureOfTheDevice(t *testing.T) {
	c := newTestNodes(t)
	fails := func(cfg *Config) { cfg.Model.(*testDevice).failAt = []int{3} }
	gateway, _, _, compute := four(c, 2, fails)
	pools, streams := vectorsOf(t, gateway, compute[0].device)
	for i, s := range streams {
		vector, _ := vectorOf(t, s)
		require.Equal(t, expectedVector(compute[1].device, pools[i], pooledPrompt(i)), vector, "stream %d, %s", i, pools[i].Pooling)
	}
	require.Positive(t, compute[0].device.reloaded()+compute[1].device.reloaded(), "a device failed")
}

func TestWhatAVectorCannotHaveIsRefused(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	for message, change := range map[string]func(*api.Request){
		"found 2 choices":     func(r *api.Request) { r.N = 2 },
		"of 5":                func(r *api.Request) { r.MaxTokens = 5 },
		`found "cls"`:         func(r *api.Request) { r.Pool.Pooling = "cls" },
		"without tokens":      func(r *api.Request) { r.Pool.Pooling = api.PoolLogits },
		"token 0 is 4096":     func(r *api.Request) { r.Pool = &api.Pool{Pooling: api.PoolLogits, Tokens: []int32{4096}} },
		"fewer than 1024 (co": func(r *api.Request) { r.PromptTokens = make([]int32, 1024) },
	} {
		r := poolRequest("r", api.Pool{Pooling: api.PoolMean}, []int32{1, 2, 3})
		change(r)
		s, err := p.Submit(context.Background(), r)
		if err == nil {
			var last api.Event
			_, last, err = read(s)
			require.NoError(t, err)
			err = last.Err
		}
		require.ErrorContains(t, err, message)
		require.Equal(t, api.CodeInvalid, api.AsError(err).Code)
	}
}

func TestALongPromptIsCutOnlyIfItsRequestSaysSo(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	prompt := make([]int32, 1500)
	for i := range prompt {
		prompt[i] = int32(i)
	}
	r := poolRequest("cut", api.Pool{Pooling: api.PoolMean}, prompt)
	r.Truncate = true
	s, err := p.Submit(context.Background(), r)
	require.NoError(t, err)
	vector, usage := vectorOf(t, s)
	require.Equal(t, 1023, usage.PromptTokens, "the pool has 1,024 tokens")
	require.Equal(t, expectedVector(d, *r.Pool, prompt[:1023]), vector)
}
