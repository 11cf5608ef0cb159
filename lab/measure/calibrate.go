package measure

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/roofline"
)

// Calibration lists the steps to measure: decode steps of each of the batches after Past
// tokens, and prefills of each of the prompts.
type Calibration struct {
	Batches, Prompts []int
	Past             int
}

// Calibrate measures the share of the device's limits that the ops of each kind reach, by their
// rows, and describes the device for a simulation of the same model. It scales each op so that
// the ops of a step add up to the step as it is served.
func (p Profile) Calibrate(c Calibration, name string) (sim.Device, error) {
	d := sim.Device{Peak: sim.Peak{ID: "calibrated", Name: name}}
	reached := reaches{}
	var read, peak []float64
	add := func(o Ops, rows, outputs int) {
		reached.add(p.Model.Program, o, rows, outputs)
		read, peak = append(read, o.Limits.ReadGBps), append(peak, o.Limits.PeakGFLOPS/1e3)
	}
	for _, batch := range c.Batches {
		o, err := p.Decode(roofline.Workload{Prompt: c.Past, Batch: batch, Beams: 1, Tiles: 1})
		if err != nil {
			return d, err
		}
		add(o, batch, batch)
	}
	for _, prompt := range c.Prompts {
		o, err := p.Prefill(prompt, 1)
		if err != nil {
			return d, err
		}
		add(o, prompt, 1)
	}
	d.GBps, d.TFLOPS = median(read), median(peak)
	d.Reached = reached.shares(d.Peak)
	if err := d.Validate(); err != nil {
		return d, fmt.Errorf("measure: calibration: %w", err)
	}
	return d, nil
}

// reaches has the counts and times of ops, by kind and rows.
type reaches map[string]map[int]*reach

type reach struct {
	lines []roofline.OpGroup
	time  float64
}

// add adds the ops of a step. The rows of attention are those of one sequence.
func (r reaches) add(program *model.Program, o Ops, rows, outputs int) {
	byOutputs := map[string]bool{} // names of ops that all have the outputs' rows
	after := false
	for i := range program.Ops {
		after = after || program.Ops[i].Kind == model.OpSelectRows
		if name := program.Ops[i].Name; !after {
			byOutputs[name] = false
		} else if _, before := byOutputs[name]; !before {
			byOutputs[name] = true
		}
	}
	for _, op := range o.Ops {
		n := rows
		switch {
		case op.Kind == model.OpAttention.String():
			n = o.Rows
		case byOutputs[op.Name]:
			n = outputs
		}
		if r[op.Kind] == nil {
			r[op.Kind] = map[int]*reach{}
		}
		at := r[op.Kind][n]
		if at == nil {
			at = &reach{}
			r[op.Kind][n] = at
		}
		at.lines = append(at.lines, op.OpGroup)
		at.time += op.Time * o.Served / o.Step
	}
}

// shares are bound / time with the limits of d.
func (r reaches) shares(d sim.Peak) map[string][]sim.Share {
	shares := map[string][]sim.Share{}
	for kind, byRows := range r {
		for rows, at := range byRows {
			bound := 0.0
			for _, l := range at.lines {
				bound += d.Seconds(model.Cost{ActivationBytes: l.Bytes, Flops: l.Flops})
			}
			shares[kind] = append(shares[kind], sim.Share{Rows: rows, Share: bound / at.time})
		}
		slices.SortFunc(shares[kind], func(a, b sim.Share) int { return cmp.Compare(a.Rows, b.Rows) })
	}
	return shares
}
