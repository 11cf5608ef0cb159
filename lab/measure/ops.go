package measure

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/roofline"
)

// Op is the ops of one name in a step, over all layers: their counts, their time, and the share
// of the device's limits that they reach.
type Op struct {
	roofline.OpGroup
	Launches int     `json:"launches"` // of kernels
	Time     float64 `json:"time_seconds"`
	GBps     float64 `json:"gbps"`
	GFLOPS   float64 `json:"gflops"`
	// Least time / time. Above 1 where operands come from a cache: the limit is
	// the memory's.
	Share float64 `json:"share_of_roofline"`
}

// Ops is a step measured op by op. It is the step of the median time of those
// that were run, so that its parts add up.
type Ops struct {
	Rows    int     `json:"rows"` // of each sequence
	Past    int     `json:"past"` // tokens in the KV cache of each before the step
	Batch   int     `json:"batch"`
	Beams   int     `json:"beams"`
	Steps   int     `json:"steps"` // run
	Ops     []Op    `json:"ops"`   // longest first
	Total   Op      `json:"total"` // of the ops
	Step    float64 `json:"step_seconds"`
	Outside float64 `json:"not_in_ops_seconds"` // Step - Total.Time: launching, waiting, copying logits
	// The step as it is served, with no op waited for: median of steps that
	// alternate with the timed ones.
	Served float64            `json:"served_step_seconds"`
	Limits device.Measurement `json:"limits"` // median of samples that alternate with the steps
}

// Profile times the ops of steps of a model.
type Profile struct {
	Model  *compute.Model
	Roof   *Roof
	Repeat int // steps of each kind
	// Warm measures the limits once before the steps, not between them. A small model then stays
	// in the caches, as in a server. Short steps are repeated for warmTime.
	Warm bool
}

const (
	warmTime  = 300 * time.Millisecond
	mostSteps = 100
)

// Prefill times a prefill step of whole prompts, or of an encoder's texts.
func (p Profile) Prefill(tokens, prompts int) (Ops, error) {
	s, err := newSequences(p.Model, prompts, 1, tokens, 0, 0)
	if err != nil {
		return Ops{}, err
	}
	defer s.close()
	return p.run(s.texts(0, prompts), roofline.Workload{Prompt: tokens, Batch: prompts, Tiles: 1}.Prefill())
}

// Decode times a decode step after gen tokens of each response. The keys and values of the
// prompts come from a prefill; those of the responses are arbitrary.
func (p Profile) Decode(w roofline.Workload) (Ops, error) {
	s, err := p.decoding(w)
	if err != nil {
		return Ops{}, err
	}
	defer s.close()
	return p.run(s.decode(), w.Decode(w.Gen))
}

// decoding are the sequences of a decode step, with their prompts' keys and values.
func (p Profile) decoding(w roofline.Workload) (*sequences, error) {
	s, err := newSequences(p.Model, w.Batch, w.Beams, w.Prompt, w.Gen+1, 0)
	if err != nil {
		return nil, err
	}
	if err := s.fill(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// timedStep is one run of a step.
type timedStep struct {
	ops  []device.OpTime
	step time.Duration
}

func (p Profile) run(rows []compute.Rows, step roofline.Step) (Ops, error) {
	var timed []timedStep
	var served []time.Duration
	samples := limits{measure: p.Roof.Measure}
	start := time.Now()
	for i := 0; i < p.Repeat || p.Warm && i < mostSteps && time.Since(start) < warmTime; i++ {
		if i == 0 || !p.Warm {
			if _, err := samples.sample(); err != nil {
				return Ops{}, err
			}
		}
		begin := time.Now()
		if _, err := p.Model.Run(rows); err != nil {
			return Ops{}, err
		}
		served = append(served, time.Since(begin))
		begin = time.Now()
		ops, err := p.Model.RunTimed(rows)
		if err != nil {
			return Ops{}, err
		}
		timed = append(timed, timedStep{ops, time.Since(begin)})
	}
	slices.SortFunc(timed, func(a, b timedStep) int { return cmp.Compare(a.step, b.step) })
	o := newOps(p.Model.Engine().Program(), timed[len(timed)/2], step, samples.median())
	o.Steps, o.Served = len(served), median(served).Seconds()
	return o, nil
}

// newOps puts a run of a step beside its counts and the device's limits.
func newOps(program *model.Program, t timedStep, step roofline.Step, limits device.Measurement) Ops {
	roof := sim.Peak{GBps: limits.ReadGBps, TFLOPS: limits.PeakGFLOPS / 1e3, TOPS: limits.PeakInt8 / 1e3}
	costs := roofline.Costs(program, step, model.BF16Sizes())
	o := Ops{Rows: step.Rows, Past: step.Past, Batch: step.Batch, Beams: step.Beams, Step: t.step.Seconds(), Limits: limits}
	index := map[string]int{}
	for i, line := range roofline.OpGroups(program, costs, roof) {
		index[line.Name] = i
		o.Ops = append(o.Ops, Op{OpGroup: line})
	}
	for i, op := range t.ops {
		to := &o.Ops[index[program.Ops[i].Name]]
		to.Launches += op.Launches
		to.Time += op.Time.Seconds()
	}
	lines := make([]roofline.OpGroup, len(o.Ops))
	for i := range o.Ops {
		o.Ops[i].rate()
		lines[i] = o.Ops[i].OpGroup
		o.Total.Launches += o.Ops[i].Launches
		o.Total.Time += o.Ops[i].Time
	}
	o.Total.OpGroup = roofline.Total(lines)
	o.Total.rate()
	o.Outside = o.Step - o.Total.Time
	slices.SortStableFunc(o.Ops, func(a, b Op) int { return cmp.Compare(b.Time, a.Time) })
	return o
}

// rate fills in what follows from counts and time.
func (o *Op) rate() {
	o.GBps = float64(o.Bytes) / o.Time / 1e9
	o.GFLOPS = float64(o.Flops) / o.Time / 1e9
	o.Share = o.Seconds / o.Time
}
