package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
)

func TestEvictionsAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]model.Eviction{
		"": {}, "none": {}, "streaming": {Sinks: 4}, "streaming:window=100": {Sinks: 4, Window: 100},
		"streaming:sinks=16,window=2,context=1048576": {Sinks: 16, Window: 2, Context: 1 << 20},
		"h2o": {H2O: true}, "h2o:heavy=960": {H2O: true, Heavy: 960}, "h2o:heavy=1,recent=64": {H2O: true, Heavy: 1, Recent: 64},
	} {
		e, err := model.ParseEviction(text)
		require.NoError(t, err)
		require.Equal(t, want, e)
		again, err := model.ParseEviction(e.String())
		require.NoError(t, err)
		require.Equal(t, e, again)
	}
	for text, found := range map[string]string{
		"snapkv": `found "snapkv"`, "h2o:": `found "" in`, "h2o:heavy=0": "expected heavy=1 to 1048576",
		"h2o:recent=x": "expected recent=1 to",
		"h2o:sinks=4":  `found "sinks=4"`, "streaming:heavy=4": `found "heavy=4"`, "none:sinks=1": `found "none:sinks=1"`,
		"streaming:": `found "" in`, "streaming:sinks": `found "sinks" in`, "streaming:sinks=17": "expected sinks=1 to 16",
		"streaming:sinks=0": "expected sinks=1 to 16", "streaming:window=1": "expected window=2 to",
		"streaming:window=1e3": "expected window=2 to", "streaming:slabs=3": `found "slabs=3"`,
		"streaming:context=1048577": "expected context=1 to 1048576",
	} {
		_, err := model.ParseEviction(text)
		require.ErrorContains(t, err, found, text)
	}
}

func TestAnEvictionIsInTheOpsAndLeavesTheProgramBefore(t *testing.T) {
	cfg, err := family.LoadConfig("../../testdata/models/llama-gqa")
	require.NoError(t, err)
	before, err := family.Build(cfg, nil)
	require.NoError(t, err)
	p := *before
	require.NoError(t, p.SetEviction(model.Eviction{Sinks: 4}))
	require.Equal(t, model.Eviction{Sinks: 4, Window: cfg.MaxPositions - 4, Context: model.MaxContext}, p.Eviction)
	require.Equal(t, cfg.MaxPositions-4, p.Window())
	require.Equal(t, model.Groups{Layers: cfg.Layers, Windowed: 1}, p.Groups())
	require.Equal(t, model.MaxContext, p.MaxPositions)
	require.Equal(t, 1, p.SinkSlabs(16))
	require.Zero(t, before.Window())
	require.Len(t, p.Slots, len(before.Slots)+1)
	for i, op := range p.Ops {
		if op.Kind == model.OpRopeStore || op.Kind == model.OpAttention {
			require.Equal(t, 4, op.Sinks)
			require.Equal(t, "sink_q", p.Slots[op.SinkQ].Name)
			require.Equal(t, op.Heads*op.HeadDim, p.Slots[op.SinkQ].Width)
		} else {
			require.Equal(t, before.Ops[i], op)
		}
	}
	unchanged := *before
	require.NoError(t, unchanged.SetEviction(model.Eviction{}))
	require.Equal(t, *before, unchanged)
}

func TestModelsThatCannotEvictAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		eviction model.Eviction
		reason   string
	}{
		"opt-prenorm":    {model.Eviction{Sinks: 4, Window: 20}, "found a table of positions in OPTForCausalLM"},
		"bloom-8-heads":  {model.Eviction{Sinks: 4, Window: 20}, "found attention without rotary embeddings in BloomForCausalLM"},
		"mistral-window": {model.Eviction{Sinks: 4, Window: 20}, "found a window of 11 tokens in the model"},
		"qwen2-window":   {model.Eviction{Sinks: 4, Window: 20}, "in the model, expected a model without windows"},
		"llama-gqa": {model.Eviction{Sinks: 4, Window: 125},
			"found 4 sinks and a window of 125, expected at most the model's 128 positions"},
		"llama-f32": {model.Eviction{Sinks: 4, Window: 20, Context: 23},
			"found a context of 23 tokens with 4 sinks and a window of 20"},
	} {
		cfg, err := family.LoadConfig("../../testdata/models/" + name)
		require.NoError(t, err)
		p, err := family.Build(cfg, nil)
		require.NoError(t, err)
		before := *p
		err = p.SetEviction(c.eviction)
		require.ErrorIs(t, err, model.ErrEviction, name)
		require.ErrorContains(t, err, c.reason, name)
		require.Equal(t, before, *p, "%s: nothing changed", name)
	}
}

func TestHeavyTokensAreInTheOpsAndLeaveTheProgramBefore(t *testing.T) {
	cfg, err := family.LoadConfig("../../testdata/models/llama-gqa")
	require.NoError(t, err)
	before, err := family.Build(cfg, nil)
	require.NoError(t, err)
	p := *before
	require.NoError(t, p.SetEviction(model.Eviction{H2O: true, Heavy: 40}))
	require.Equal(t, model.Eviction{H2O: true, Heavy: 40, Recent: cfg.MaxPositions / 8}, p.Eviction)
	require.Equal(t, "h2o-40-16", p.Lossy())
	require.Equal(t, cfg.MaxPositions, p.MaxPositions)
	require.Equal(t, before.Groups(), p.Groups())
	require.Equal(t, before.Slots, p.Slots)
	for i, op := range p.Ops {
		if op.Kind == model.OpRopeStore || op.Kind == model.OpAttention {
			require.Equal(t, []int{40, 16}, []int{op.Heavy, op.Recent})
			require.Equal(t, 64, model.KeysSeen(&op, 63))
			require.Equal(t, 57, model.KeysSeen(&op, 64), "56 kept, and itself")
			require.Equal(t, 120, model.KeysSeen(&op, 127))
			require.Equal(t, 57, model.KeysSeen(&op, 128))
		} else {
			require.Equal(t, before.Ops[i], op)
		}
	}
	p = *before
	require.NoError(t, p.SetEviction(model.Eviction{H2O: true}))
	require.Equal(t, "h2o-16-16", p.Lossy())
}

func TestModelsThatCannotKeepHeavyTokensAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		kv       model.KVType
		eviction model.Eviction
		reason   string
	}{
		"bloom-8-heads":  {model.KVAuto, model.Eviction{H2O: true, Heavy: 20, Recent: 20}, "found slopes (ALiBi) in BloomForCausalLM"},
		"mistral-window": {model.KVAuto, model.Eviction{H2O: true, Heavy: 20, Recent: 20}, "found a window of 11 tokens in the model"},
		"llama-gqa": {model.KVAuto, model.Eviction{H2O: true, Heavy: 100, Recent: 28},
			"found 100 heavy and 28 recent tokens, expected fewer than the model's 128 positions"},
		"llama-f32": {model.KVInt8, model.Eviction{H2O: true, Heavy: 20, Recent: 20}, "found KV type int8 with h2o, expected bf16"},
	} {
		cfg, err := family.LoadConfig("../../testdata/models/" + name)
		require.NoError(t, err)
		p, err := family.Build(cfg, nil)
		require.NoError(t, err)
		p.KV = c.kv
		before := *p
		err = p.SetEviction(c.eviction)
		require.ErrorIs(t, err, model.ErrEviction, name)
		require.ErrorContains(t, err, c.reason, name)
		require.Equal(t, before, *p, "%s: nothing changed", name)
	}
}

func TestKiviEvictsNothingAndIsAnnounced(t *testing.T) {
	cfg, err := family.LoadConfig("../../testdata/models/llama-gqa")
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	require.Empty(t, p.Lossy())
	p.KV = model.KVKivi
	require.Equal(t, "kivi", p.Lossy())
	require.ErrorContains(t, p.SetEviction(model.Eviction{Sinks: 4, Window: 20}), "found KV type kivi, expected another one")
	p.KV = model.KVInt8
	require.NoError(t, p.SetEviction(model.Eviction{Sinks: 4, Window: 20}))
	require.Equal(t, "streaming-4-20", p.Lossy())
}
