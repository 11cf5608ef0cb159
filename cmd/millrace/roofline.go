package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/roofline"
)

// rooflineNotice heads whatever is printed of a bound.
const rooflineNotice = "LOWER BOUND from counted bytes and flops, not a measurement."

// thisCPU names the device whose limits are measured, not looked up.
const thisCPU = "this-cpu"

// rooflineFlags are explain's flags of bounds.
type rooflineFlags struct {
	device string
	tiles  int
	paper  bool
}

func (r *rooflineFlags) register(f *pflag.FlagSet) {
	f.StringVar(&r.device, "roofline", "", "print the least time of each op on a device: max-1550-tile, max-1100, flex-170, arc-a770, arc-b580, "+
		thisCPU+" (measured now) or all; for --prefill and --gen tokens of --batch requests with --beams")
	f.IntVar(&r.tiles, "tiles", 1, "with --roofline: devices that share the model")
	f.BoolVar(&r.paper, "paper", false, "print the least times of the models and settings of arXiv:2401.05391, beside its own figures")
}

func (r *rooflineFlags) wanted() bool { return r.device != "" || r.paper }

// rooflineReport is what explain --roofline prints with --json.
type rooflineReport struct {
	Notice       string `json:"notice"`
	Architecture string `json:"architecture"`
	roofline.Workload
	Bounds []roofline.Bound `json:"bounds"`
}

func explainRoofline(cmd *cobra.Command, o explainOptions) error {
	out := cmd.OutOrStdout()
	if o.roof.paper {
		for _, name := range []string{"roofline", "model", "prefill", "context", "beams", "batch", "gen", "tiles"} {
			if cmd.Flags().Changed(name) || name == "model" && o.model != "" {
				return config.Usagef("--%s: not together with --paper, which has settings of its own", name)
			}
		}
		return explainPaper(out, o.json)
	}
	if cmd.Flags().Changed("context") {
		return config.Usagef("--context: not together with --roofline, which decodes --gen tokens after --prefill")
	}
	if err := o.beams.check(); err != nil {
		return err
	}
	w := roofline.Workload{Prompt: o.steps.Prefill, Gen: o.beams.gen, Batch: o.beams.batch, Beams: max(o.beams.beams, 1), Tiles: o.roof.tiles}
	if w.Prompt < 1 || w.Tiles < 1 {
		return config.Usagef("--prefill %d, --tiles %d: expected at least 1", w.Prompt, w.Tiles)
	}
	devices, err := rooflineDevices(o.roof.device)
	if err != nil {
		return err
	}
	dir, err := modelDir(o.model)
	if err != nil {
		return err
	}
	program, err := compute.ReadProgram(dir)
	if err != nil {
		return err
	}
	report := rooflineReport{Notice: rooflineNotice, Architecture: program.Architecture, Workload: w}
	for _, d := range devices {
		report.Bounds = append(report.Bounds, roofline.Of(program, w, d, model.BF16Sizes()))
	}
	if o.json {
		return printJSON(out, report)
	}
	return printRoofline(out, &report)
}

// rooflineDevices are the devices of --roofline.
func rooflineDevices(name string) ([]sim.Peak, error) {
	switch name {
	case "all":
		cpu, err := measureThisCPU()
		return append(sim.Peaks(), cpu), err
	case thisCPU:
		cpu, err := measureThisCPU()
		return []sim.Peak{cpu}, err
	}
	d, err := sim.FindPeak(name)
	if err != nil {
		return nil, config.Usagef("--roofline: %v, %s and all", err, thisCPU)
	}
	return []sim.Peak{d}, nil
}

// cpuSamples of the CPU's limits: other guests of the machine can only make one
// look lower, so the largest count.
const cpuSamples = 5

// measureThisCPU takes a second or more of all cores.
func measureThisCPU() (sim.Peak, error) {
	d, err := device.Open(device.Options{Backend: "cpu"})
	if err != nil {
		return sim.Peak{}, err
	}
	defer d.Close()
	info, err := d.Info()
	if err != nil {
		return sim.Peak{}, err
	}
	cpu := sim.Peak{ID: thisCPU, Name: info.Name + ", measured", Memory: float64(info.MemoryTotal) / 1e9}
	for range cpuSamples {
		m, err := d.Measure()
		if err != nil {
			return sim.Peak{}, err
		}
		cpu.GBps, cpu.TFLOPS = max(cpu.GBps, m.ReadGBps), max(cpu.TFLOPS, m.PeakGFLOPS/1e3)
	}
	return cpu, nil
}

func printRoofline(out io.Writer, r *rooflineReport) error {
	fmt.Fprintf(out, "%s\n%s: %d + %d tokens, batch %d, beams %d, tiles %d; 16-bit weights and KV cache\n\n",
		rooflineNotice, r.Architecture, r.Prompt, r.Gen, r.Batch, r.Beams, r.Tiles)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "device\tGB/s\tTFLOP/s, 16 bit\tTOP/s, 8 bit\tGB\tTTFT ms\tTPOT ms\t")
	for _, b := range r.Bounds {
		fmt.Fprintf(w, "%s\t%.0f\t%.1f\t%s\t%.0f\t%.3f\t%.3f\t\n",
			b.Device.ID, b.Device.GBps, b.Device.TFLOPS, known(b.Device.TOPS), b.Device.Memory, 1e3*b.TTFT, 1e3*b.TPOT)
	}
	if err := w.Flush(); err != nil || len(r.Bounds) > 1 {
		return err
	}
	b := r.Bounds[0]
	fmt.Fprintf(out, "\n%s; decode: mean of the steps\n", b.Device.Name)
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tops\tprefill MB\tGFLOP\tms\tbound by\tdecode MB\tGFLOP\tms\tbound by\t")
	line := func(name string, prefill, decode roofline.Line) {
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.3f\t%.4f\t%s\t%.2f\t%.3f\t%.4f\t%s\t\n", name, prefill.Ops,
			megabytes(prefill.Bytes), float64(prefill.Flops)/1e9, 1e3*prefill.Seconds, prefill.Limit,
			megabytes(decode.Bytes), float64(decode.Flops)/1e9, 1e3*decode.Seconds, decode.Limit)
	}
	for i := range b.Prefill {
		line(b.Prefill[i].Name, b.Prefill[i], b.Decode[i])
	}
	line("total", roofline.Total(b.Prefill), roofline.Total(b.Decode))
	return w.Flush()
}

func known(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }

func explainPaper(out io.Writer, asJSON bool) error {
	p, err := roofline.NewPaper()
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(out, struct {
			Notice string `json:"notice"`
			*roofline.Paper
		}{rooflineNotice, p})
	}
	return printPaper(out, p)
}

func printPaper(out io.Writer, p *roofline.Paper) error {
	fmt.Fprintf(out, `%s
Models and settings of arXiv:2401.05391 (float16, Intel Max 1550). Bounds per tile: peak %.0f GB/s, %.0f TFLOP/s;
"effective" is the paper's own %.0f GB/s. Several tiles: linear ops and attention divided evenly, norms and embedding on
each, exchange between tiles not counted. The paper plots its latencies without numbers, so none stand here.

Figure 8: latency, batch 1
`, rooflineNotice, p.Peak.GBps, p.Peak.TFLOPS, p.Effective.GBps)
	if err := printPaperCases(out, p.Latency); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nFigure 7: latency by prompt length, batch 1")
	if err := printPaperCases(out, p.Prompts); err != nil {
		return err
	}
	fmt.Fprintf(out, `
What the paper says in numbers, beside the bound
  first-token latency of Llama-2-13B bends at a prompt of %d tokens; bound: %d at effective bandwidth, %d at peak
  next-token latency at 4 beams "almost the same" as at 1; bound, TPOT 4 beams / 1 beam:%s
`, p.PaperBend, p.EffectiveBend, p.PeakBend, beamRatios(p.Latency))
	for _, s := range p.SDPA {
		fmt.Fprintf(out, "  attention kernel of Llama-2-13B, 4 beams, batch %d: %.0f GB/s, %.0f%% of effective, %.0f%% of peak\n",
			s.Batch, s.GBps, 100*s.GBps/p.Effective.GBps, 100*s.GBps/p.Peak.GBps)
	}
	return nil
}

func printPaperCases(out io.Writer, cases []roofline.PaperCase) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\ttiles\tin + out\tbeams\tweights read GB/tile\tTTFT ms: peak\teffective\tTPOT ms: peak\teffective\t")
	for _, c := range cases {
		fmt.Fprintf(w, "%s\t%d\t%d + %d\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t\n", c.Model, c.Tiles, c.Prompt, c.Gen, c.Beams,
			float64(c.WeightBytes)/1e9, 1e3*c.PeakTTFT, 1e3*c.EffectiveTTFT, 1e3*c.PeakTPOT, 1e3*c.EffectiveTPOT)
	}
	return w.Flush()
}

// beamRatios are the TPOT of each model's second case over that of its first.
func beamRatios(cases []roofline.PaperCase) string {
	var text strings.Builder
	for i := 1; i < len(cases); i++ {
		if one, four := cases[i-1], cases[i]; one.Model == four.Model {
			fmt.Fprintf(&text, " %s %.3f", four.Model, four.EffectiveTPOT/one.EffectiveTPOT)
		}
	}
	return text.String()
}
