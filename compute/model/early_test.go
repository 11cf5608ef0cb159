package model_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
)

func programOf(t *testing.T, name string) *model.Program {
	t.Helper()
	cfg, err := family.LoadConfig("../../testdata/" + name)
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	return p
}

// TestTheFirstLayersAreAProgramThatEndsAsTheWholeOne, and have a group of the KV cache.
func TestTheFirstLayersAreAProgramThatEndsAsTheWholeOne(t *testing.T) {
	p := programOf(t, "../models/tiny-chat")
	require.NoError(t, p.SetEarly(3))
	require.Equal(t, model.Groups{Layers: 3, Full: 3}, p.Groups())
	for layer, place := range p.Places() {
		require.Equal(t, model.Place{Group: layer / 3, Layer: layer % 3}, place)
	}
	early, err := p.Early()
	require.NoError(t, err)
	require.Equal(t, model.Groups{Layers: 3, Full: 1}, early.Groups())
	require.Equal(t, p.Ops[:1+3*8], early.Ops[:1+3*8], "the embedding, and eight ops for each layer")
	var names []string
	for _, op := range early.Ops[1+3*8:] {
		names = append(names, op.Name+" of "+early.Slots[op.In].Name)
	}
	require.Equal(t, []string{"select_rows of residual", "final.norm of selected.residual", "logits of normed"}, names)
	require.Equal(t, p.Ops[len(p.Ops)-2:], early.Ops[len(early.Ops)-2:])
	require.Equal(t, p.SlabBytesPerToken(model.BF16Sizes()), early.SlabBytesPerToken(model.BF16Sizes()))
}

// TestModelsWhoseFirstLayersMakeNoDraftTokensAreRefused by what they have.
func TestModelsWhoseFirstLayersMakeNoDraftTokensAreRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		layers int
		set    func(*model.Program) error
		found  string
	}{
		{"models/llama-gqa", 2, nil, "found 2 of 2 layers, expected 1 to 1"},
		{"models/llama-gqa", 0, nil, "found 0 of 2 layers, expected 1 to 1"},
		{"models/lfm2", 1, nil, "found layers with a state"},
		{"models/mistral-window", 1, nil, "found a window in layer 0"},
		{"models/yoco", 1, nil, "found a window in layer 0"},
		{"models/qwen2-window", 1, nil, "found a window in layer 1"},
		{"encoders/bert", 1, nil, "found an encoder"},
		{"models/llama-gqa", 1, func(p *model.Program) error { return p.SetEviction(model.Eviction{Sinks: 4}) },
			"found the eviction streaming:sinks=4"},
		{"models/llama-gqa", 1, func(p *model.Program) error { return p.SetEviction(model.Eviction{H2O: true}) }, "found the eviction h2o"},
		{"models/llama-gqa", 1, func(p *model.Program) error { p.KV = model.KVKivi; return nil }, "found a KV cache of kivi"},
		{"models/llama-gqa", 1, func(p *model.Program) error { p.OneGroup = true; return nil },
			"found a KV cache of one group of layers, as a disk has it"},
		{"models/llama-gqa", 1, func(p *model.Program) error { // as YOCO, but for its windows
			for i := range p.Ops {
				if op := &p.Ops[i]; op.Kind == model.OpAttention && op.Layer == 1 {
					op.Stored, op.KVLayer = true, 0
				}
			}
			return nil
		}, "found keys and values of layer 0 in layer 1"},
		{"models/llama-gqa", 1, func(p *model.Program) error {
			p.Ops[len(p.Ops)-2].In = p.Ops[len(p.Ops)-3].In
			return nil
		}, "found final.norm, which reads mid, expected the residual"},
	} {
		p := programOf(t, c.name)
		if c.set != nil {
			require.NoError(t, c.set(p))
		}
		err := p.SetEarly(c.layers)
		require.ErrorIs(t, err, model.ErrEarly, c.found)
		require.ErrorContains(t, err, c.found)
		require.Zero(t, p.EarlyLayers)
	}
	deep := programOf(t, "models/llama-gqa")
	deep.Layers = 33
	require.ErrorContains(t, deep.SetEarly(4), "found 4 of 33 layers, expected 5 to 32", "there are eight groups at most")
}
