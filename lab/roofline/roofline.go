// Package roofline bounds the time of a model's steps on a device from below:
// an op takes at least the time to move its bytes and at least the time to do
// its arithmetic. It must not know a clock or a model's weights: it counts and never measures.
//
// The bytes are those of model.Costs: every value that an op needs is read once
// and every result written once. A cache that keeps activations from one op to
// the next can save some of them; weights and KV cache have to be read.
package roofline

import (
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
)

// Step is one step of Batch equal requests.
type Step struct {
	Batch  int
	Beams  int // rows of a request at the same position; 1: no beam search
	Rows   int // tokens of each row's sequence: the prompt, or 1
	Past   int // tokens in the KV cache before the step
	Prompt int // with beams: how many of them are the prompt's, shared by the beams
	// Tiles share the step by tensor parallelism: linear ops, rotary embedding and
	// attention are divided evenly; embedding, norms and row selection are done
	// by each tile. The exchange between tiles is not counted.
	Tiles int
}

// Costs returns the cost of each op of p on one tile.
func Costs(p *model.Program, s Step, sizes model.Sizes) []model.Cost {
	sequences := s.Batch * s.Beams
	costs := model.Costs(p, model.Work{Rows: sequences * s.Rows, Outputs: sequences}, sizes)
	one := model.Costs(p, model.Work{Rows: s.Rows, Past: s.Past, Outputs: 1}, sizes)
	for i := range p.Ops {
		op := &p.Ops[i]
		switch op.Kind {
		case model.OpAttention:
			costs[i] = s.attention(op, one[i]).Over(s.Tiles)
		case model.OpLinear, model.OpRopeStore:
			costs[i] = costs[i].Over(s.Tiles)
		default: // each device computes all of it
		}
	}
	return costs
}

// attention is the cost of all sequences, given that of one. The beams of a
// request read the prompt's keys and values together and those of each
// response once (arXiv:2401.05391, section 3.3).
func (s Step) attention(op *model.Op, one model.Cost) model.Cost {
	c := one.Times(s.Batch * s.Beams)
	if s.Beams == 1 {
		return c
	}
	seen := s.Past + 1
	if op.Window > 0 {
		seen = min(seen, op.Sinks+op.Window)
	}
	response := min(seen, s.Past+1-s.Prompt)
	c.KVBytes = one.KVBytes / int64(seen) * int64(s.Batch*(seen-response+s.Beams*response))
	return c
}

// OpGroup is the ops of one name in a step, over all layers.
type OpGroup struct {
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Ops     int     `json:"ops"`
	Bytes   int64   `json:"bytes"`
	Flops   int64   `json:"flops"`
	Seconds float64 `json:"seconds"`  // least, summed op by op
	Limit   string  `json:"bound_by"` // "memory" or "products"

	memory, products float64 // seconds of each, summed
}

func (l *OpGroup) setLimit() {
	l.Limit = "memory"
	if l.products > l.memory {
		l.Limit = "products"
	}
}

// plus adds the sums of another line.
func (l *OpGroup) plus(o OpGroup) {
	l.Bytes += o.Bytes
	l.Flops += o.Flops
	l.Seconds += o.Seconds
	l.memory += o.memory
	l.products += o.products
}

// OpGroups sums the costs of a program's ops by name, in the program's order.
func OpGroups(p *model.Program, costs []model.Cost, d sim.Peak) []OpGroup {
	var lines []OpGroup
	index := map[string]int{}
	for i := range p.Ops {
		at, ok := index[p.Ops[i].Name]
		if !ok {
			at = len(lines)
			index[p.Ops[i].Name] = at
			lines = append(lines, OpGroup{Name: p.Ops[i].Name, Kind: p.Ops[i].Kind.String()})
		}
		l := &lines[at]
		on, c := d.On(&p.Ops[i]), costs[i]
		l.Ops++
		l.plus(OpGroup{
			Bytes: c.Bytes(), Flops: c.Flops, Seconds: on.Seconds(c),
			memory: on.MemorySeconds(c.Bytes()), products: on.ProductSeconds(c.Flops),
		})
		l.setLimit()
	}
	return lines
}

// Workload is what the bounds of a model are computed for.
type Workload struct {
	Prompt int `json:"prompt"` // tokens of each request
	Gen    int `json:"gen"`    // tokens generated for each
	Batch  int `json:"batch"`  // requests
	Beams  int `json:"beams"`  // 1: no beam search
	Tiles  int `json:"tiles"`  // devices that share the model
}

// Prefill is the step of all prompts; a beam search prefills its prompt once.
func (w Workload) Prefill() Step {
	return Step{Batch: w.Batch, Beams: 1, Rows: w.Prompt, Tiles: w.Tiles}
}

// Decode is the step that makes token i+2 of each response, after the prompt
// and i tokens.
func (w Workload) Decode(i int) Step {
	return Step{Batch: w.Batch, Beams: w.Beams, Rows: 1, Past: w.Prompt + i, Prompt: w.Prompt, Tiles: w.Tiles}
}

// Bound is the least time of a workload on a device.
type Bound struct {
	Device  sim.Peak  `json:"device"`
	TTFT    float64   `json:"ttft_seconds"` // all prompts in one step
	TPOT    float64   `json:"tpot_seconds"` // mean over the decode steps
	Prefill []OpGroup `json:"prefill"`
	Decode  []OpGroup `json:"decode"` // means over the decode steps

	Exchange bool `json:"exchange_counted,omitempty"` // of several tiles
}

// NewBound bounds a workload: the first token comes from the prefill, each further one from a
// decode step. Tiles run the program that model.Split gives one of them, with its sums over the tiles: each reads the sums of all at the
// bandwidth of its own memory. What Split refuses is divided evenly, as Step has it.
func NewBound(p *model.Program, w Workload, d sim.Peak, sizes model.Sizes) Bound {
	b := Bound{Device: d}
	if shares, err := p.Split(w.Tiles); err == nil && w.Tiles > 1 {
		p, w.Tiles, b.Exchange = shares[0], 1, true
	}
	b.Prefill = OpGroups(p, Costs(p, w.Prefill(), sizes), d)
	steps := max(w.Gen-1, 1)
	for i := range steps {
		lines := OpGroups(p, Costs(p, w.Decode(i), sizes), d)
		if b.Decode == nil {
			b.Decode = lines
			continue
		}
		for j, l := range lines {
			b.Decode[j].plus(l)
		}
	}
	for j := range b.Decode {
		l := &b.Decode[j]
		l.Bytes /= int64(steps)
		l.Flops /= int64(steps)
		l.Seconds /= float64(steps)
		l.setLimit()
	}
	b.TTFT, b.TPOT = Total(b.Prefill).Seconds, Total(b.Decode).Seconds
	return b
}

// Total is the sum of lines.
func Total(lines []OpGroup) OpGroup {
	t := OpGroup{Name: "total"}
	for _, l := range lines {
		t.Ops += l.Ops
		t.plus(l)
	}
	return t
}
