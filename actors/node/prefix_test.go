package node

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// numbered is a prompt of tokens that no other prompt of these tests has, from first on.
func numbered(first, n int) []int32 {
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = int32(first + i)
	}
	return prompt
}

// answer submits a request and reads its answer.
func answer(t *testing.T, p *Node, r *api.Request) (tokens []int32, last api.Event) {
	t.Helper()
	s, err := p.Submit(t.Context(), r)
	require.NoError(t, err)
	tokens, last, err = read(s)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	return tokens, last
}

func TestAConversationComputesItsNewTokensOnly(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	prompt := numbered(100, 100)
	first, last := answer(t, p, tokensRequest("first", prompt, 30))
	require.Zero(t, last.Usage.CachedTokens)
	before := d.computed()
	next := append(append(prompt, first...), numbered(1000, 10)...)
	tokens, last := answer(t, p, tokensRequest("next", next, 5))
	require.Equal(t, expected(d, next, 5), tokens)
	require.Equal(t, 129, last.Usage.CachedTokens, "all but the token that was sampled last, whose keys nobody needed")
	require.Equal(t, 11+4, d.computed()-before)
	requireClean(t, p, d)
}

func TestASaltDividesThePrefixesOfATenant(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	for i, c := range []struct {
		tenant, salt string
		cached       int
	}{{"a", "", 0}, {"a", "b", 0}, {"a", "", 99}, {"a", "b", 99}, {"a", "c", 0}, {"ab", "", 0}, {"", "ab", 0}, {"", "", 0},
		{"", "ab", 99}} {
		r := tokensRequest(fmt.Sprint(i), numbered(100, 100), 3)
		r.Tenant, r.CacheSalt = c.tenant, c.salt
		_, last := answer(t, p, r)
		require.Equal(t, c.cached, last.Usage.CachedTokens, "%d: %+v", i, c)
	}
	requireClean(t, p, d)
}

func TestEqualPromptsAtOnceAreComputedOnce(t *testing.T) {
	d := newTestDevice(64)
	d.gate = make(chan struct{})
	p := start(t, testConfig(t, d))
	t.Cleanup(d.open1)           // before the node closes
	prompt := numbered(100, 150) // of three steps
	var streams []api.Stream
	for i := range 6 {
		s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), prompt, 3))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	d.open1()
	cached := 0
	for _, s := range streams {
		tokens, last, err := read(s)
		require.NoError(t, err)
		require.NoError(t, last.Err)
		require.Equal(t, expected(d, prompt, 3), tokens)
		cached += last.Usage.CachedTokens
	}
	require.Equal(t, 5*149, cached)
	require.Equal(t, 150+5+6*2, d.computed())
	requireClean(t, p, d)
}

func TestChoicesOfARequestPrefillOnce(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	r := tokensRequest("r", numbered(100, 45), 4)
	r.N = 8
	_, last := answer(t, p, r)
	require.Zero(t, last.Usage.CachedTokens, "the first one had nothing")
	require.Equal(t, 45+7+8*3, d.computed())
	requireClean(t, p, d)
}

func TestARequestDoesNotWaitForAPrefixWhoseRequestIsGone(t *testing.T) {
	d := newTestDevice(64)
	d.gate = make(chan struct{})
	p := start(t, testConfig(t, d))
	t.Cleanup(d.open1) // before the node closes
	prompt := numbered(100, 150)
	first, err := p.Submit(t.Context(), tokensRequest("first", prompt, 3))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.begun.Load() > 0 }, patience, time.Millisecond)
	second, err := p.Submit(t.Context(), tokensRequest("second", prompt, 3))
	require.NoError(t, err)
	first.Close()
	d.open1()
	tokens, last, err := read(second)
	require.NoError(t, err)
	require.NoError(t, last.Err)
	require.Equal(t, expected(d, prompt, 3), tokens)
	requireClean(t, p, d)
}

func TestTenantsShareNoPrefix(t *testing.T) {
	d := newTestDevice(64)
	p := start(t, testConfig(t, d))
	for _, tenant := range []string{"a", "b"} {
		r := tokensRequest(tenant, numbered(100, 50), 3)
		r.Tenant = tenant
		_, last := answer(t, p, r)
		require.Zero(t, last.Usage.CachedTokens)
	}
	r := tokensRequest("again", numbered(100, 50), 3)
	r.Tenant = "b"
	_, last := answer(t, p, r)
	require.Equal(t, 49, last.Usage.CachedTokens)
	requireClean(t, p, d)
}

func TestNothingIsSharedAfterADeviceWasLoadedAgain(t *testing.T) {
	d := newTestDevice(64)
	cfg := testConfig(t, d)
	p := start(t, cfg)
	prompt := numbered(100, 50)
	answer(t, p, tokensRequest("first", prompt, 3))
	d.mu.Lock()
	d.failAt = []int{d.steps + 1}
	d.mu.Unlock()
	s, err := p.Submit(t.Context(), tokensRequest("failed", numbered(1000, 20), 3))
	require.NoError(t, err)
	_, last, err := read(s)
	require.NoError(t, err)
	require.ErrorContains(t, last.Err, "lost the device")
	require.Eventually(t, func() bool { return d.reloaded() == 1 }, patience, time.Millisecond)
	_, last = answer(t, p, tokensRequest("second", prompt, 3))
	require.Zero(t, last.Usage.CachedTokens)
	requireClean(t, p, d)
}
