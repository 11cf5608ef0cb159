// Package bench is the work of millrace bench: it measures a model on a device, without the
// pipeline around it. It must not know flags or requests.
package bench

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/lab/measure"
)

// Options say what to measure.
type Options struct {
	Model compute.Options // without the sizes of its steps
	// tokens of each sequence: a case for each of these and each of Batches; but of Ops, SDPA and Shared, which take one
	Prompts []int
	Gen     int   // tokens to generate
	Shared  int   // first tokens of the prompts that all sequences have the same slabs for
	Batches []int // numbers of sequences
	Beams   int   // of the beam searches that are measured in place of sequences; 0: none
	Repeat  int   // runs of each case
	Rows    int   // tokens per step
	Ops     bool  // RunProfile measures the ops of steps
	SDPA    bool  // RunProfile measures the attention of decode steps
	Queries []int // RunProfile measures the attention of these numbers of rows after each of Prompts
}

func (o *Options) prompt() int { return o.Prompts[0] }

// Report is what Run measured.
type Report struct {
	Model   string             `json:"model"`
	Device  device.Info        `json:"device"`
	Program device.ProgramInfo `json:"program"`
	Results []measure.Result   `json:"results,omitempty"`
	Beams   []measure.Beams    `json:"beams,omitempty"` // in place of results
}

// Run measures prefill and decode of the model.
func Run(log zerolog.Logger, o Options) (*Report, error) {
	log.Info().Str("model", o.Model.Dir).Msg("loading")
	largest, options := slices.Max(o.Batches), o.Model
	options.MaxOutputs, options.MaxSequences = largest*max(o.Beams, 1), largest*(o.Beams+1)
	options.MaxRows, options.Generates = max(o.Rows, options.MaxOutputs), o.Beams > 0
	m, err := compute.Open(options)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	report := &Report{Model: o.Model.Dir, Program: m.Engine().Info()}
	if report.Device, err = m.Device.Info(); err != nil {
		return nil, err
	}
	for _, prompt := range o.Prompts {
		for _, b := range o.Batches {
			log.Info().Int("batch", b).Int("prompt", prompt).Int("gen", o.Gen).Int("beams", o.Beams).Int("repeat",
				o.Repeat).Msg("measuring")
			if o.Beams > 0 {
				r, err := measure.RunBeams(m, o.Beams, b, prompt, o.Gen, o.Repeat)
				if err != nil {
					return nil, err
				}
				report.Beams = append(report.Beams, r)
				continue
			}
			r, err := measure.Run(m, measure.Case{Prompt: prompt, Gen: o.Gen, Batch: b, Shared: o.Shared, Repeat: o.Repeat})
			if err != nil {
				return nil, err
			}
			report.Results = append(report.Results, r)
		}
	}
	return report, nil
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintf(out, "%s on %s (%s, %d threads); linear ops: %s\n", r.Model, r.Device.Name, r.Device.ISA, r.Device.Threads,
		r.Program.Linear)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.Beams) > 0 {
		fmt.Fprintln(w, "prompt\tbatch\tbeams\tfirst token ms\tper token ms\tchoosing\tgreedy\tratio\tKV cache MB\tstandard MB\t")
		for _, b := range r.Beams {
			fmt.Fprintf(w, "%d\t%d\t%d\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.1f\t\n", b.Prompt, b.Batch, b.Beams, 1e3*b.First,
				1e3*b.BeamTPOT, 1e3*b.Choosing, 1e3*b.GreedyTPOT, b.Ratio, float64(b.SegmentBytes)/1e6, float64(b.StandardBytes)/1e6)
		}
		return w.Flush()
	}
	if r.Results[0].TextsPS > 0 {
		fmt.Fprintln(w, "tokens of a text\ttexts\ttexts/s\ttok/s\tof peak\tall texts ms\tlimits: GFLOP/s\t")
		for _, c := range r.Results {
			fmt.Fprintf(w, "%d\t%d\t%.1f\t%.1f\t%.0f%%\t%.1f\t%.0f\t\n", c.Prompt, c.Batch, c.TextsPS, c.PrefillTPS, 100*c.PeakShare,
				1e3*c.AllFirst, c.Limits.PeakGFLOPS)
		}
		return w.Flush()
	}
	fmt.Fprintln(w, strings.Join([]string{"prompt", "batch", "prefill tok/s", "of peak", "TTFT ms", "decode tok/s", "TPOT ms",
		"of read bandwidth", "limits: GFLOP/s", "GB/s", ""}, "\t"))
	for _, c := range r.Results {
		fmt.Fprintf(w, "%d\t%d\t%.1f\t%.0f%%\t%.1f\t%.1f\t%.2f\t%.0f%%\t%.0f\t%.1f\t\n",
			c.Prompt, c.Batch, c.PrefillTPS, 100*c.PeakShare, 1e3*c.TTFT, c.DecodeTPS, 1e3*c.TPOT, 100*c.ReadShare,
			c.Limits.PeakGFLOPS, c.Limits.ReadGBps)
	}
	return w.Flush()
}
