package node

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/kvmgr"
)

// mixing makes a worker's layers be in three groups, of which two see a window.
func mixing(c *Config) {
	sliding(c)
	c.Model.(*testDevice).groups = mixed
}

var mixed = kvmgr.Counts{Full: 1, Windowed: 2}

// mixedSlabs is the most slabs that a sequence of some tokens has at these workers.
func mixedSlabs(tokens int) int {
	return kvmgr.Need{LiveSlabs: liveSlabs, Groups: mixed}.AtOnce((tokens + testSlabTokens - 1) / testSlabTokens)
}

// mixer is a worker with such layers and a pool of slabs.
func mixer(t *testing.T, slabs int, more func(*Config)) (*Node, *testDevice) {
	t.Helper()
	return slider(t, slabs, func(c *Config) {
		mixing(c)
		if more != nil {
			more(c)
		}
	})
}

// TestLayersWithAWindowGiveSlabsBackBesideOthers: a sequence of 2,000 tokens has all slabs of one group and a few of the others.
func TestLayersWithAWindowGiveSlabsBackBesideOthers(t *testing.T) {
	slabs := mixedSlabs(2000)
	require.Less(t, slabs, 2000/testSlabTokens*mixed.Count()/2)
	for _, pieces := range []bool{false, true} {
		p, d := mixer(t, slabs, func(c *Config) {
			if pieces {
				slowly(c)
			}
		})
		prompt := numbered(100, 1000)
		tokens, _ := answer(t, p, tokensRequest("long", prompt, 1000))
		require.Equal(t, expected(d, prompt, 1000), tokens)
		require.Positive(t, d.trims)
		requireClean(t, p, d)
	}
}

// TestSequencesOfMixedLayersRunTogether whose slabs fit: with the slabs of all tokens in all groups not two of them would.
func TestSequencesOfMixedLayersRunTogether(t *testing.T) {
	for _, predict := range []bool{false, true} {
		p, d := mixer(t, 4*mixedSlabs(1700), func(c *Config) { c.Sched.Predict = predict })
		var streams []api.Stream
		for i := range 8 {
			s, err := p.Submit(t.Context(), tokensRequest(fmt.Sprint(i), numbered(300*i, 700), 1000))
			require.NoError(t, err)
			streams = append(streams, s)
		}
		for i, s := range streams {
			tokens, last, err := read(s)
			require.NoError(t, err)
			require.NoError(t, last.Err)
			require.Equal(t, expected(d, numbered(300*i, 700), 1000), tokens)
		}
		require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
		require.GreaterOrEqual(t, d.together, 4)
		requireClean(t, p, d)
	}
}

// TestAHitNeedsTheLastWindowOfSomeLayersAndAllTokensOfOthers: the next turn of a conversation computes its new tokens.
func TestAHitNeedsTheLastWindowOfSomeLayersAndAllTokensOfOthers(t *testing.T) {
	p, d := mixer(t, mixedSlabs(1320)+4, nil)
	prompt := numbered(100, 1000)
	first, last := answer(t, p, tokensRequest("first", prompt, 300))
	require.Zero(t, last.Usage.CachedTokens)
	before := d.computed()
	next := append(append(prompt, first...), numbered(3000, 10)...)
	tokens, last := answer(t, p, tokensRequest("next", next, 5))
	require.Equal(t, expected(d, next, 5), tokens)
	require.Equal(t, 1299, last.Usage.CachedTokens)
	require.Equal(t, 11+4, d.computed()-before)
	requireClean(t, p, d)
}

func TestChoicesOfMixedLayersPrefillOnce(t *testing.T) {
	p, d := mixer(t, 8*mixedSlabs(1405), nil)
	r := tokensRequest("r", numbered(100, 1005), 400)
	r.N = 8
	_, last := answer(t, p, r)
	require.Zero(t, last.Usage.CachedTokens, "the first one had nothing")
	require.Equal(t, 1005+7+8*399, d.computed())
	requireClean(t, p, d)
}

func TestASequenceOfMixedLayersReturnsFromTheTier(t *testing.T) {
	d := newTestDevice(0)
	cfg := testConfig(t, d)
	short(&cfg)
	mixing(&cfg)
	d.slabs = mixedSlabs(growingPrompt+growingTokens) + 2
	cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 1200}
	p := start(t, cfg)
	t.Cleanup(d.open1)
	d.open1()
	briefly(t, p)
	requireReturns(t, p, d, 3)
}

// TestAHandOverOfMixedLayersCopiesAllGroups, and nothing is computed again.
func TestAHandOverOfMixedLayersCopiesAllGroups(t *testing.T) {
	c := newTestNodes(t)
	gateway, _, _, compute := four(c, 2, func(c *Config) {
		roomy(c)
		mixing(c)
		c.Model.(*testDevice).slabs = 24 * mixedSlabs(500)
	})
	paced(t, compute)
	streams := pooled(t, gateway, compute, 12, 400)
	require.Positive(t, compute[0].worker.InFlight())
	outsideWindows(t, compute)
	requireHandedOver(t, compute, streams)
}
