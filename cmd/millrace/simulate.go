package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/calibrate"
	"github.com/millrace/millrace/lab/simulate"
	"github.com/millrace/millrace/lab/simulate/prefix"
)

func newSimulate(a *app) *cobra.Command {
	var s config.Simulate
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "simulate",
		Short: "Simulate a fleet of servers under load, in virtual time",
		Long: `Simulate workers that serve a model: the scheduler, KV allocator and routing of the server, over devices
whose steps take the time of the roofline model. Nothing is measured, and nothing is loaded but the
model's config.json. Requests arrive at random, with random lengths; the same --seed gives the same output.

Each value of --qps, --admission and --prefill-workers is a simulation. --find-qps searches the largest rate whose latencies hold the
bounds. Latencies have no tokenizer, network or client in them.

--calibrate measures this machine's processor, for --device; --validate runs the workload on it, too.

--prefix-trace replays a recorded trace of prompts through the prefix cache, and compares its hits with those of
plain LRU, of an oracle and of a cache without a limit. It needs no model.`,
		Example: `  millrace simulate --model DIR --device max-1100 --qps 1,2,4,8
  millrace simulate --model DIR --device max-1100 --qps 1,2,4,8,16,32 --curves build/max-1100
  millrace simulate --model DIR --device flex-170 --weights int8 --find-qps --slo-ttft 2s --slo-tpot 50ms
  millrace simulate --model DIR --device max-1550-tile --workers 1000 --requests 1000000 --qps 2000
  millrace simulate --model DIR --device a100-80gb --admission context,declared,recompute,predicted,spill --max-tokens 2048
  millrace simulate --model DIR --device a100-80gb --workers 4 --prefill-workers 0,1,2 --qps 2,4,8 --prompt-mean 1500
  millrace simulate --model DIR --calibrate mine.json
  millrace simulate --model DIR --device mine.json --validate --requests 50 --qps 0.5
  millrace simulate --prefix-trace conversation_trace.jsonl --cache-blocks 10000,20000,50000 --curves build/prefix`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return simulateCommand(cmd.Context(), cmd.OutOrStdout(), a, &s, asJSON)
		},
	}
	takesModel(cmd)
	s.Register(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	return cmd
}

func simulateCommand(ctx context.Context, out io.Writer, a *app, s *config.Simulate, asJSON bool) (err error) {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.PrefixTrace != "" {
		study, err := comparePrefixCaches(s)
		return show(out, study, asJSON, err)
	}
	if s.Model, err = modelDir(s.Model); err != nil {
		return err
	}
	if s.Calibrate != "" {
		return calibrateDevice(ctx, a, s)
	}
	fleet, err := simulatedFleet(s)
	if err != nil {
		return err
	}
	kept, err := model.ParseWeights(s.Weights)
	if err != nil {
		return err
	}
	w := simulatedWorkload(s, fleet.Program.MaxPositions)
	if s.Compare {
		c, err := compare(ctx, a, s, w)
		return show(out, c, asJSON, err)
	}
	p := simulate.Plan{Model: s.Model, Weights: fleet.Program.WeightsText(kept), Fleet: *fleet, Workload: w, QPS: s.QPS, Prefill: s.Prefill,
		Log: a.log}
	for _, name := range s.Admissions {
		p.Admissions = append(p.Admissions, simulate.Admission(name))
	}
	if s.FindQPS {
		p.Hold = s.SLOQuantile
	}
	study, err := p.Run()
	if err != nil {
		return usageOf(err)
	}
	if s.Curves != "" {
		if err := study.Draw(s.Curves); err != nil {
			return err
		}
	}
	return show(out, study, asJSON, nil)
}

// comparePrefixCaches replays the trace of s.
func comparePrefixCaches(s *config.Simulate) (*prefix.Study, error) {
	f, err := os.Open(s.PrefixTrace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	trace, err := prefix.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.PrefixTrace, err)
	}
	study, err := trace.Compare(s.CacheBlocks)
	if err == nil && s.Curves != "" {
		err = study.Draw(s.Curves + "-hits.svg")
	}
	return study, err
}

// calibrateDevice writes the device of s.Calibrate.
func calibrateDevice(ctx context.Context, a *app, s *config.Simulate) error {
	p, stop, err := openPipeline(a, s)
	if err != nil {
		return err
	}
	defer stop()
	d, err := p.Calibrate(ctx)
	if err != nil {
		return err
	}
	if err := calibrate.WriteDevice(s.Calibrate, d); err != nil {
		return err
	}
	a.log.Info().Str("file", s.Calibrate).Msg("device written")
	return nil
}

// compare runs the workload on this machine and simulates it.
func compare(ctx context.Context, a *app, s *config.Simulate, w simulate.Workload) (*calibrate.Comparison, error) {
	p, stop, err := openPipeline(a, s)
	if err != nil {
		return nil, err
	}
	defer stop()
	d, _, err := simDevice(s.DeviceName)
	if err != nil {
		return nil, err
	}
	c, err := p.Compare(ctx, d, w)
	return c, usageOf(err)
}

// openPipeline opens the server's pipeline over this machine's processor.
func openPipeline(a *app, s *config.Simulate) (p *calibrate.Pipeline, stop func(), err error) {
	serve := s.Serve
	serve.Backend, serve.DeviceName = "cpu", ""
	serve.Admission = s.Admissions[0]
	serve.MaxQueueWait = 0 // every request of a comparison is served
	e, err := openEngine(&serve, beginLoading(&serve, a.log.Level(zerolog.WarnLevel)), nil, nil, a.log.Level(zerolog.WarnLevel))
	if err != nil {
		return nil, nil, err
	}
	stop = func() { e.shutdown(time.Second) } //nolint:errcheck // nothing is in hand
	m, ok := e.model.Runner.(*compute.Model)
	if !ok {
		stop()
		return nil, nil, fmt.Errorf("the model is a %T, expected one on a device", e.model.Runner)
	}
	return &calibrate.Pipeline{
		Engine: e, ModelID: e.modelID, Model: m, Sched: schedConfig(&serve, m.KV(), m.Program.MaxPositions),
		SLO: simulate.SLO{TTFT: s.SLOTTFT, TPOT: s.SLOTPOT}, Log: a.log,
	}, stop, nil
}

// simulatedWorkload returns the workload of s. A prompt and its answer together have at most longest
// tokens.
func simulatedWorkload(s *config.Simulate, longest int) simulate.Workload {
	return simulate.Workload{
		Requests: s.Requests, QPS: s.QPS[0], From: s.RampFrom, MaxTokens: s.MaxTokens, Seed: s.Seed,
		Prompt: simulate.LogNormal{Mean: s.PromptMean, Sigma: s.PromptSigma, Max: longest / 2},
		Output: simulate.LogNormal{Mean: s.OutputMean, Sigma: s.OutputSigma, Max: longest - longest/2},
	}
}

// usageOf marks an invalid configuration as an error of usage.
func usageOf(err error) error {
	if errors.Is(err, simulate.ErrConfig) {
		return config.Usagef("%w", err)
	}
	return err
}

// simulatedFleet returns the fleet of s, without the workload.
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
	if cfg.Device, _, err = simDevice(s.DeviceName); err != nil {
		return nil, err
	}
	cfg.Slots = int(min(uint64(s.KVSpillSize)/sim.SlabBytes(cfg.Program), math.MaxInt32))
	cfg.Slabs, err = sim.PoolSlabs(&sim.Options{
		Program: cfg.Program, Device: cfg.Device, MaxSequences: s.MaxBatchSize, KVMemory: int64(s.KVMemory),
	})
	kv := compute.KV(cfg.Program, device.ProgramInfo{}, max(s.MaxBatchTokens, s.MaxBatchSize), cfg.Slabs)
	cfg.Sched = schedConfig(&s.Serve, kv, cfg.Program.MaxPositions)
	return cfg, err
}
