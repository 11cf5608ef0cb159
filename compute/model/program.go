// Package model is the op program of a model: a flat list of fused ops that every backend runs, what
// they cost, and what they keep in the KV cache.
//
// It must not know checkpoints, backends, devices or sequences.
package model

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// SlotType says how a backend keeps a slot.
type SlotType int32

// Types of slots.
const (
	SlotF32     SlotType = 0 // residual stream, QKV, logits
	SlotOperand SlotType = 1 // feeds a linear op: kept in the backend's product type
)

// Slot is a [rows, Width] matrix, one row per token of the step (per output
// after OpSelectRows).
type Slot struct {
	Name  string
	Type  SlotType
	Width int
}

// OpKind mirrors mr_op_kind of the C ABI.
type OpKind int32

// Kinds of ops.
const (
	OpEmbed      OpKind = 1
	OpNorm       OpKind = 2
	OpLinear     OpKind = 3
	OpRopeStore  OpKind = 4
	OpAttention  OpKind = 5
	OpSelectRows OpKind = 6
	OpRoute      OpKind = 7
	OpConv       OpKind = 8
	OpRecur      OpKind = 9
	OpGate       OpKind = 10
	OpAltUp      OpKind = 11
	OpAllReduce  OpKind = 12
)

// opNames returns the name of each kind of op in the C ABI, in lower case, by kind. Kind 0 has none.
func opNames() []string {
	return []string{
		OpEmbed:      "embed",
		OpNorm:       "norm",
		OpLinear:     "linear",
		OpRopeStore:  "rope_store",
		OpAttention:  "attention",
		OpSelectRows: "select_rows",
		OpRoute:      "route",
		OpConv:       "conv",
		OpRecur:      "recur",
		OpGate:       "gate",
		OpAltUp:      "altup",
		OpAllReduce:  "all_reduce",
	}
}

// OpNames returns the names of all kinds of op.
func OpNames() []string { return opNames()[1:] }

// String returns the kind's name in the C ABI, in lower case.
func (k OpKind) String() string {
	if names := opNames(); k > 0 && int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("op %d", int32(k))
}

// NormKind mirrors mr_norm_kind.
type NormKind int32

// Kinds of norms.
const (
	NormRMS   NormKind = 0
	NormLayer NormKind = 1
	NormNone  NormKind = 2 // the row as it is, times the weight, plus the bias
)

// Activation mirrors mr_activation.
type Activation int32

// Activations of linear ops.
const (
	ActNone     Activation = 0
	ActSiLU     Activation = 1
	ActGELUTanh Activation = 2
	ActGELUErf  Activation = 3
	ActReLU     Activation = 4
	ActReLU2    Activation = 5
	ActXIELU    Activation = 6
	ActClamp    Activation = 7
	ActSoftcap  Activation = 8
	ActSwiGLU   Activation = 9
)

var activationNames = []string{
	ActNone: "", ActSiLU: "silu", ActGELUTanh: "gelu_tanh", ActGELUErf: "gelu_erf", ActReLU: "relu",
	ActReLU2: "relu2", ActXIELU: "xielu", ActClamp: "clamp", ActSoftcap: "softcap", ActSwiGLU: "swiglu",
}

func (a Activation) String() string {
	if a >= 0 && int(a) < len(activationNames) {
		return activationNames[a]
	}
	return fmt.Sprintf("activation %d", int32(a))
}

// RowPooling mirrors mr_pooling.
type RowPooling int32

// What OpSelectRows makes an output of.
const (
	PoolRow   RowPooling = 0 // the row
	PoolFirst RowPooling = 1 // the first row of its sequence
	PoolMean  RowPooling = 2 // the mean of the rows of its sequence
)

// RouteScores mirrors mr_route_scores.
type RouteScores int32

// What becomes of the logits of experts.
const (
	RouteSoftmax       RouteScores = 0
	RouteSigmoid       RouteScores = 1
	RouteSoftmaxChosen RouteScores = 2
	RouteSparseMixer   RouteScores = 3
)

// Routed mirrors mr_routed.
type Routed int32

// Rows of a linear op that has experts.
const (
	RoutedNone Routed = 0
	RoutedEach Routed = 1
	RoutedSum  Routed = 2

	RoutedHeads Routed = 3 // every row meets all experts, each with a part of it
)

// Routing is how rows choose experts.
type Routing struct {
	Experts, TopK     int
	Scores            RouteScores
	Normalize         bool
	Groups, TopGroups int // Groups 0 or 1: none
	Scale             float32
	Jitter            float32 // of RouteSparseMixer
	GroupScores       int     // how many of a group's largest scores make its own; 0: 2
}

// None marks an absent tensor or slot.
const None = -1

// Part is a run of output rows of a linear op, taken from a tensor: row i is
// tensor row Offset + (i/Block)*Stride + i%Block. If the halves of a block are interleaved, row j of its
// first half is at 2j in place of i%Block, and of its second half at 2j+1.
type Part struct {
	Weight, Bias                int // tensor indices; Bias may be None
	Offset, Rows, Block, Stride int
	Interleaved                 bool
}

// Op is one fused operation. The C header (mr_op) documents each field; the
// fields that a kind does not use are zero, absent indices are None.
type Op struct {
	Kind    OpKind
	Name    string // for explain: "attn.qkv", "mlp.down"
	Layer   int    // None outside the decoder layers
	In, Out int    // slots

	// Embed, Norm; both have Accumulate too, as AllReduce. A table whose rows are added is read where it is mapped, and may have fewer rows
	// than the vocabulary.
	Weight, Bias   int
	Norm           NormKind
	Eps            float32
	EmbedScale     float32
	PositionOffset int
	Types          int // a tensor
	// Norm of some elements of a row; NormWidth 0: of all.
	NormOffset, NormWidth, NormGroups int
	NormScale                         float32 // of what Out has then; 0: 1

	// Linear.
	Parts      []Part
	Activation Activation
	ActA, ActB float32 // of the activation
	Gated      bool
	Accumulate bool
	Weights    Weights

	// RopeStore, Attention.
	Heads, KVHeads, HeadDim int
	ValueDim                int  // elements of a value; 0: HeadDim, those of a query and a key
	Stored                  bool // In has queries only: keys and values are those that the layer KVLayer has stored
	KVLayer                 int  // a decoder layer; without Stored not used
	Latent                  bool // values are the beginnings of keys, and not kept apart
	RotaryOffset            int  // of the first rotated element of a head
	QNorm, KNorm            int
	NormLast                bool // these norms come after the rotation
	RotaryDim               int
	RotaryInterleaved       bool
	RotaryScale             float32
	InvFreq                 []float32
	Scale                   float32
	Window                  int
	Chunked                 bool // the window is a chunk of that many positions
	BothWays                bool // rows see later ones too
	ALiBiSlopes             []float32
	Softcap                 float32
	NullScores              int       // a tensor
	QScales                 []float32 // factors of queries, of QScaleTokens positions each; nil: none
	QScaleOffset            int
	QScaleTokens            int
	Evicts

	// Route, which has Bias too, and as its Weight a tensor of factors of the experts' weights. Linear with Routed has Experts and TopK;
	// its Parts are those of all experts, one after the other.
	Routing Routing
	Routed  Routed
	Route   int // a slot; without Routed not used
	// WeighsIn makes the weights of experts factors of what RoutedEach reads, in place of those of RoutedSum.
	WeighsIn bool
	Tail     int // of RoutedHeads: elements of each part that follow its result as they are

	// SelectRows.
	Pooling RowPooling

	// What an op of the kind has; nil for others.
	Conv  *Conv
	Recur *Recur
	Gate  *Gate
	AltUp *AltUp
}

// Tensor is a weight by its name in the checkpoint and the shape it must have.
type Tensor struct {
	Name   string
	Shape  []int64
	Blocks string `json:",omitempty"` // the type of a matrix that the checkpoint has in blocks: "Q4_K"
	Bytes  int64  `json:",omitempty"` // its size there
	Order  string `json:",omitempty"` // a name of the order that its columns have in the blocks; "" for their own

	BlockSize int `json:"-"` // elements of a block; 0: no blocks
	// What a rank has of it: columns of a matrix, or elements of a vector, from First on, of Whole. Whole 0: all.
	First, Whole int64 `json:"-"`
}

// floats are the codes of blocks that are no integers: FP8, NF4, or "".
func (t *Tensor) floats() string {
	for _, codes := range []string{"FP8", "NF4"} {
		if strings.HasPrefix(t.Blocks, codes) {
			return codes
		}
	}
	return ""
}

// rowBytes is the size of a row of a matrix whose values take size bytes, where it is not of blocks.
func (t *Tensor) rowBytes(size int) int64 {
	if t.Blocks != "" {
		return t.Bytes / t.Shape[0]
	}
	return t.Shape[1] * int64(size)
}

// Program is a model for a backend to load.
type Program struct {
	Architecture string // "LlamaForCausalLM"
	Ops          []Op
	Slots        []Slot
	Tensors      []Tensor

	Vocab        int
	Classes      int // logits of an output, of a classifier; 0: Vocab
	Hidden       int
	Layers       int
	KVHeads      int // with HeadDim the shape of all layers of a program without ops; ops have their own
	HeadDim      int
	MaxPositions int

	KV       KVType   `json:"-"` // of what is loaded: packed weights do not depend on it
	OneGroup bool     `json:"-"` // all layers share slabs, whatever their windows: see Groups; likewise
	Eviction Eviction `json:"-"` // complete, as SetEviction has set it; what it does is in Ops

	Ranks int `json:"-"` // of the programs that Split gave; 0: 1

	EarlyLayers int `json:"-"` // the first layers, with a group of their own, as SetEarly has set them; 0: none; as OneGroup
}

// HasExperts says whether rows choose experts.
func (p *Program) HasExperts() bool {
	return slices.ContainsFunc(p.Ops, func(op Op) bool { return op.Kind == OpRoute })
}

// Encoder says whether rows see later ones too: all of a text is in one step, and keeps nothing after it.
func (p *Program) Encoder() bool {
	return slices.ContainsFunc(p.Ops, func(op Op) bool { return op.BothWays })
}

// Generates says whether there are tokens to generate: a classifier and an encoder have none.
func (p *Program) Generates() bool { return p.Classes == 0 && !p.Encoder() }

// PackedTensors are the sorted names of those that a backend needs no more once it has packed them: matrices of linear ops that no other op
// reads.
func (p *Program) PackedTensors() []string {
	packed := map[int]bool{}
	for i := range p.Ops {
		for _, part := range p.Ops[i].Parts {
			packed[part.Weight] = true
		}
	}
	for i := range p.Ops {
		if op := &p.Ops[i]; op.Kind != OpLinear {
			delete(packed, op.Weight)
		}
	}
	var names []string
	for i := range packed {
		names = append(names, p.Tensors[i].Name)
	}
	slices.Sort(names)
	return names
}

// PartWidth is the number of elements that a part of a linear op multiplies of a row of In, which is that wide.
func (op *Op) PartWidth(width int) int {
	switch op.Routed {
	case RoutedSum:
		return width / op.Routing.TopK
	case RoutedHeads:
		return width/op.Routing.Experts - op.Tail
	case RoutedEach, RoutedNone:
	}
	return width
}

// Logits is the number of logits of an output.
func (p *Program) Logits() int { return cmp.Or(p.Classes, p.Vocab) }

// HiddenWidth is the width of a hidden state: of what the last op, which makes the logits, reads.
func (p *Program) HiddenWidth() int { return p.Slots[p.Ops[len(p.Ops)-1].In].Width }
