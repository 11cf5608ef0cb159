package model

// Conv is a convolution over the last tokens of a sequence, channel by channel: see mr_conv of the C ABI. Offsets are columns of the slot
// that the op reads; Times and Gate may be None.
type Conv struct {
	Weight, Bias        int // tensors
	Channels, Kernel    int
	Offset, Times, Gate int
	SiLU                bool
}

// RecurRule mirrors mr_recur_rule.
type RecurRule int32

// Rules by which a token changes a state.
const (
	RecurDelta    RecurRule = 0 // gated delta rule
	RecurSSM      RecurRule = 1 // Mamba-2
	RecurChannels RecurRule = 2 // the delta rule with a decay of each key channel
	RecurScan     RecurRule = 3 // Mamba: a decay of each key of each value; Q and K are columns of Rates, Skip is as RecurSSM's
	RecurRetain   RecurRule = 4 // gated retention
)

// Recur is a state of [Keys, Values] for each head, which each token changes: see mr_recur. Q, K and V are columns of the slot that the op
// reads, Decay those of the slot Gates, and Rate those of the slot Rates.
type Recur struct {
	Rule                RecurRule
	Heads, KeyHeads     int
	Keys, Values        int
	Q, K, V             int
	Gates, Decay        int
	Rates, Rate         int // not of RecurSSM and RecurRetain
	ALog, DtBias, Skip  int // tensors; Skip is that of RecurSSM
	LeastStep, MostStep float32
	RateScale           float32 // on the rate; 0: 1
}

// GateActivation mirrors mr_gate_activation.
type GateActivation int32

// Activations of gates.
const (
	GateSiLU     GateActivation = 0
	GateSigmoid  GateActivation = 1
	GateNone     GateActivation = 2
	GateGELUTanh GateActivation = 3
)

// Gate multiplies what an op reads with the activation of columns of another slot, before or after an RMS norm of each Group of elements:
// see mr_gate. Group 0: no norm.
type Gate struct {
	Gates, Offset int
	Activation    GateActivation
	Group, Weight int
	First         bool // the gate is before the norm
	Eps           float32
	// the activation is of what the columns have above their mean plus Cutoff of their standard deviations, of 0 elsewhere
	Sparse bool
	Cutoff float32 // with Sparse
}

// stateLanes is the number of values that a row of a state is rounded up to.
const stateLanes = 16

// StateBytes is the size of what a sequence keeps beside its keys and values, in the slabs before those of its tokens.
func (p *Program) StateBytes() (bytes int64) {
	for i := range p.Ops {
		bytes += p.Ops[i].stateBytes()
	}
	return bytes
}

// StateSlabs is the number of slabs of some bytes that a sequence's state takes; 0: layers keep none.
func (p *Program) StateSlabs(slabBytes int64) int {
	return int((p.StateBytes() + slabBytes - 1) / slabBytes)
}

func (op *Op) stateBytes() int64 {
	if c := op.Conv; c != nil {
		return int64(c.Kernel-1) * int64(c.Channels) * 4
	}
	if r := op.Recur; r != nil {
		row := (r.Values + stateLanes - 1) / stateLanes * stateLanes
		return int64(r.Heads) * int64(r.Keys) * int64(row) * 4
	}
	return 0
}

// stateCost: the state is read and written once for the rows of a step, which run one after the other in the cache. A value of a state
// takes two products and two sums in a row, by the delta rule a product and a sum more; a channel of a convolution one of each for a token.
func (p *Program) stateCost(op *Op, rows int, s Sizes) Cost {
	c := Cost{KVBytes: 2 * op.stateBytes(), ActivationBytes: p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s)}
	if v := op.Conv; v != nil {
		n := int64(v.Channels) * int64(v.Kernel)
		c.WeightBytes, c.Flops = n*4, 2*n*int64(rows)
	}
	if r := op.Recur; r != nil {
		each := int64(7)
		if r.Rule == RecurSSM || r.Rule == RecurScan || r.Rule == RecurRetain {
			each = 5
		}
		c.Flops = each * int64(r.Heads) * int64(r.Keys) * int64(r.Values) * int64(rows)
	}
	return c
}

// gateCost: a product for the gate, and for a norm what an RMS norm takes.
func (p *Program) gateCost(op *Op, rows int, s Sizes) Cost {
	width := int64(p.Slots[op.In].Width)
	c := Cost{ActivationBytes: p.slotBytes(op.In, rows, s) + p.slotBytes(op.Out, rows, s) + int64(rows)*width*4, Flops: width * int64(rows)}
	if op.Gate.Group > 0 {
		c.WeightBytes, c.Flops = width*4, 5*width*int64(rows)
	}
	return c
}
