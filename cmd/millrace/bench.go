package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/measure"
)

type benchOptions struct {
	device  config.Device
	model   string
	prompt  int
	gen     int
	batches []int
	beams   int
	repeat  int
	rows    int
	profile profileFlags
	asJSON  bool
}

// benchReport is what bench prints with --json.
type benchReport struct {
	Model   string             `json:"model"`
	Device  device.Info        `json:"device"`
	Program device.ProgramInfo `json:"program"`
	Results []measure.Result   `json:"results"`
	Beams   *measure.Beams     `json:"beams,omitempty"`
}

func newBench(a *app) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure prefill and decode of a model on this machine",
		Long: `Measure the model on the device alone: prefill of one prompt after the other, then decoding of all
sequences together, with random tokens. The machine's own limits (read bandwidth of all cores, peak of
the products) are measured every few steps of the same run, so that the shares can be compared between
machines, and between quiet and busy minutes of one.

--beams measures a beam search too: its steps alternate with those of greedy decoding after the same
prompt.

--ops and --sdpa measure op by op instead, each op against the device's limits.`,
		Example: `  millrace bench --model DIR --prompt 512 --gen 32 --batch 1,8,16 --json
  millrace bench --model DIR --ops --batch 1,8
  millrace bench --model DIR --sdpa --prompt 1024 --batch 1,2,4,8,16`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return bench(cmd.OutOrStdout(), a, &o) },
	}
	f := cmd.Flags()
	o.device.Register(f)
	config.RegisterModel(f, &o.model)
	f.IntVar(&o.prompt, "prompt", 512, "prompt tokens of each sequence")
	f.IntVar(&o.gen, "gen", 32, "tokens to generate")
	f.IntSliceVar(&o.batches, "batch", []int{1, 8, 16}, "numbers of sequences")
	f.IntVar(&o.beams, "beams", 0, "measure a beam search of one prompt with so many beams too (0: none)")
	f.IntVar(&o.repeat, "repeat", 3, "runs of each case; the median counts")
	f.IntVar(&o.rows, "max-batch-tokens", 512, "tokens per step")
	o.profile.register(f)
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *benchOptions) validate() (largest int, err error) {
	if len(o.batches) == 0 {
		return 0, config.Usagef("--batch: found nothing, expected numbers of sequences")
	}
	for _, b := range o.batches {
		if b < 1 {
			return 0, config.Usagef("--batch: found %d, expected at least 1", b)
		}
		largest = max(largest, b)
	}
	if o.beams < 0 || o.beams == 1 || o.beams > sample.MaxBeams || o.beams > 0 && (o.prompt < 2 || o.gen < 1) {
		return 0, config.Usagef("--beams %d, --prompt %d, --gen %d: expected 2 to %d beams, at least 2 and 1 tokens", o.beams, o.prompt, o.gen, sample.MaxBeams)
	}
	if o.prompt < 1 || o.gen < 0 || o.repeat < 1 || o.rows < 1 {
		return 0, config.Usagef("--prompt %d, --gen %d, --repeat %d, --max-batch-tokens %d: expected at least 1, 0, 1, 1",
			o.prompt, o.gen, o.repeat, o.rows)
	}
	return largest, o.device.Validate()
}

func bench(out io.Writer, a *app, o *benchOptions) error {
	largest, err := o.validate()
	if err != nil {
		return err
	}
	if o.model, err = modelDir(o.model); err != nil {
		return err
	}
	if o.profile.wanted() {
		return benchProfile(out, a, o, largest)
	}
	a.log.Info().Str("model", o.model).Msg("loading")
	options, err := modelOptions(o.model, o.device)
	if err != nil {
		return err
	}
	options.MaxRows, options.MaxOutputs = max(o.rows, largest, o.beams), max(largest, o.beams)
	options.MaxSequences = max(largest, o.beams+1)
	m, err := compute.Open(options)
	if err != nil {
		return err
	}
	defer m.Close()
	report := benchReport{Model: o.model, Program: m.Engine().Info()}
	if report.Device, err = m.Device.Info(); err != nil {
		return err
	}
	for _, b := range o.batches {
		a.log.Info().Int("batch", b).Int("prompt", o.prompt).Int("gen", o.gen).Int("repeat", o.repeat).Msg("measuring")
		r, err := measure.Run(m, measure.Case{Prompt: o.prompt, Gen: o.gen, Batch: b, Repeat: o.repeat})
		if err != nil {
			return err
		}
		report.Results = append(report.Results, r)
	}
	if o.beams > 0 {
		a.log.Info().Int("beams", o.beams).Int("prompt", o.prompt).Int("gen", o.gen).Int("repeat", o.repeat).Msg("measuring")
		r, err := measure.RunBeams(m, o.beams, o.prompt, o.gen, o.repeat)
		if err != nil {
			return err
		}
		report.Beams = &r
	}
	if o.asJSON {
		return printJSON(out, report)
	}
	return printBench(out, &report)
}

func printBench(out io.Writer, r *benchReport) error {
	fmt.Fprintf(out, "%s on %s (%s, %d threads); linear ops: %s\n", r.Model, r.Device.Name, r.Device.ISA, r.Device.Threads, r.Program.Linear)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join([]string{"batch", "prefill tok/s", "of peak", "TTFT ms", "decode tok/s", "TPOT ms", "of read bandwidth", "limits: GFLOP/s", "GB/s", ""}, "\t"))
	for _, c := range r.Results {
		fmt.Fprintf(w, "%d\t%.1f\t%.0f%%\t%.1f\t%.1f\t%.2f\t%.0f%%\t%.0f\t%.1f\t\n",
			c.Batch, c.PrefillTPS, 100*c.PeakShare, 1e3*c.TTFT, c.DecodeTPS, 1e3*c.TPOT, 100*c.ReadShare,
			c.Limits.PeakGFLOPS, c.Limits.ReadGBps)
	}
	if err := w.Flush(); err != nil || r.Beams == nil {
		return err
	}
	b := r.Beams
	_, err := fmt.Fprintf(out, "%d beams after %d tokens: %.2f ms per token (choosing %.2f), greedy %.2f: ratio %.2f; KV cache %.1f MB, standard %.1f MB\n",
		b.Beams, b.Prompt, 1e3*b.BeamTPOT, 1e3*b.Choosing, 1e3*b.GreedyTPOT, b.Ratio, float64(b.SegmentBytes)/1e6, float64(b.StandardBytes)/1e6)
	return err
}
