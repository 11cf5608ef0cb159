package bench

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/lab/measure"
	"github.com/millrace/millrace/lab/roofline"
)

// ProfileReport is what RunProfile measured.
type ProfileReport struct {
	Model   string             `json:"model"`
	Device  device.Info        `json:"device"`
	Program device.ProgramInfo `json:"program"`
	Limits  string             `json:"limits"` // where they come from
	Ops     []measure.Ops      `json:"ops,omitempty"`
	SDPA    *sdpaReport        `json:"sdpa,omitempty"`
	Queries []measure.SDPA     `json:"queries,omitempty"` // of one sequence
}

type sdpaReport struct {
	Beams   int            `json:"beams"`
	Prompt  int            `json:"prompt"`
	Gen     int            `json:"gen"`
	Batches []measure.SDPA `json:"batches"`
	// The same rows where each beam has a copy of the prompt's keys and values.
	Standard []measure.SDPA `json:"standard"`
}

// RunProfile measures the model op by op.
func RunProfile(log zerolog.Logger, o Options) (*ProfileReport, error) {
	largest, beams := slices.Max(o.Batches), max(o.Beams, 1)
	if o.SDPA && o.Beams == 0 {
		beams = 4
	}
	program, err := compute.ReadProgram(o.Model.Dir)
	if err != nil {
		return nil, err
	}
	if !program.Generates() && (o.SDPA || len(o.Queries) > 0) {
		return nil, fmt.Errorf("%w: found %s with --sdpa or --queries", compute.ErrEncoder, program.Architecture)
	}
	// As many sequences of full length as hold the slabs of the largest case.
	slabs := largest * (device.Slabs(o.prompt()+o.Gen+1) + beams*device.Slabs(o.Gen+1))
	if o.SDPA {
		slabs = max(slabs, largest*beams*device.Slabs(o.prompt()+o.Gen+1))
	}
	queries := slices.Max(append([]int{0}, o.Queries...))
	slabs = max(slabs, device.Slabs(slices.Max(o.Prompts)+queries))
	sequences := slabs/device.Slabs(program.MaxPositions) + 1
	log.Info().Str("model", o.Model.Dir).Msg("loading")
	options := o.Model
	options.Device.Profile = true
	options.MaxRows, options.MaxOutputs = max(o.Rows, o.prompt(), largest*beams, queries), largest*beams
	options.MaxSequences = sequences
	if !program.Generates() {
		options.MaxOutputs = max(options.MaxOutputs, measure.TextsPerStep(options.MaxRows, o.prompt()))
	}
	m, err := compute.Open(options)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	report := &ProfileReport{Model: o.Model.Dir, Program: m.Engine().Info()}
	if report.Device, err = m.Device.Info(); err != nil {
		return nil, err
	}
	roof, err := measure.OpenRoof(m.Device, report.Device)
	if err != nil {
		return nil, err
	}
	defer roof.Close()
	report.Limits = roof.Source
	profile := measure.Profile{Model: m, Roof: roof, Repeat: o.Repeat}
	if o.Ops {
		if report.Ops, err = benchOps(log, &o, profile); err != nil {
			return nil, err
		}
	}
	if o.SDPA {
		if report.SDPA, err = benchSDPA(log, &o, profile, beams); err != nil {
			return nil, err
		}
	}
	for _, past := range o.Prompts {
		for _, rows := range o.Queries {
			log.Info().Int("queries", rows).Int("prompt", past).Int("repeat", o.Repeat).Msg("measuring attention")
			s, err := profile.AttentionOfRows(past, rows)
			if err != nil {
				return nil, err
			}
			report.Queries = append(report.Queries, s)
		}
	}
	return report, nil
}

func benchOps(log zerolog.Logger, o *Options, p measure.Profile) ([]measure.Ops, error) {
	generates, prompts := p.Model.Program.Generates(), 1
	if !generates {
		prompts = min(measure.TextsPerStep(p.Model.Engine().Limits().MaxRows, o.prompt()), slices.Max(o.Batches))
	}
	log.Info().Int("prompt", o.prompt()).Int("batch", prompts).Int("repeat", o.Repeat).Msg("measuring prefill")
	prefill, err := p.Prefill(o.prompt(), prompts)
	if err != nil {
		return nil, err
	}
	ops := []measure.Ops{prefill}
	if !generates {
		return ops, nil
	}
	for _, batch := range o.Batches {
		log.Info().Int("batch", batch).Int("prompt", o.prompt()).Int("repeat", o.Repeat).Msg("measuring decode")
		decode, err := p.Decode(roofline.Workload{Prompt: o.prompt(), Batch: batch, Beams: max(o.Beams, 1), Tiles: 1})
		if err != nil {
			return nil, err
		}
		ops = append(ops, decode)
	}
	return ops, nil
}

func benchSDPA(log zerolog.Logger, o *Options, p measure.Profile, beams int) (*sdpaReport, error) {
	r := &sdpaReport{Beams: beams, Prompt: o.prompt(), Gen: o.Gen}
	for _, batch := range o.Batches {
		log.Info().Int("batch", batch).Int("beams", beams).Int("repeat", o.Repeat).Msg("measuring attention")
		w := roofline.Workload{Prompt: o.prompt(), Gen: o.Gen, Batch: batch, Beams: beams, Tiles: 1}
		s, err := p.Attention(w)
		if err != nil {
			return nil, err
		}
		w.Batch, w.Beams = batch*beams, 1
		standard, err := p.Attention(w)
		if err != nil {
			return nil, err
		}
		r.Batches, r.Standard = append(r.Batches, s), append(r.Standard, standard)
	}
	return r, nil
}

// Print writes the report for people.
func (r *ProfileReport) Print(out io.Writer) error {
	fmt.Fprintf(out, "measured on %s (%s backend, %s, %d threads)\n%s; linear ops: %s\n",
		r.Device.Name, r.Device.Backend, r.Device.ISA, r.Device.Threads, r.Model, r.Program.Linear)
	for i := range r.Ops {
		if err := printOps(out, r.Limits, &r.Ops[i]); err != nil {
			return err
		}
	}
	if r.SDPA != nil {
		if err := printSDPA(out, r.SDPA); err != nil {
			return err
		}
	}
	return printQueries(out, r.Queries)
}

func printOps(out io.Writer, limits string, o *measure.Ops) error {
	what := fmt.Sprintf("prefill of %d tokens", o.Rows)
	if o.Batch > 1 {
		what = fmt.Sprintf("prefill of %d texts of %d tokens", o.Batch, o.Rows)
	}
	if o.Past > 0 {
		what = fmt.Sprintf("decode, batch %d, beams %d, after %d tokens", o.Batch, o.Beams, o.Past)
	}
	fmt.Fprintf(out, "\n%s: the median of %d steps; %s: %.1f GB/s, %.0f GFLOP/s, 8 bit %s GOP/s\n",
		what, o.Steps, limits, o.Limits.ReadGBps, o.Limits.PeakGFLOPS, known(o.Limits.PeakInt8))
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tops\tlaunches\tms\tof step\tMB\tGFLOP\tGB/s\tGFLOP/s\tof roofline\tbound by\t")
	line := func(op *measure.Op) {
		fmt.Fprintf(w, "%s\t%d\t%d\t%.3f\t%.1f%%\t%.2f\t%.3f\t%.1f\t%.1f\t%.0f%%\t%s\t\n", op.Name, op.Ops, op.Launches,
			1e3*op.Time, 100*op.Time/o.Step, megabytes(op.Bytes), float64(op.Flops)/1e9, op.GBps, op.GFLOPS, 100*op.Share, op.Limit)
	}
	for i := range o.Ops {
		line(&o.Ops[i])
	}
	line(&o.Total)
	fmt.Fprintf(w, "not in ops\t\t\t%.3f\t%.1f%%\t\t\t\t\t\t\t\n", 1e3*o.Outside, 100*o.Outside/o.Step)
	if err := w.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "the step: %.3f ms op by op, %.3f ms as it is served\n", 1e3*o.Step, 1e3*o.Served)
	return err
}

func printSDPA(out io.Writer, r *sdpaReport) error {
	fmt.Fprintf(out, "\nattention of a decode step: %d beams after a prompt of %d tokens and responses of %d; all layers together\n",
		r.Beams, r.Prompt, r.Gen)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "batch\tKV cache MB\tms\tGB/s\tof read bandwidth\tlimit GB/s\tprompt for each beam: MB\tms\tGB/s\t")
	for i, s := range r.Batches {
		each := r.Standard[i]
		fmt.Fprintf(w, "%d\t%.1f\t%.3f\t%.1f\t%.0f%%\t%.1f\t%.1f\t%.3f\t%.1f\t\n", s.Batch, megabytes(s.KVBytes), 1e3*s.Time, s.GBps,
			100*s.Share,
			s.Limits.ReadGBps, megabytes(each.KVBytes), 1e3*each.Time, each.GBps)
	}
	return w.Flush()
}

// printQueries compares attention with that of the first number of queries after the same tokens.
func printQueries(out io.Writer, cases []measure.SDPA) error {
	if len(cases) == 0 {
		return nil
	}
	fmt.Fprintln(out, "\nattention of queries of one sequence; all layers together")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "after\tqueries\tms\tof the first\tms each\tGB/s\tof read bandwidth\tlimit GB/s\t")
	first := 0
	for i, s := range cases {
		if s.Past != cases[first].Past {
			first = i
		}
		fmt.Fprintf(w, "%d\t%d\t%.3f\t%.2f\t%.3f\t%.1f\t%.0f%%\t%.1f\t\n", s.Past, s.Rows, 1e3*s.Time, s.Time/cases[first].Time,
			1e3*s.Time/float64(s.Rows), s.GBps, 100*s.Share, s.Limits.ReadGBps)
	}
	return w.Flush()
}

func known(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }
