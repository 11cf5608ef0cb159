package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/simulate"
)

// progressEvery is the time between two lines of progress on stderr.
const progressEvery = 5 * time.Second

// simulateReport is what simulate prints with --json.
type simulateReport struct {
	Model    string            `json:"model"`
	Weights  string            `json:"weights"`
	Device   sim.Device        `json:"device"`
	Workers  int               `json:"workers"`
	KVSlabs  int               `json:"kv_slabs"`
	Workload simulate.Workload `json:"workload"`
	SLO      simulate.SLO      `json:"slo"`
	Runs     []simulate.Trial  `json:"runs,omitempty"`
	Found    *simulate.Found   `json:"found,omitempty"`
}

func (r *simulateReport) trials() []simulate.Trial {
	if r.Found != nil {
		return r.Found.Trials
	}
	return r.Runs
}

func newSimulate(a *app) *cobra.Command {
	var s config.Simulate
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate a fleet of servers under load, in virtual time",
		Long: `Simulate workers that serve a model: the scheduler, KV books and routing of the server, over devices
whose steps take the time of the roofline model. Nothing is measured, and nothing is loaded but the
model's config.json. Requests arrive at random, with random lengths; the same --seed gives the same output.

Of several --qps each is a simulation. --find-qps searches the largest rate whose latencies hold the
bounds. Latencies have no tokenizer, network or client in them.

--calibrate measures this machine's processor, for --device; --validate runs the workload on it, too.`,
		Example: `  millrace simulate --model DIR --device max-1100 --qps 1,2,4,8
  millrace simulate --model DIR --device max-1100 --qps 1,2,4,8,16,32 --curves build/max-1100
  millrace simulate --model DIR --device flex-170 --weights int8 --find-qps --slo-ttft 2s --slo-tpot 50ms
  millrace simulate --model DIR --device max-1550-tile --workers 1000 --requests 1000000 --qps 2000
  millrace simulate --model DIR --calibrate mine.json
  millrace simulate --model DIR --device mine.json --validate --requests 50 --qps 0.5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return simulateCommand(cmd.Context(), cmd.OutOrStdout(), a, &s, asJSON)
		},
	}
	s.Register(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	return cmd
}

func simulateCommand(ctx context.Context, out io.Writer, a *app, s *config.Simulate, asJSON bool) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Model, err = modelDir(s.Model); err != nil {
		return err
	}
	if s.Calibrate != "" {
		return calibrate(ctx, a, s)
	}
	fleet, err := simulatedFleet(s)
	if err != nil {
		return err
	}
	w := simulatedWorkload(s, fleet.Program.MaxPositions)
	if s.Compare {
		v, err := validate(ctx, a, s, w)
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(out, v)
		}
		return printValidation(out, v)
	}
	report, err := runSimulate(a, s, fleet, w)
	if err != nil {
		return err
	}
	if s.Curves != "" {
		if err := drawCurves(s.Curves, report); err != nil {
			return err
		}
	}
	if asJSON {
		return printJSON(out, report)
	}
	return printSimulate(out, report)
}

// simulatedWorkload is what s says, for a model with a context of so many tokens:
// prompt and answer together fill it at most.
func simulatedWorkload(s *config.Simulate, longest int) simulate.Workload {
	return simulate.Workload{
		Requests: s.Requests, QPS: s.QPS[0], From: s.RampFrom, MaxTokens: s.MaxTokens, Seed: s.Seed,
		Prompt: simulate.LogNormal{Mean: s.PromptMean, Sigma: s.PromptSigma, Max: longest / 2},
		Output: simulate.LogNormal{Mean: s.OutputMean, Sigma: s.OutputSigma, Max: longest - longest/2},
	}
}

// runSimulate simulates the workload at each rate, or searches one.
func runSimulate(a *app, s *config.Simulate, fleet *simulate.Config, w simulate.Workload) (*simulateReport, error) {
	report := &simulateReport{
		Model: s.Model, Weights: s.Weights, Device: fleet.Device, Workers: fleet.Workers, KVSlabs: fleet.Slabs, SLO: fleet.SLO, Workload: w,
	}
	run := func(qps float64) (*simulate.Report, error) {
		w, cfg := w, *fleet
		w.QPS = qps
		var err error
		if cfg.Requests, err = w.Source(); err != nil {
			return nil, usageOf(err)
		}
		last := time.Now()
		cfg.Progress = func(ended int) {
			if time.Since(last) < progressEvery {
				return
			}
			last = time.Now()
			a.log.Info().Float64("qps", qps).Int("ended", ended).Int("requests", s.Requests).Msg("simulating")
		}
		return simulate.Run(cfg)
	}
	if s.FindQPS {
		var err error
		report.Found, err = simulate.FindQPS(s.QPS[0], simulate.Bound{SLO: report.SLO, Quantile: s.SLOQuantile}, run)
		return report, usageOf(err)
	}
	for _, qps := range s.QPS {
		r, err := run(qps)
		if err != nil {
			return nil, err
		}
		report.Runs = append(report.Runs, simulate.Trial{QPS: qps, Report: r})
	}
	return report, nil
}

// usageOf marks what the flags ask for in vain.
func usageOf(err error) error {
	if errors.Is(err, simulate.ErrConfig) {
		return config.Usagef("%w", err)
	}
	return err
}

// simulatedFleet is what s says, without the workload.
func simulatedFleet(s *config.Simulate) (*simulate.Config, error) {
	cfg := &simulate.Config{
		Route: route.Default(), Workers: s.Workers, Seed: s.Seed,
		SLO: simulate.SLO{TTFT: s.SLOTTFT, TPOT: s.SLOTPOT}, Price: s.Price,
		MaxQueueWait: s.MaxQueueWait,
	}
	if s.RampFrom > 0 {
		cfg.Slices = 10
	}
	var err error
	if cfg.Program, err = compute.ReadProgram(s.Model); err != nil {
		return nil, err
	}
	weights, err := model.ParseWeights(s.Weights)
	if err != nil {
		return nil, err
	}
	if err := cfg.Program.SetWeights(weights); err != nil {
		return nil, config.Usagef("--weights: %w", err)
	}
	if cfg.Program.KV, err = model.ParseKVType(s.KVType); err != nil {
		return nil, err
	}
	if cfg.Device, err = simDevice(s.DeviceName, &s.Sim); err != nil {
		return nil, err
	}
	cfg.Sched = schedConfig(&s.Serve, cfg.Program.MaxPositions)
	cfg.Slabs, err = sim.PoolSlabs(&sim.Options{
		Program: cfg.Program, Device: cfg.Device, MaxSequences: s.MaxBatchSize, KVMemory: int64(s.KVMemory),
	})
	return cfg, err
}

func printSimulate(out io.Writer, r *simulateReport) error {
	fmt.Fprintf(out, "SIMULATED, not a measurement: %s (%s) on %d x %s, KV cache of %d slabs each\n", r.Model, r.Weights, r.Workers, r.Device.String(), r.KVSlabs)
	w := &r.Workload
	fmt.Fprintf(out, "%d requests, seed %d; prompts %s, answers %s\n\n", w.Requests, w.Seed, lengths(w.Prompt), lengths(w.Output))
	runs := r.trials()
	if err := printRuns(out, runs); err != nil {
		return err
	}
	for _, run := range runs {
		if len(run.Slices) > 0 {
			if err := printSlices(out, run.Slices); err != nil {
				return err
			}
		}
	}
	if r.Found == nil {
		return nil
	}
	if r.Found.QPS == 0 {
		_, err := fmt.Fprintf(out, "\nno rate holds TTFT %v and TPOT %v: not even %g/s\n", r.SLO.TTFT, r.SLO.TPOT, runs[len(runs)-1].QPS)
		return err
	}
	_, err := fmt.Fprintf(out, "\nlargest rate that holds TTFT %v and TPOT %v: %.4g/s, %.4g/s for each worker\n",
		r.SLO.TTFT, r.SLO.TPOT, r.Found.QPS, r.Found.QPS/float64(r.Workers))
	return err
}

func lengths(l simulate.LogNormal) string {
	if l.Sigma == 0 {
		return fmt.Sprintf("of %g tokens", l.Mean)
	}
	return fmt.Sprintf("log-normal (mean %g, sigma %g, at most %d tokens)", l.Mean, l.Sigma, l.Max)
}

func printRuns(out io.Writer, runs []simulate.Trial) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "QPS\tserved/s\tgood/s\trefused\tTTFT ms: p50\tp95\tp99\tTPOT ms: p50\tp95\tp99\ttokens/s\tbatch\tbusy\tbandwidth\tKV mean\tmax\tcost per M\t")
	for _, r := range runs {
		fmt.Fprintf(w, "%.4g\t%.4g\t%.4g\t%d\t%s\t%s\t%.0f\t%.1f\t%.0f%%\t%.0f%%\t%.0f%%\t%.0f%%\t%.3g\t\n",
			r.QPS, r.ServedQPS, r.GoodQPS, r.RefusedSum(), milliseconds(r.TTFT), milliseconds(r.TPOT), r.TokensPerSecond, r.DecodeRows,
			100*r.Busy, 100*r.Bandwidth, 100*r.KVMean, 100*r.KVMax, r.CostPerMillion)
	}
	return w.Flush()
}

func printSlices(out io.Writer, slices []simulate.Slice) error {
	fmt.Fprintln(out, "\nby tenths of the arrivals")
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "QPS\trequests\tgood\trefused\tTTFT ms: p50\tp95\tp99\tTPOT ms: p50\tp95\tp99\t")
	for _, s := range slices {
		fmt.Fprintf(w, "%.4g\t%d\t%d\t%d\t%s\t%s\t\n", s.QPS, s.Requests, s.Good, s.RefusedSum(), milliseconds(s.TTFT), milliseconds(s.TPOT))
	}
	return w.Flush()
}

func milliseconds(q simulate.Quantiles) string {
	return fmt.Sprintf("%.4g\t%.4g\t%.4g", 1e3*q.P50, 1e3*q.P95, 1e3*q.P99)
}
