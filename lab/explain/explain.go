// Package explain is the work of millrace explain: it describes a model's op program in numbers. Only
// CountLaunches loads a model. The package must not know requests or times.
package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
)

// Options choose the steps whose cost is shown.
type Options struct {
	Prefill int // tokens of the prompt; 0: 512
	Context int // tokens in the KV cache before the decode step; 0: as Prefill
	Sizes   model.Sizes
}

// Explanation is an op program in numbers, for people and for JSON.
type Explanation struct {
	Architecture    string     `json:"architecture"`
	Vocab           int        `json:"vocab"`
	Hidden          int        `json:"hidden"`
	Layers          int        `json:"layers"`
	MaxPositions    int        `json:"max_positions"`
	Ops             int        `json:"ops"`
	WeightBytes     int64      `json:"weight_bytes"`
	KVBytesPerToken int64      `json:"kv_bytes_per_token"`
	StateBytes      int64      `json:"state_bytes,omitempty"`      // of a sequence, beside its keys and values
	KVWindow        int        `json:"kv_window,omitempty"`        // tokens whose keys and values a sequence keeps of some layers; 0: all
	KVWindowLayers  int        `json:"kv_window_layers,omitempty"` // these layers
	Prefill         model.Work `json:"prefill"`
	Decode          model.Work `json:"decode"`
	Groups          []Group    `json:"groups"`
	Totals          StepCosts  `json:"totals"`
}

// StepCosts is a cost in each of the two steps.
type StepCosts struct {
	Prefill model.Cost `json:"prefill"`
	Decode  model.Cost `json:"decode"`
}

// Group is a run of equal decoder layers, shown once, or the ops before or
// after the layers (First -1, Count 1).
type Group struct {
	First int       `json:"first"` // layer
	Count int       `json:"count"` // layers
	Ops   []OpLine  `json:"ops"`
	Layer StepCosts `json:"layer"` // of one of them
}

// OpLine is one op: its costs are those of one layer.
type OpLine struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	Shape     string `json:"shape"`
	Attribute string `json:"attribute,omitempty"`
	StepCosts
}

// Describe puts a program into numbers.
func Describe(p *model.Program, o Options) Explanation {
	if o.Prefill == 0 {
		o.Prefill = 512
	}
	if o.Context == 0 {
		o.Context = o.Prefill
	}
	if o.Sizes == (model.Sizes{}) {
		o.Sizes = model.BF16Sizes()
	}
	e := Explanation{
		Architecture: p.Architecture, Vocab: p.Vocab, Hidden: p.Hidden, Layers: p.Layers,
		MaxPositions: p.MaxPositions, Ops: len(p.Ops),
		WeightBytes: p.WeightBytes(o.Sizes), KVBytesPerToken: p.KVBytesPerToken(o.Sizes), KVWindow: p.Window(), StateBytes: p.StateBytes(),
		Prefill: model.Prefill(o.Prefill), Decode: model.Decode(o.Context),
	}
	for _, place := range p.Places() {
		if place.Group >= p.Groups().Full {
			e.KVWindowLayers++
		}
	}
	prefill, decode := model.Costs(p, e.Prefill, o.Sizes), model.Costs(p, e.Decode, o.Sizes)
	for from := 0; from < len(p.Ops); {
		to := from + 1
		for to < len(p.Ops) && p.Ops[to].Layer == p.Ops[from].Layer {
			to++
		}
		e.add(group(p, from, to, prefill, decode))
		from = to
	}
	for _, g := range e.Groups {
		e.Totals.Prefill = e.Totals.Prefill.Plus(g.Layer.Prefill.Times(g.Count))
		e.Totals.Decode = e.Totals.Decode.Plus(g.Layer.Decode.Times(g.Count))
	}
	return e
}

// add appends a layer, or counts it to the group before when it is the same.
func (e *Explanation) add(g Group) {
	if n := len(e.Groups); n > 0 && g.First > 0 && slices.Equal(e.Groups[n-1].Ops, g.Ops) {
		e.Groups[n-1].Count++
		return
	}
	e.Groups = append(e.Groups, g)
}

// group describes the ops [from, to) of one layer.
func group(p *model.Program, from, to int, prefill, decode []model.Cost) Group {
	g := Group{First: p.Ops[from].Layer, Count: 1}
	for i := from; i < to; i++ {
		op := &p.Ops[i]
		line := OpLine{
			Name: op.Name, Kind: op.Kind.String(), Shape: shape(p, op), Attribute: attribute(p, op),
			StepCosts: StepCosts{Prefill: prefill[i], Decode: decode[i]},
		}
		g.Ops = append(g.Ops, line)
		g.Layer.Prefill = g.Layer.Prefill.Plus(prefill[i])
		g.Layer.Decode = g.Layer.Decode.Plus(decode[i])
	}
	return g
}

// shape is the op's weight or its heads.
func shape(p *model.Program, op *model.Op) string {
	switch op.Kind {
	case model.OpEmbed:
		if op.Weight == model.None {
			return shapeText(p.Tensors[op.Bias].Shape)
		}
		return shapeText(p.Tensors[op.Weight].Shape)
	case model.OpLinear:
		each, in := len(op.Parts), op.PartWidth(p.Slots[op.In].Width)
		if op.Routed != model.RoutedNone {
			each /= op.Routing.Experts
		}
		rows := make([]string, each)
		for i, part := range op.Parts[:each] {
			rows[i] = fmt.Sprint(part.Rows)
		}
		return fmt.Sprintf("%d -> %s", in, strings.Join(rows, "+"))
	case model.OpConv:
		return fmt.Sprintf("%d x %d", op.Conv.Channels, op.Conv.Kernel)
	case model.OpRecur:
		return fmt.Sprintf("%d/%d heads x %d x %d", op.Recur.Heads, op.Recur.KeyHeads, op.Recur.Keys, op.Recur.Values)
	case model.OpRoute:
		return fmt.Sprintf("%d of %d", op.Routing.TopK, op.Routing.Experts)
	case model.OpRopeStore, model.OpAttention:
		text := fmt.Sprintf("%d/%d heads x %d", op.Heads, op.KVHeads, op.HeadDim)
		if op.ValueDim > 0 && op.ValueDim != op.HeadDim {
			text += fmt.Sprintf("+%d", op.ValueDim)
		}
		return text
	case model.OpAltUp:
		return fmt.Sprintf("%d x %d", op.AltUp.Streams, p.Slots[op.In].Width)
	default:
		return fmt.Sprint(p.Slots[op.Out].Width)
	}
}

func shapeText(shape []int64) string {
	return strings.Join(strings.Fields(strings.Trim(fmt.Sprint(shape), "[]")), " x ")
}

// blocks are the types of an op's weights, each once.
func blocks(p *model.Program, op *model.Op) string {
	var types []string
	for _, part := range op.Parts {
		if name := p.Tensors[part.Weight].Blocks; !slices.Contains(types, name) {
			types = append(types, name)
		}
	}
	return strings.Join(types, "+")
}

// attribute is what the op does beside its kind.
func attribute(p *model.Program, op *model.Op) string {
	var a []string
	add := func(when bool, text string) {
		if when {
			a = append(a, text)
		}
	}
	add(op.Kind == model.OpNorm && op.Norm == model.NormRMS, "rms")
	add(op.Kind == model.OpNorm && op.Norm == model.NormLayer, "layer")
	add(op.Kind == model.OpGate && op.Gate != nil && op.Gate.Sparse, "sparse")
	add(op.Kind == model.OpEmbed && op.Bias != model.None, "positions")
	add(op.Kind == model.OpLinear && slices.ContainsFunc(op.Parts, func(p model.Part) bool { return p.Bias != model.None }), "bias")
	add(op.Activation != model.ActNone, op.Activation.String())
	add(op.Gated, "gated")
	add(op.Weights.Type == model.WeightsBlocks, blocks(p, op))
	add(op.Weights.Type != model.Weights16Bit && op.Weights.Type != model.WeightsBlocks, op.Weights.String())
	add(op.Routed == model.RoutedHeads, fmt.Sprintf("%d heads", op.Routing.Experts))
	add(op.Routed == model.RoutedEach || op.Routed == model.RoutedSum, fmt.Sprintf("%d of %d experts", op.Routing.TopK, op.Routing.Experts))
	add(op.Accumulate, "+ residual")
	add(op.QNorm != model.None, "q/k norm")
	add(op.RotaryDim > 0, fmt.Sprintf("rotary %d", op.RotaryDim))
	add(op.RotaryInterleaved, "interleaved")
	add(op.Window > 0, fmt.Sprintf("window %d", op.Window))
	add(op.BothWays, "both ways")
	add(op.Kept() != "", op.Kept())
	add(op.ALiBiSlopes != nil, "alibi")
	return strings.Join(a, ", ")
}

// Print writes the op program as a table: equal layers once.
func (e *Explanation) Print(w io.Writer) error {
	fmt.Fprintf(w, "%s: %d layers, hidden %d, vocabulary %d, up to %d tokens\n",
		e.Architecture, e.Layers, e.Hidden, e.Vocab, e.MaxPositions)
	kept := ""
	switch {
	case e.KVWindow > 0 && e.KVWindowLayers < e.Layers:
		kept = fmt.Sprintf(", in %d layers of the last %d tokens of a sequence", e.KVWindowLayers, e.KVWindow)
	case e.KVWindow > 0:
		kept = fmt.Sprintf(", of the last %d tokens of a sequence", e.KVWindow)
	case e.StateBytes > 0:
		kept = ", state " + bytesText(e.StateBytes) + " per sequence"
	}
	fmt.Fprintf(w, "%d ops, weights %s, KV cache %s per token%s\n\n",
		e.Ops, bytesText(e.WeightBytes), bytesText(e.KVBytesPerToken), kept)

	rows := [][columns]string{{"op", "shape", "attributes",
		fmt.Sprintf("prefill %d: bytes", e.Prefill.Rows), "flops",
		fmt.Sprintf("decode at %d: bytes", e.Decode.Past), "flops"}}
	for _, g := range e.Groups {
		if g.First >= 0 {
			rows = append(rows, [columns]string{g.title()})
		}
		for _, op := range g.Ops {
			name := op.Name
			if g.First >= 0 {
				name = "  " + name
			}
			rows = append(rows, costRow(name, op.Shape, op.Attribute, op.StepCosts))
		}
		if g.First >= 0 {
			rows = append(rows, costRow(fmt.Sprintf("  one layer (%d ops)", len(g.Ops)), "", "", g.Layer))
		}
	}
	return writeTable(w, append(rows, costRow("total", "", "", e.Totals)))
}

const columns = 7

// writeTable aligns the first three columns, which are text, to the left and
// the numbers to the right.
func writeTable(w io.Writer, rows [][columns]string) error {
	var width [columns]int
	for _, r := range rows {
		for i, cell := range r {
			width[i] = max(width[i], len(cell))
		}
	}
	for _, r := range rows {
		var line strings.Builder
		for i, cell := range r {
			if i < 3 {
				fmt.Fprintf(&line, "%-*s  ", width[i], cell)
			} else {
				fmt.Fprintf(&line, "%*s  ", width[i], cell)
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

func (g Group) title() string {
	if g.Count == 1 {
		return fmt.Sprintf("layer %d", g.First)
	}
	return fmt.Sprintf("layers %d-%d: %d x", g.First, g.First+g.Count-1, g.Count)
}

func costRow(name, shape, attribute string, c StepCosts) [columns]string {
	return [columns]string{name, shape, attribute,
		bytesText(c.Prefill.Bytes()), flopsText(c.Prefill.Flops),
		bytesText(c.Decode.Bytes()), flopsText(c.Decode.Flops)}
}

func bytesText(n int64) string {
	return scaled(float64(n), 1024, "B", "KiB", "MiB", "GiB", "TiB", "PiB")
}

func flopsText(n int64) string { return scaled(float64(n), 1000, "", "k", "M", "G", "T", "P") }

// scaled writes v in the largest unit that leaves it at 1 or more.
func scaled(v, step float64, units ...string) string {
	i := 0
	for v >= step && i < len(units)-1 {
		v /= step
		i++
	}
	if i == 0 {
		return strings.TrimSpace(fmt.Sprintf("%.0f %s", v, units[0]))
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
