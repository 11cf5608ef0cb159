package device

/*
#include "backend.h"
*/
import "C"

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// binder makes the C description of a program. What it allocates lives until
// free; the backend copies what it keeps, except the tensors' data.
type binder struct {
	weights   *weightsInUse
	allocated []unsafe.Pointer
}

func (b *binder) free() {
	for _, p := range b.allocated {
		C.free(p)
	}
}

func alloc[T any](b *binder, n int) ([]T, error) {
	var s []T
	if !cSlice(&s, n) {
		return nil, fmt.Errorf("%w: program description", ErrNoMemory)
	}
	b.allocated = append(b.allocated, unsafe.Pointer(unsafe.SliceData(s)))
	return s, nil
}

// programs describes those of all ranks.
func (b *binder) programs(programs []*model.Program, lim Limits) ([]C.mr_program_desc, error) {
	descs, err := alloc[C.mr_program_desc](b, len(programs))
	for i := range programs {
		if err == nil {
			err = b.program(programs[i], lim, &descs[i])
		}
	}
	return descs, err
}

func (b *binder) program(p *model.Program, lim Limits, desc *C.mr_program_desc) error {
	ops, err := alloc[C.mr_op](b, len(p.Ops))
	if err != nil {
		return err
	}
	places := p.Places()
	for i := range p.Ops {
		if ops[i], err = b.op(&p.Ops[i], places); err != nil {
			return err
		}
	}
	slots, err := alloc[C.mr_slot](b, len(p.Slots))
	if err != nil {
		return err
	}
	for i, s := range p.Slots {
		slots[i] = C.mr_slot{_type: C.int32_t(s.Type), width: C.int32_t(s.Width)}
	}
	tensors, err := alloc[C.mr_tensor](b, len(p.Tensors))
	if err != nil {
		return err
	}
	for i, t := range p.Tensors {
		if tensors[i], err = tensor(t, b.weights); err != nil {
			return err
		}
	}
	groups := p.Groups()
	*desc = C.mr_program_desc{
		ops: unsafe.SliceData(ops), n_ops: C.int32_t(len(ops)),
		slots: unsafe.SliceData(slots), n_slots: C.int32_t(len(slots)),
		tensors: unsafe.SliceData(tensors), n_tensors: C.int32_t(len(tensors)),
		vocab: C.int32_t(p.Vocab), layers: C.int32_t(groups.Layers), kv_groups: C.int32_t(groups.Count()),
		max_positions: C.int32_t(p.MaxPositions),
		max_rows:      C.int32_t(lim.MaxRows), max_outputs: C.int32_t(lim.MaxOutputs), max_hidden: C.int32_t(lim.MaxHidden),
		kv_type: C.int32_t(p.KV), classes: C.int32_t(p.Classes),
	}
	return nil
}

// op binds an op; places are those of the decoder layers in the KV cache.
func (b *binder) op(o *model.Op, places map[int]model.Place) (c C.mr_op, err error) {
	c.kind, c.layer, c.in, c.out = C.int32_t(o.Kind), C.int32_t(o.Layer), C.int32_t(o.In), C.int32_t(o.Out)
	switch o.Kind {
	case model.OpEmbed:
		*kind[C.mr_embed](&c) = C.mr_embed{
			table: C.int32_t(o.Weight), positions: C.int32_t(o.Bias), position_offset: C.int32_t(o.PositionOffset),
			scale: C.float(o.EmbedScale), accumulate: flag(o.Accumulate),
			types: C.int32_t(o.Types),
		}
	case model.OpNorm:
		*kind[C.mr_norm](&c) = C.mr_norm{
			weight: C.int32_t(o.Weight), bias: C.int32_t(o.Bias), kind: C.int32_t(o.Norm), eps: C.float(o.Eps),
			accumulate: flag(o.Accumulate), offset: C.int32_t(o.NormOffset), width: C.int32_t(o.NormWidth), groups: C.int32_t(o.NormGroups),
			scale: C.float(o.NormScale),
		}
	case model.OpLinear:
		err = b.linear(o, kind[C.mr_linear](&c))
	case model.OpRopeStore, model.OpAttention:
		place := places[o.CacheLayer()]
		c.layer = C.int32_t(place.Layer)
		err = b.attention(o, place.Group, kind[C.mr_attention](&c))
	case model.OpSelectRows:
		*kind[C.mr_select](&c) = C.mr_select{pooling: C.int32_t(o.Pooling)}
	case model.OpConv:
		v := o.Conv
		act := model.ActNone
		if v.SiLU {
			act = model.ActSiLU
		}
		*kind[C.mr_conv](&c) = C.mr_conv{
			weight: C.int32_t(v.Weight), bias: C.int32_t(v.Bias), channels: C.int32_t(v.Channels), kernel: C.int32_t(v.Kernel),
			offset: C.int32_t(v.Offset), times: C.int32_t(v.Times), gate: C.int32_t(v.Gate), activation: C.int32_t(act),
		}
	case model.OpRecur:
		u := o.Recur
		*kind[C.mr_recur](&c) = C.mr_recur{
			rule: C.int32_t(u.Rule), heads: C.int32_t(u.Heads), key_heads: C.int32_t(u.KeyHeads), keys: C.int32_t(u.Keys),
			values: C.int32_t(u.Values), q: C.int32_t(u.Q), k: C.int32_t(u.K), v: C.int32_t(u.V), gates: C.int32_t(u.Gates),
			decay: C.int32_t(u.Decay), rates: C.int32_t(u.Rates), rate: C.int32_t(u.Rate), rate_scale: C.float(cmp.Or(u.RateScale, 1)),
			a_log: C.int32_t(u.ALog), dt_bias: C.int32_t(u.DtBias), skip: C.int32_t(u.Skip), least_step: C.float(u.LeastStep),
			most_step: C.float(u.MostStep),
		}
	case model.OpGate:
		g := o.Gate
		*kind[C.mr_gate](&c) = C.mr_gate{
			gates: C.int32_t(g.Gates), offset: C.int32_t(g.Offset), activation: C.int32_t(g.Activation), group: C.int32_t(g.Group),
			weight: C.int32_t(g.Weight), first: flag(g.First), eps: C.float(g.Eps), sparse: flag(g.Sparse), cutoff: C.float(g.Cutoff),
		}
	case model.OpAltUp:
		a := o.AltUp
		*kind[C.mr_altup](&c) = C.mr_altup{
			step: C.int32_t(a.Step), streams: C.int32_t(a.Streams), active: C.int32_t(a.Active), coefs: C.int32_t(a.Coefs),
			x: C.int32_t(a.X),
		}
	case model.OpAllReduce:
		*kind[C.mr_all_reduce](&c) = C.mr_all_reduce{accumulate: flag(o.Accumulate)}
	case model.OpRoute:
		r := o.Routing
		*kind[C.mr_route](&c) = C.mr_route{
			experts: C.int32_t(r.Experts), top_k: C.int32_t(r.TopK), bias: C.int32_t(o.Bias), scores: C.int32_t(r.Scores),
			normalize: flag(r.Normalize), groups: C.int32_t(r.Groups), top_groups: C.int32_t(r.TopGroups), scale: C.float(r.Scale),
			jitter: C.float(r.Jitter), group_scores: C.int32_t(r.GroupScores), factors: C.int32_t(o.Weight),
		}
	}
	return c, err
}

// kind is the part of an op that its kind has: a member of the union.
func kind[T any](c *C.mr_op) *T { return (*T)(unsafe.Pointer(&c.anon0)) }

func (b *binder) attention(o *model.Op, group int, c *C.mr_attention) (err error) {
	*c = C.mr_attention{
		heads: C.int32_t(o.Heads), kv_heads: C.int32_t(o.KVHeads), head_dim: C.int32_t(o.HeadDim), kv_group: C.int32_t(group),
		value_dim: C.int32_t(o.ValueDim), stored: flag(o.Stored), latent: flag(o.Latent), rotary_offset: C.int32_t(o.RotaryOffset),
		scale: C.float(o.Scale), window: C.int32_t(o.Window),
		q_norm: C.int32_t(o.QNorm), k_norm: C.int32_t(o.KNorm), eps: C.float(o.Eps),
		rotary_dim: C.int32_t(o.RotaryDim), rotary_interleaved: flag(o.RotaryInterleaved), rotary_scale: C.float(o.RotaryScale),
		norm_last: flag(o.NormLast), chunked: flag(o.Chunked), softcap: C.float(o.Softcap), null_scores: C.int32_t(o.NullScores),
		n_q_scales: C.int32_t(len(o.QScales)), q_scale_offset: C.int32_t(o.QScaleOffset), q_scale_tokens: C.int32_t(o.QScaleTokens),
		sinks: C.int32_t(o.Sinks), sink_q: C.int32_t(o.SinkQ),
		heavy: C.int32_t(o.Heavy), recent: C.int32_t(o.Recent),
		both_ways: flag(o.BothWays),
	}
	if c.inv_freq, err = b.floats(o.InvFreq); err != nil {
		return err
	}
	if c.q_scales, err = b.floats(o.QScales); err != nil {
		return err
	}
	c.alibi_slopes, err = b.floats(o.ALiBiSlopes)
	return err
}

func (b *binder) linear(o *model.Op, c *C.mr_linear) error {
	*c = C.mr_linear{
		activation: C.int32_t(o.Activation), act_a: C.float(o.ActA), act_b: C.float(o.ActB), gated: flag(o.Gated),
		accumulate: flag(o.Accumulate), weights: C.int32_t(o.Weights.Type), group: C.int32_t(o.Weights.Group),
		routed: C.int32_t(o.Routed), experts: C.int32_t(o.Routing.Experts), top_k: C.int32_t(o.Routing.TopK), route: C.int32_t(o.Route),
		weighs_in: flag(o.WeighsIn), tail: C.int32_t(o.Tail),
	}
	to := c.parts[:]
	if o.Routed != model.RoutedNone {
		experts, err := alloc[C.mr_part](b, len(o.Parts))
		if err != nil {
			return err
		}
		to, c.expert_parts = experts, unsafe.SliceData(experts)
	} else {
		c.n_parts = C.int32_t(len(o.Parts))
	}
	if len(o.Parts) > len(to) {
		return fmt.Errorf("%w: op %s has %d parts, expected at most %d", ErrInvalid, o.Name, len(o.Parts), len(to))
	}
	for i, p := range o.Parts {
		to[i] = C.mr_part{
			weight: C.int32_t(p.Weight), bias: C.int32_t(p.Bias),
			offset: C.int64_t(p.Offset), rows: C.int64_t(p.Rows), block: C.int64_t(p.Block), stride: C.int64_t(p.Stride),
			interleaved: flag(p.Interleaved),
		}
	}
	return nil
}

// floats copies v to C memory; nil stays NULL.
func (b *binder) floats(v []float32) (*C.float, error) {
	if len(v) == 0 {
		return nil, nil
	}
	s, err := alloc[float32](b, len(v))
	copy(s, v)
	return (*C.float)(unsafe.SliceData(s)), err
}

func flag(v bool) C.int32_t {
	if v {
		return 1
	}
	return 0
}

// tensor finds t in w and checks it. The data stays where it is mapped.
func tensor(t model.Tensor, w *weightsInUse) (C.mr_tensor, error) {
	got, ok := w.find(t.Name)
	if !ok {
		return C.mr_tensor{}, fmt.Errorf("%w: tensor %s is missing", ErrInvalid, t.Name)
	}
	c := C.mr_tensor{rank: C.int32_t(len(t.Shape)), dtype: C.int32_t(got.DType)} // mr_dtype's numbers
	if got.DType == weights.Other {
		return c, fmt.Errorf("%w: tensor %s has type %s, expected F32, F16, BF16 or blocks", ErrUnsupported, t.Name, got.Type)
	}
	if len(t.Shape) < 1 || len(t.Shape) > len(c.dims) {
		return c, fmt.Errorf("%w: tensor %s has rank %d, expected 1 or 2", ErrInvalid, t.Name, len(t.Shape))
	}
	elements := int64(1)
	shape := got.Shape
	want := slices.Clone(t.Shape)
	last := len(want) - 1
	if t.Whole > 0 {
		want[last] = t.Whole
	}
	if len(shape) == len(t.Shape)+1 { // matrices of experts, one below the other
		shape = append([]int64{shape[0] * shape[1]}, shape[2:]...)
	}
	for i, n := range want {
		if i >= len(shape) || shape[i] != n || n < 1 || elements > math.MaxInt64/n {
			return c, fmt.Errorf("%w: tensor %s has shape %v, expected %v", ErrInvalid, t.Name, got.Shape, want)
		}
		elements *= n
		c.dims[i] = C.int64_t(n)
	}
	if size := got.DType.Bytes(elements); int64(len(got.Data)) != size {
		return c, fmt.Errorf("%w: tensor %s has %d bytes, expected %d", ErrInvalid, t.Name, len(got.Data), size)
	}
	c.data = unsafe.Pointer(unsafe.SliceData(got.Data[got.DType.Bytes(t.First):]))
	if t.Whole > 0 {
		c.dims[last] = C.int64_t(t.Shape[last])
	}
	if t.Whole > 0 && last == 1 {
		c.row_bytes = C.int64_t(got.DType.Bytes(t.Whole))
	}
	if len(got.Order) > 0 {
		if width := t.Shape[len(t.Shape)-1]; int64(len(got.Order)) != width*4 {
			return c, fmt.Errorf("%w: tensor %s has an order of %d bytes, expected %d", ErrInvalid, t.Name, len(got.Order), width*4)
		}
		c.order = (*C.int32_t)(unsafe.Pointer(unsafe.SliceData(got.Order)))
	}
	return c, nil
}
