package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// describe says what an open model is, with weights kept as --weights says: kept. The digest leaves out what only decides how the model is
// computed: the backend, its kernels and the type of its KV cache.
func (m *openModel) describe(kept string) api.Description {
	sum := sha256.New()
	for _, part := range []string{m.numerics.Weights, m.numerics.Program, m.tokenizer.Digest()} {
		fmt.Fprintf(sum, "%d %s", len(part), part) //nolint:errcheck // a hash takes everything
	}
	d := api.Description{
		Architecture: shortName(m.program.Architecture), Format: weights.Format(m.config.Path()), Weights: kept,
		Digest: hex.EncodeToString(sum.Sum(nil)), Parameters: m.program.WeightBytes(model.Sizes{Weight: 1}),
		Bytes: int64(m.costs.WeightBytes), Layers: m.config.Layers, Heads: m.config.Heads, KVHeads: m.config.KVHeads,
		Hidden: m.config.Hidden, FeedForward: m.config.Intermediate, Vocab: m.config.Vocab,
		GPU: device.IsOptional(m.device.Backend),
	}
	return d
}

// shortName returns GGUF's name of an architecture: "llama" of "LlamaForCausalLM".
func shortName(architecture string) string {
	name, _, _ := strings.Cut(architecture, "For")
	return strings.ToLower(name)
}
