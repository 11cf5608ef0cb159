package sim

import (
	"github.com/millrace/millrace/compute/model"
)

// Timer computes the time of a device for the steps of a program. The costs are those of
// model.Costs. The bound of an op is the larger of the times for its bytes and for its arithmetic.
// Every cost but that of attention is linear in the rows, after OpSelectRows in the outputs, so
// NewTimer counts it once.
//
// For each step call Begin, Add for each sequence, and End. They allocate nothing.
type Timer struct {
	device    Device
	rows      []spent // [rows of a step] of the ops of each token
	outputs   []spent // [outputs of a step] of the ops after OpSelectRows
	attention []attention
	overhead  float64 // of all ops, seconds

	step struct {
		rows, outputs int
		attention     spent
	}
}

// spent is the time and the costs of ops on the device.
type spent struct {
	seconds      float64
	bytes, flops int64
}

func (s *spent) plus(t spent) {
	s.seconds += t.seconds
	s.bytes += t.bytes
	s.flops += t.flops
}

// attention is the attention ops of one window.
type attention struct {
	ops     int64
	window  int
	key     int64     // KV bytes of a key and its value
	pair    int64     // flops of a row and a key
	row     int64     // activation bytes of a row
	reached []float64 // [rows of a sequence]
}

// Time is the time of a step.
type Time struct {
	Device float64 // seconds
	Host   float64 // seconds, after the device
	Bytes  int64   // read and written by the device
	Flops  int64
}

// NewTimer counts p for steps of at most the given rows and outputs. Where a device has several tiles it counts the share of one.
func NewTimer(p *model.Program, d Device, rows, outputs int) *Timer {
	if share, err := d.Share(p); err == nil {
		p = share
	}
	sizes := model.BF16Sizes()
	t := &Timer{
		device: d, rows: make([]spent, rows+1), outputs: make([]spent, outputs+1),
		overhead: float64(len(p.Ops)) * d.OpSeconds,
	}
	one := model.Costs(p, model.Work{Rows: 1, Outputs: 1}, sizes)
	two := model.Costs(p, model.Work{Rows: 2, Outputs: 2}, sizes)
	table := t.rows
	for i := range p.Ops {
		op := &p.Ops[i]
		switch op.Kind {
		case model.OpAttention:
			t.addAttention(op, one[i])
			continue
		case model.OpSelectRows:
			table = t.outputs
		default:
		}
		t.addLinear(table, op, one[i], two[i])
	}
	return t
}

// addLinear adds an op whose cost is linear in its rows, given that of one and two.
func (t *Timer) addLinear(table []spent, op *model.Op, one, two model.Cost) {
	peak := t.device.On(op)
	if op.Kind == model.OpAllReduce && t.device.ExchangeGBps > 0 {
		peak.GBps = t.device.ExchangeGBps
	}
	slope := two.Plus(one.Times(-1))
	for n := 1; n < len(table); n++ {
		c := one.Plus(slope.Times(n - 1))
		table[n].plus(spent{peak.Seconds(c) / t.device.reached(op.Kind, n), c.Bytes(), c.Flops})
	}
}

// addAttention adds an attention op, given the cost of its first row: one key.
func (t *Timer) addAttention(op *model.Op, one model.Cost) {
	window := op.Window + op.Sinks // sinks have a window beside them
	for i := range t.attention {
		if t.attention[i].window == window { // the layers differ in nothing else
			t.attention[i].ops++
			return
		}
	}
	a := attention{ops: 1, window: window, key: one.KVBytes, pair: one.Flops, row: one.ActivationBytes}
	a.reached = make([]float64, len(t.rows))
	for n := 1; n < len(a.reached); n++ {
		a.reached[n] = t.device.reached(op.Kind, n)
	}
	t.attention = append(t.attention, a)
}

// Begin begins a step.
func (t *Timer) Begin() {
	t.step.rows, t.step.outputs, t.step.attention = 0, 0, spent{}
}

// Add adds the rows of a sequence with past tokens in the KV cache, and its outputs. A step has at
// most the rows and outputs of NewTimer.
func (t *Timer) Add(rows, past, outputs int) {
	t.step.rows += rows
	t.step.outputs += outputs
	for i := range t.attention {
		a := &t.attention[i]
		t.addSpent(a, rows, int64(rows-1+a.seen(past)), a.pairs(past, rows))
	}
}

// AddBeams adds a row for each beam of a request after past tokens. The beams share the first prompt
// tokens, whose keys are read once.
func (t *Timer) AddBeams(beams, past, prompt int) {
	t.step.rows += beams
	t.step.outputs += beams
	for i := range t.attention {
		a := &t.attention[i]
		seen := a.seen(past)
		response := min(seen, past+1-prompt)
		t.addSpent(a, beams, int64(seen-response+beams*response), int64(beams*seen))
	}
}

func (t *Timer) addSpent(a *attention, rows int, keys, pairs int64) {
	bytes, flops := keys*a.key+int64(rows)*a.row, pairs*a.pair
	bound := max(float64(bytes)/(t.device.GBps*1e9), float64(flops)/(t.device.TFLOPS*1e12))
	s := &t.step.attention
	s.seconds += float64(a.ops) * bound / a.reached[rows]
	s.bytes += a.ops * bytes
	s.flops += a.ops * flops
}

// End is the time of the step.
func (t *Timer) End() Time {
	s := t.rows[t.step.rows]
	s.plus(t.outputs[t.step.outputs])
	s.plus(t.step.attention)
	return Time{
		Device: s.seconds + t.overhead, Bytes: s.bytes, Flops: s.flops,
		Host: t.device.StepSeconds + float64(t.step.outputs)*t.device.OutputSeconds,
	}
}

// seen returns the number of keys that the row at a position sees, including its own.
func (a *attention) seen(position int) int {
	if a.window > 0 {
		return min(a.window, position+1)
	}
	return position + 1
}

// pairs counts the keys that rows at past, past+1, ... see, each for itself.
func (a *attention) pairs(past, rows int) int64 {
	growing := rows
	if a.window > 0 {
		growing = min(rows, max(0, a.window-past))
	}
	n, first := int64(growing), int64(past+1)
	return n*first + n*(n-1)/2 + int64(rows-growing)*int64(a.window)
}
