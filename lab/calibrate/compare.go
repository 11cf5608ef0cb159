package calibrate

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/simulate"
)

// Pipeline is the server's pipeline over this machine's processor, without running requests.
type Pipeline struct {
	Engine interface {
		Submit(ctx context.Context, r *api.Request) (api.Stream, error)
	}
	ModelID string
	Model   *compute.Model
	Sched   sched.Config // the pipeline's
	SLO     simulate.SLO // of the reports
	Log     zerolog.Logger
}

// simulated simulates a trace on one worker with the engine's KV pool.
func (p *Pipeline) simulated(d *sim.Device, t simulate.Trace) (*simulate.Report, error) {
	cfg := simulate.Config{
		Program: p.Model.Program, Device: *d, Slabs: p.Model.Slabs(), Sched: p.Sched,
		Workers: 1, Requests: t.Source(), SLO: p.SLO,
	}
	return simulate.Run(cfg)
}

// replay sends the requests of a trace to the pipeline at their times, and
// reports as a simulation does, as far as a client sees it.
func (p *Pipeline) replay(ctx context.Context, t simulate.Trace) (*simulate.Report, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ttft, tpot := make([]float32, len(t)), make([]float32, len(t))
	ends := make([]time.Duration, len(t))
	begin := time.Now()
	var wg sync.WaitGroup
	for i, r := range t {
		wg.Go(func() {
			select {
			case <-time.After(r.At - time.Since(begin)):
			case <-ctx.Done():
				return
			}
			at := time.Now()
			first, last, err := p.send(ctx, i, r)
			if err != nil {
				cancel(fmt.Errorf("request %d of the trace: %w", i, err))
				return
			}
			ttft[i] = float32(first.Sub(at).Seconds())
			tpot[i] = float32(last.Sub(first).Seconds() / float64(max(r.Output-1, 1)))
			ends[i] = last.Sub(begin)
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	report := &simulate.Report{Latencies: simulate.Latencies{TTFT: simulate.NewQuantiles(ttft), TPOT: simulate.NewQuantiles(tpot)}}
	for i, r := range t {
		report.OutputTokens += r.Output
		report.Seconds = max(report.Seconds, ends[i].Seconds())
	}
	report.TokensPerSecond = float64(report.OutputTokens) / report.Seconds
	return report, nil
}

// send makes one request of random tokens and times its first and last event.
func (p *Pipeline) send(ctx context.Context, number int, r simulate.Request) (first, last time.Time, err error) {
	prompt := make([]int32, r.Prompt)
	for i := range prompt { // random, so that no cache has it
		prompt[i] = rand.Int32N(int32(p.Model.Vocab()))
	}
	greedy := sample.Default()
	greedy.Temperature = 0
	stream, err := p.Engine.Submit(ctx, &api.Request{
		ID: fmt.Sprintf("trace-%d-%d", number, time.Now().UnixNano()), Model: p.ModelID, N: 1, PromptTokens: prompt,
		MaxTokens: r.Output, IgnoreEOS: true, TopLogprobs: -1, Sampling: greedy, Arrival: time.Now(),
	})
	if err != nil {
		return first, last, err
	}
	defer stream.Close()
	for {
		event, err := stream.Next(ctx)
		switch {
		case err != nil:
			return first, last, err
		case event.Err != nil:
			return first, last, event.Err
		}
		last = time.Now()
		if first.IsZero() && len(event.Tokens) > 0 {
			first = last
		}
		if event.Done {
			return first, last, nil
		}
	}
}

// Comparison is a workload on this machine and simulated.
type Comparison struct {
	Device    sim.Device       `json:"device"`
	Requests  int              `json:"requests"`
	Real      *simulate.Report `json:"real"`
	Simulated *simulate.Report `json:"simulated"`
}

// Compare runs the workload on this machine and in virtual time.
func (p *Pipeline) Compare(ctx context.Context, d sim.Device, w simulate.Workload) (*Comparison, error) {
	source, err := w.Source()
	if err != nil {
		return nil, err
	}
	var trace simulate.Trace
	for r, ok := source.Next(); ok; r, ok = source.Next() {
		r.MaxTokens = r.Output // the engine's tokens have no end of their own
		trace = append(trace, r)
	}
	c := &Comparison{Device: d, Requests: len(trace)}
	if c.Simulated, err = p.simulated(&d, trace); err != nil {
		return nil, err
	}
	p.Log.Info().Int("requests", len(trace)).Float64("seconds", c.Simulated.Seconds).Msg("running the workload on this machine")
	c.Real, err = p.replay(ctx, trace)
	return c, err
}

// Print writes the comparison for people.
func (c *Comparison) Print(out io.Writer) error {
	fmt.Fprintf(out, "%d requests on this machine's processor, and simulated on %s\n", c.Requests, c.Device.String())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tmeasured\tsimulated\tdifference\t")
	line := func(name string, measured, simulated float64) {
		fmt.Fprintf(w, "%s\t%.4g\t%.4g\t%+.1f%%\t\n", name, measured, simulated, 100*(simulated/measured-1))
	}
	line("tokens/s", c.Real.TokensPerSecond, c.Simulated.TokensPerSecond)
	for _, q := range []struct {
		name                string
		measured, simulated simulate.Quantiles
	}{{"TTFT ms", c.Real.TTFT, c.Simulated.TTFT}, {"TPOT ms", c.Real.TPOT, c.Simulated.TPOT}} {
		line(q.name+", mean", 1e3*q.measured.Mean, 1e3*q.simulated.Mean)
		line("p50", 1e3*q.measured.P50, 1e3*q.simulated.P50)
		line("p95", 1e3*q.measured.P95, 1e3*q.simulated.P95)
	}
	return w.Flush()
}
