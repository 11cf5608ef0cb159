package main

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
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/simulate"
)

// realEngine is the server's pipeline over this machine's processor.
func realEngine(a *app, s *config.Simulate) (*engine, error) {
	serve := s.Serve
	serve.Backend, serve.DeviceName = "cpu", ""
	serve.MaxQueueWait = 0 // every request of a comparison is served
	return openEngine(&serve, nil, nil, a.log.Level(zerolog.WarnLevel))
}

// replayed simulates a trace on one worker with the engine's KV pool.
func replayed(s *config.Simulate, e *engine, d *sim.Device, t simulate.Trace) (*simulate.Report, error) {
	cfg := simulate.Config{
		Program: e.model.program, Device: *d, Slabs: e.model.Slabs(), Sched: schedConfig(&s.Serve, e.model.program.MaxPositions),
		Workers: 1, Requests: t.Source(), SLO: simulate.SLO{TTFT: s.SLOTTFT, TPOT: s.SLOTPOT},
	}
	return simulate.Run(cfg)
}

// replay sends the requests of a trace to the pipeline at their times, and
// reports as a simulation does, as far as a client sees it.
func replay(ctx context.Context, e *engine, t simulate.Trace) (*simulate.Report, error) {
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
			first, last, err := send(ctx, e, i, r)
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
func send(ctx context.Context, e *engine, number int, r simulate.Request) (first, last time.Time, err error) {
	prompt := make([]int32, r.Prompt)
	for i := range prompt { // nothing that a cache may know
		prompt[i] = rand.Int32N(int32(e.model.Vocab()))
	}
	p := sample.Default()
	p.Temperature = 0
	stream, err := e.Submit(ctx, &api.Request{
		ID: fmt.Sprintf("trace-%d-%d", number, time.Now().UnixNano()), Model: e.modelID, N: 1, PromptTokens: prompt,
		MaxTokens: r.Output, IgnoreEOS: true, TopLogprobs: -1, Sampling: p, Arrival: time.Now(),
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

// validation is what simulate --validate prints with --json.
type validation struct {
	Device    sim.Device       `json:"device"`
	Requests  int              `json:"requests"`
	Real      *simulate.Report `json:"real"`
	Simulated *simulate.Report `json:"simulated"`
}

// validate runs the workload on this machine and in virtual time.
func validate(ctx context.Context, a *app, s *config.Simulate, w simulate.Workload) (*validation, error) {
	e, err := realEngine(a, s)
	if err != nil {
		return nil, err
	}
	defer e.shutdown(time.Second) //nolint:errcheck // nothing is in hand
	d, err := simDevice(s.DeviceName, &s.Sim)
	if err != nil {
		return nil, err
	}
	source, err := w.Source()
	if err != nil {
		return nil, usageOf(err)
	}
	var trace simulate.Trace
	for r, ok := source.Next(); ok; r, ok = source.Next() {
		r.MaxTokens = r.Output // the engine's tokens have no end of their own
		trace = append(trace, r)
	}
	v := &validation{Device: d, Requests: len(trace)}
	if v.Simulated, err = replayed(s, e, &d, trace); err != nil {
		return nil, err
	}
	a.log.Info().Int("requests", len(trace)).Float64("seconds", v.Simulated.Seconds).Msg("running the workload on this machine")
	v.Real, err = replay(ctx, e, trace)
	return v, err
}

func printValidation(out io.Writer, v *validation) error {
	fmt.Fprintf(out, "%d requests on this machine's processor, and simulated on %s\n", v.Requests, v.Device.String())
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tmeasured\tsimulated\tdifference\t")
	line := func(name string, measured, simulated float64) {
		fmt.Fprintf(w, "%s\t%.4g\t%.4g\t%+.1f%%\t\n", name, measured, simulated, 100*(simulated/measured-1))
	}
	line("tokens/s", v.Real.TokensPerSecond, v.Simulated.TokensPerSecond)
	for _, q := range []struct {
		name                string
		measured, simulated simulate.Quantiles
	}{{"TTFT ms", v.Real.TTFT, v.Simulated.TTFT}, {"TPOT ms", v.Real.TPOT, v.Simulated.TPOT}} {
		line(q.name+", mean", 1e3*q.measured.Mean, 1e3*q.simulated.Mean)
		line("p50", 1e3*q.measured.P50, 1e3*q.simulated.P50)
		line("p95", 1e3*q.measured.P95, 1e3*q.simulated.P95)
	}
	return w.Flush()
}
