package numerics

import (
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// Program is the canonical text of a program: every field that is not zero, by a name that never changes, whatever
// the field's name becomes. A field that a later version adds changes no text of a program that does not use it. How the
// cache keeps keys and values is not in it: KVAuto is the device's choice. Which slabs have them changes no bits, and what an eviction does
// is in the ops.
func Program(p *model.Program) string {
	var t text
	t.open()
	t.string("Architecture", p.Architecture)
	list(&t, "Ops", p.Ops, writeOp)
	list(&t, "Slots", p.Slots, writeSlot)
	list(&t, "Tensors", p.Tensors, writeTensor)
	t.integer("Vocab", p.Vocab)
	t.integer("Hidden", p.Hidden)
	t.integer("Layers", p.Layers)
	t.integer("KVHeads", p.KVHeads)
	t.integer("HeadDim", p.HeadDim)
	t.integer("MaxPositions", p.MaxPositions)
	t.integer("Classes", p.Classes)
	t.integer("Ranks", p.Ranks)
	t.close()
	return t.b.String()
}

func writeOp(t *text, op *model.Op) {
	t.integer("Kind", int(op.Kind))
	t.string("Name", op.Name)
	t.integer("Layer", op.Layer)
	t.integer("In", op.In)
	t.integer("Out", op.Out)
	t.integer("Weight", op.Weight)
	t.integer("Bias", op.Bias)
	t.integer("Norm", int(op.Norm))
	t.float("Eps", op.Eps)
	t.float("EmbedScale", op.EmbedScale)
	t.integer("PositionOffset", op.PositionOffset)
	list(t, "Parts", op.Parts, writePart)
	t.integer("Activation", int(op.Activation))
	t.flag("Gated", op.Gated)
	t.flag("Accumulate", op.Accumulate)
	if op.Weights != (model.Weights{}) {
		t.name("Weights")
		t.open()
		t.integer("Type", int(op.Weights.Type))
		t.integer("Group", op.Weights.Group)
		t.close()
	}
	t.integer("Heads", op.Heads)
	t.integer("KVHeads", op.KVHeads)
	t.integer("HeadDim", op.HeadDim)
	t.integer("QNorm", op.QNorm)
	t.integer("KNorm", op.KNorm)
	t.integer("RotaryDim", op.RotaryDim)
	t.flag("RotaryInterleaved", op.RotaryInterleaved)
	t.float("RotaryScale", op.RotaryScale)
	values(t, "InvFreq", op.InvFreq, exact)
	t.float("Scale", op.Scale)
	t.integer("Window", op.Window)
	values(t, "ALiBiSlopes", op.ALiBiSlopes, exact)
	t.integer("Sinks", op.Sinks)
	t.integer("SinkQ", op.SinkQ)
	t.integer("Heavy", op.Heavy)
	t.integer("Recent", op.Recent)
	if op.Routing != (model.Routing{}) {
		writeRouting(t, &op.Routing)
	}
	t.integer("Routed", int(op.Routed))
	t.integer("Route", op.Route)
	t.integer("NormOffset", op.NormOffset)
	t.integer("NormWidth", op.NormWidth)
	t.integer("NormGroups", op.NormGroups)
	t.float("ActA", op.ActA)
	t.float("ActB", op.ActB)
	t.flag("NormLast", op.NormLast)
	t.flag("Chunked", op.Chunked)
	t.float("Softcap", op.Softcap)
	t.integer("NullScores", max(op.NullScores, 0)) // none is not written: tensor 0 is the token table
	values(t, "QScales", op.QScales, exact)
	t.integer("QScaleOffset", op.QScaleOffset)
	t.integer("QScaleTokens", op.QScaleTokens)
	t.flag("WeighsIn", op.WeighsIn)
	t.integer("Types", max(op.Types, 0)) // as NullScores
	t.flag("BothWays", op.BothWays)
	t.integer("Pooling", int(op.Pooling))
	if op.Conv != nil {
		writeConv(t, op.Conv)
	}
	if op.Recur != nil {
		writeRecur(t, op.Recur)
	}
	if op.Gate != nil {
		writeGate(t, op.Gate)
	}
	t.integer("ValueDim", op.ValueDim)
	t.flag("Stored", op.Stored)
	t.integer("KVLayer", op.KVLayer)
	t.flag("Latent", op.Latent)
	t.integer("RotaryOffset", op.RotaryOffset)
	t.integer("Tail", op.Tail)
	t.float("NormScale", op.NormScale)
	if op.AltUp != nil {
		writeAltUp(t, op.AltUp)
	}
}

func writeRouting(t *text, r *model.Routing) {
	t.name("Routing")
	t.open()
	t.integer("Experts", r.Experts)
	t.integer("TopK", r.TopK)
	t.integer("Scores", int(r.Scores))
	t.flag("Normalize", r.Normalize)
	t.integer("Groups", r.Groups)
	t.integer("TopGroups", r.TopGroups)
	t.float("Scale", r.Scale)
	t.float("Jitter", r.Jitter)
	t.integer("GroupScores", r.GroupScores)
	t.close()
}

func writeConv(t *text, c *model.Conv) {
	t.name("Conv")
	t.open()
	t.integer("Weight", c.Weight)
	t.integer("Bias", c.Bias)
	t.integer("Channels", c.Channels)
	t.integer("Kernel", c.Kernel)
	t.integer("Offset", c.Offset)
	t.integer("Times", c.Times)
	t.integer("Gate", c.Gate)
	t.flag("SiLU", c.SiLU)
	t.close()
}

func writeRecur(t *text, r *model.Recur) {
	t.name("Recur")
	t.open()
	t.integer("Rule", int(r.Rule))
	t.integer("Heads", r.Heads)
	t.integer("KeyHeads", r.KeyHeads)
	t.integer("Keys", r.Keys)
	t.integer("Values", r.Values)
	t.integer("Q", r.Q)
	t.integer("K", r.K)
	t.integer("V", r.V)
	t.integer("Gates", r.Gates)
	t.integer("Decay", r.Decay)
	t.integer("Rate", r.Rate)
	t.integer("ALog", r.ALog)
	t.integer("DtBias", r.DtBias)
	t.integer("Skip", r.Skip)
	t.float("LeastStep", r.LeastStep)
	t.float("MostStep", r.MostStep)
	if r.Rule != model.RecurSSM && r.Rule != model.RecurRetain {
		t.integer("Rates", r.Rates-r.Gates) // from the slot of gates on: older programs have one slot for both, and zeros are not written
	}
	if r.RateScale != 0 {
		t.float("RateScale", r.RateScale)
	}
	t.close()
}

func writeGate(t *text, g *model.Gate) {
	t.name("Gate")
	t.open()
	t.integer("Gates", g.Gates)
	t.integer("Offset", g.Offset)
	t.flag("Sigmoid", g.Activation == model.GateSigmoid)
	t.integer("Group", g.Group)
	t.integer("Weight", g.Weight)
	t.flag("First", g.First)
	t.float("Eps", g.Eps)
	if g.Activation > model.GateSigmoid {
		t.integer("Activation", int(g.Activation))
	}
	t.flag("Sparse", g.Sparse)
	t.float("Cutoff", g.Cutoff)
	t.close()
}

func writeAltUp(t *text, a *model.AltUp) {
	t.name("AltUp")
	t.open()
	t.integer("Step", int(a.Step))
	t.integer("Streams", a.Streams)
	t.integer("Active", a.Active)
	t.integer("Coefs", a.Coefs)
	t.integer("X", a.X)
	t.close()
}

func writePart(t *text, p *model.Part) {
	t.integer("Weight", p.Weight)
	t.integer("Bias", p.Bias)
	t.integer("Offset", p.Offset)
	t.integer("Rows", p.Rows)
	t.integer("Block", p.Block)
	t.integer("Stride", p.Stride)
	t.flag("Interleaved", p.Interleaved)
}

func writeSlot(t *text, s *model.Slot) {
	t.string("Name", s.Name)
	t.integer("Type", int(s.Type))
	t.integer("Width", s.Width)
}

func writeTensor(t *text, x *model.Tensor) {
	t.string("Name", x.Name)
	values(t, "Shape", x.Shape, func(n int64) string { return strconv.FormatInt(n, 10) })
	t.string("Blocks", x.Blocks)
	t.integer("Bytes", int(x.Bytes))
	t.string("Order", x.Order)
	t.integer("First", int(x.First))
	t.integer("Whole", int(x.Whole))
}

// text is objects in braces with named values.
type text struct {
	b     strings.Builder
	begun bool // the object that is open has a value
}

func (t *text) open() {
	t.b.WriteByte('{')
	t.begun = false
}

func (t *text) close() {
	t.b.WriteByte('}')
	t.begun = true
}

// name begins a value.
func (t *text) name(name string) {
	if t.begun {
		t.b.WriteByte(' ')
	}
	t.begun = true
	t.b.WriteString(name + ":")
}

func (t *text) write(name, value string) {
	t.name(name)
	t.b.WriteString(value)
}

func (t *text) integer(name string, v int) {
	if v != 0 {
		t.write(name, strconv.Itoa(v))
	}
}

func (t *text) float(name string, v float32) {
	if math.Float32bits(v) != 0 {
		t.write(name, exact(v))
	}
}

func (t *text) flag(name string, v bool) {
	if v {
		t.write(name, "true")
	}
}

func (t *text) string(name, v string) {
	if v != "" {
		t.write(name, strconv.Quote(v))
	}
}

// list writes objects in brackets, nothing for nil.
func list[T any](t *text, name string, all []T, write func(*text, *T)) {
	if all == nil {
		return
	}
	t.name(name)
	t.b.WriteByte('[')
	for i := range all {
		if i > 0 {
			t.b.WriteByte(' ')
		}
		t.open()
		write(t, &all[i])
		t.close()
	}
	t.b.WriteByte(']')
}

// values writes values in brackets, nothing for nil.
func values[T any](t *text, name string, all []T, format func(T) string) {
	if all == nil {
		return
	}
	words := make([]string, len(all))
	for i, v := range all {
		words[i] = format(v)
	}
	t.write(name, "["+strings.Join(words, " ")+"]")
}

// exact has all bits of a float.
func exact(v float32) string { return strconv.FormatFloat(float64(v), 'x', -1, 32) }
