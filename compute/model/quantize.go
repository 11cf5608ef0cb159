package model

import (
	"fmt"
	"strings"
)

// WeightType mirrors mr_weights.
type WeightType int32

// Types of weights.
const (
	Weights16Bit WeightType = 0
	WeightsInt8  WeightType = 1
	WeightsInt4  WeightType = 2
	WeightsFP8   WeightType = 3
	WeightsNF4   WeightType = 4

	WeightsBlocks WeightType = 5 // as the file has them: Tensor.Blocks

	// expanded are 16 bits even of blocks: in a plan only.
	expanded WeightType = -1
)

// Weights is how a linear op keeps its weights.
type Weights struct {
	Type  WeightType
	Group int // of int4 and nf4: weights that share a scale
}

// Integers says whether rows are quantized to int8 for them.
func (w Weights) Integers() bool {
	return w.Type == WeightsInt8 || w.Type == WeightsInt4 || w.Type == WeightsBlocks
}

// weightNames are the names of what a model's weights can be kept as.
var weightNames = []struct {
	name    string
	weights Weights
}{
	{"file", Weights{}},
	{"bf16", Weights{Type: expanded}},
	{"int8", Weights{Type: WeightsInt8}},
	{"int4", Weights{WeightsInt4, 32}},
	{"int4-64", Weights{WeightsInt4, 64}},
	{"int4-128", Weights{WeightsInt4, 128}},
	{"fp8", Weights{Type: WeightsFP8}},
	{"nf4", Weights{WeightsNF4, 64}},
}

// parseWeights finds Weights by their name, see WeightNames.
func parseWeights(name string) (Weights, error) {
	for _, w := range weightNames {
		if w.name == name {
			return w.weights, nil
		}
	}
	return Weights{}, fmt.Errorf("found %q, expected %s", name, strings.Join(WeightNames(), ", "))
}

// WeightNames are the names of what weights can be kept as: file (blocks as the file has them, others in 16
// bits), bf16 (the type of the backend's operands: 16 bits), int8 and fp8 (a scale for each output row), int4 (a scale for each 32
// weights), int4-64, int4-128, nf4 (a scale for each 64).
func WeightNames() []string {
	names := make([]string, len(weightNames))
	for i, w := range weightNames {
		names[i] = w.name
	}
	return names
}

func (w Weights) String() string {
	if w.Type == Weights16Bit {
		return "bf16"
	}
	if w.Type == WeightsBlocks {
		return "blocks"
	}
	return w.name()
}

// name is String of what a plan has.
func (w Weights) name() string {
	for _, n := range weightNames {
		if n.weights == w {
			return n.name
		}
	}
	return fmt.Sprintf("weights %d in groups of %d", w.Type, w.Group)
}

// bytes is the size of n of them in rows of in, where 16 bits take size bytes.
func (w Weights) bytes(rows, in int64, size int) int64 {
	const scale = 4 // of a row of bytes
	switch w.Type {
	case WeightsInt8, WeightsFP8:
		return rows * (in + scale)
	case WeightsInt4, WeightsNF4:
		groups := (in + int64(w.Group) - 1) / int64(w.Group)
		return rows * groups * int64(w.Group/2+2) // and a bf16 scale
	case Weights16Bit, WeightsBlocks, expanded:
	}
	return rows * in * int64(size)
}
