package roofline

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/curve"
)

// Notice heads whatever is printed of a bound.
const Notice = "LOWER BOUND from counted bytes and flops, not a measurement."

// Report is the bounds of a workload on some devices.
type Report struct {
	Notice       string `json:"notice"`
	Architecture string `json:"architecture"`
	Workload
	Bounds []Bound `json:"bounds"`
}

// NewReport bounds a workload of a program on each of the devices.
func NewReport(p *model.Program, w Workload, peaks []sim.Peak) *Report {
	r := &Report{Notice: Notice, Architecture: p.Architecture, Workload: w}
	for _, peak := range peaks {
		r.Bounds = append(r.Bounds, NewBound(p, w, peak, model.BF16Sizes()))
	}
	return r
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintf(out, "%s\n%s: %d + %d tokens, batch %d, beams %d, tiles %d; 16-bit weights and KV cache\n\n",
		Notice, r.Architecture, r.Prompt, r.Gen, r.Batch, r.Beams, r.Tiles)
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
	fmt.Fprintf(out, "\n%s; decode: mean of the steps%s\n", b.Device.Name, b.tiles(r.Tiles))
	w = tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "op\tops\tprefill MB\tGFLOP\tms\tbound by\tdecode MB\tGFLOP\tms\tbound by\t")
	line := func(name string, prefill, decode OpGroup) {
		fmt.Fprintf(w, "%s\t%d\t%.2f\t%.3f\t%.4f\t%s\t%.2f\t%.3f\t%.4f\t%s\t\n", name, prefill.Ops,
			megabytes(prefill.Bytes), float64(prefill.Flops)/1e9, 1e3*prefill.Seconds, prefill.Limit,
			megabytes(decode.Bytes), float64(decode.Flops)/1e9, 1e3*decode.Seconds, decode.Limit)
	}
	for i := range b.Prefill {
		line(b.Prefill[i].Name, b.Prefill[i], b.Decode[i])
	}
	line("total", Total(b.Prefill), Total(b.Decode))
	return w.Flush()
}

// tiles says what is counted of several tiles.
func (b *Bound) tiles(n int) string {
	switch {
	case n == 1:
		return ""
	case b.Exchange:
		return fmt.Sprintf("; one of %d tiles, with the sums over tiles at the bandwidth of its memory", n)
	}
	return fmt.Sprintf("; one of %d tiles, divided evenly, without the exchange", n)
}

func known(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

func megabytes(n int64) float64 { return float64(n) / 1e6 }

// PaperReport is the bounds of the paper's models beside its own figures.
type PaperReport struct {
	Notice string `json:"notice"`
	*Paper
}

// NewPaperReport computes the bounds of the paper's models and settings.
func NewPaperReport() (*PaperReport, error) {
	p, err := NewPaper()
	return &PaperReport{Notice, p}, err
}

// Print writes the report for people.
func (p *PaperReport) Print(out io.Writer) error {
	fmt.Fprintf(out, `%s
Models and settings of arXiv:2401.05391 (float16, Intel Max 1550). Bounds per tile: peak %.0f GB/s, %.0f TFLOP/s;
"effective" is the paper's own %.0f GB/s. Several tiles: linear ops and attention divided evenly, norms and embedding on
each, exchange between tiles not counted. The paper plots its latencies without numbers, so none stand here.

Figure 8: latency, batch 1
`, Notice, p.Peak.GBps, p.Peak.TFLOPS, p.Effective.GBps)
	if err := printPaperCases(out, p.Latency); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nFigure 7: latency by prompt length, batch 1")
	if err := printPaperCases(out, p.Prompts); err != nil {
		return err
	}
	fmt.Fprintln(out, "\nFigure 4: KV cache of 4 beams, 1024 + 1024 tokens, GB by batch: with the prompt once, and for each beam")
	if err := printPaperMemory(out, p.Memory); err != nil {
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

func printPaperCases(out io.Writer, cases []PaperCase) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "model\ttiles\tin + out\tbeams\tweights read GB/tile\tTTFT ms: peak\teffective\tTPOT ms: peak\teffective\t")
	for _, c := range cases {
		fmt.Fprintf(w, "%s\t%d\t%d + %d\t%d\t%.1f\t%.1f\t%.1f\t%.2f\t%.2f\t\n", c.Model, c.Tiles, c.Prompt, c.Gen, c.Beams,
			float64(c.WeightBytes)/1e9, 1e3*c.PeakTTFT, 1e3*c.EffectiveTTFT, 1e3*c.PeakTPOT, 1e3*c.EffectiveTPOT)
	}
	return w.Flush()
}

// printPaperMemory prints a row for each model.
func printPaperMemory(out io.Writer, sizes []PaperMemory) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "model\t")
	for i := 0; i < len(sizes) && sizes[i].Model == sizes[0].Model; i++ {
		fmt.Fprintf(w, "%d\t", sizes[i].Batch)
	}
	for i, m := range sizes {
		if i == 0 || m.Model != sizes[i-1].Model {
			fmt.Fprintf(w, "\n%s\t", m.Model)
		}
		fmt.Fprintf(w, "%.1f, %.1f\t", float64(m.Segment)/1e9, float64(m.Standard)/1e9)
	}
	fmt.Fprintln(w)
	return w.Flush()
}

// Draw writes prefix-kv.svg: figure 4, of the models that the paper has.
func (p *PaperReport) Draw(prefix string) error {
	picture := curve.Picture{Title: "KV cache of 4 beams, 1024 + 1024 tokens, 16 bits (computed)", X: "requests", Y: "GB"}
	for _, m := range p.Memory {
		if m.Model == "llama-2-7b" {
			continue
		}
		if m.Batch == 1 {
			picture.Series = append(picture.Series, curve.Series{Name: m.Model + ", a prompt for each beam"},
				curve.Series{Name: m.Model + ", one prompt"})
		}
		lines := picture.Series[len(picture.Series)-2:]
		lines[0].Points = append(lines[0].Points, curve.Point{X: float64(m.Batch), Y: float64(m.Standard) / 1e9})
		lines[1].Points = append(lines[1].Points, curve.Point{X: float64(m.Batch), Y: float64(m.Segment) / 1e9})
	}
	return picture.WriteFile(prefix + "-kv.svg")
}

// beamRatios are the TPOT of each model's second case over that of its first.
func beamRatios(cases []PaperCase) string {
	var text strings.Builder
	for i := 1; i < len(cases); i++ {
		if one, four := cases[i-1], cases[i]; one.Model == four.Model {
			fmt.Fprintf(&text, " %s %.3f", four.Model, four.EffectiveTPOT/one.EffectiveTPOT)
		}
	}
	return text.String()
}
