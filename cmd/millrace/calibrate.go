package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/measure"
	"github.com/millrace/millrace/lab/simulate"
)

// Of a calibration: runs of each step and trace, tokens in front of decode steps,
// the requests of the traces, and rounds of the fit to them.
const (
	profileRepeat   = 3
	calibrateRepeat = 15
	replayTime      = 2 * time.Second
	calibratePast   = 128
	servedPrompt    = 32
	servedOutput    = 24
	fitRounds       = 6
)

// calibrate measures the model on this machine's processor and writes the device.
func calibrate(ctx context.Context, a *app, s *config.Simulate) error {
	e, err := realEngine(a, s)
	if err != nil {
		return err
	}
	defer e.shutdown(time.Second) //nolint:errcheck // nothing is in hand
	var batches []int
	for n := 1; n <= s.MaxBatchSize; n *= 4 {
		batches = append(batches, n)
	}
	d, err := measureDevice(a, s, e, batches)
	if err != nil {
		return err
	}
	if err := fitServed(ctx, a, s, e, &d, batches); err != nil {
		return err
	}
	if err := d.Validate(); err != nil {
		return fmt.Errorf("calibrate: what was measured describes no device, was the machine busy?: %w", err)
	}
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.Calibrate, append(text, '\n'), 0o644); err != nil { //nolint:gosec // for everybody to read
		return err
	}
	a.log.Info().Str("file", s.Calibrate).Float64("gbps", d.GBps).Float64("tflops", d.TFLOPS).
		Float64("request_seconds", d.RequestSeconds).Msg("calibrated")
	return nil
}

// measureDevice measures the ops. The pipeline is idle: the device is free.
func measureDevice(a *app, s *config.Simulate, e *engine, batches []int) (sim.Device, error) {
	m, ok := e.model.Runner.(*compute.Model)
	if !ok {
		return sim.Device{}, fmt.Errorf("calibrate: the model is a %T, expected one on a device", e.model.Runner)
	}
	info, err := m.Device.Info()
	if err != nil {
		return sim.Device{}, err
	}
	roof, err := measure.OpenRoof(m.Device, info)
	if err != nil {
		return sim.Device{}, err
	}
	defer roof.Close()
	c := measure.Calibration{Batches: batches, Past: calibratePast}
	for n := 32; n <= s.MaxBatchTokens; n *= 2 {
		c.Prompts = append(c.Prompts, n)
	}
	a.log.Info().Ints("batches", c.Batches).Ints("prompts", c.Prompts).Msg("measuring ops")
	return measure.Profile{Model: m, Roof: roof, Repeat: profileRepeat, Warm: true}.Calibrate(c, info.Name)
}

// fitServed makes the steps of equal requests that run together take what they
// take in the pipeline, host and caches included: it scales what the ops reach
// at so many rows. What is left of the time to a lone request's first token is
// the request's own.
func fitServed(ctx context.Context, a *app, s *config.Simulate, e *engine, d *sim.Device, batches []int) error {
	for _, n := range batches {
		trace := make(simulate.Trace, n)
		for j := range trace {
			trace[j] = simulate.Request{Prompt: servedPrompt, Output: servedOutput, MaxTokens: servedOutput}
		}
		served, err := medianReplay(ctx, e, trace)
		if err != nil {
			return err
		}
		var modeled *simulate.Report
		for range fitRounds {
			if modeled, err = replayed(s, e, d, trace); err != nil {
				return err
			}
			scale(d, n, n, modeled.TPOT.P50/served.TPOT.P50)
		}
		if n == 1 {
			d.RequestSeconds = max(served.TTFT.P50-modeled.TTFT.P50, 0)
		}
		a.log.Info().Int("requests", n).Float64("tpot", served.TPOT.P50).Float64("modeled", modeled.TPOT.P50).
			Float64("ttft", served.TTFT.P50).Float64("modeled_ttft", modeled.TTFT.P50).Msg("fitted to the pipeline")
	}
	return fitMixed(ctx, a, s, e, d, batches[len(batches)-1])
}

// fitMixed does the same for steps of prompts and decode rows, by the time that
// two batches of requests with unequal answers take.
func fitMixed(ctx context.Context, a *app, s *config.Simulate, e *engine, d *sim.Device, batch int) error {
	trace := make(simulate.Trace, 2*batch)
	for i := range trace {
		output := servedOutput/2 + i*servedOutput/len(trace)
		trace[i] = simulate.Request{Prompt: servedPrompt, Output: output, MaxTokens: output}
	}
	served, err := medianReplay(ctx, e, trace)
	if err != nil {
		return err
	}
	var modeled *simulate.Report
	for range fitRounds {
		if modeled, err = replayed(s, e, d, trace); err != nil {
			return err
		}
		scale(d, batch+1, math.MaxInt, modeled.Seconds/served.Seconds)
	}
	a.log.Info().Int("requests", len(trace)).Float64("seconds", served.Seconds).Float64("modeled", modeled.Seconds).Msg("fitted to the pipeline")
	return nil
}

// scale multiplies what ops with so many rows reach; attention's rows are others.
func scale(d *sim.Device, from, to int, by float64) {
	for kind, shares := range d.Reached {
		if kind == model.OpAttention.String() {
			continue
		}
		for i := range shares {
			if shares[i].Rows >= from && shares[i].Rows <= to {
				shares[i].Share *= by
			}
		}
	}
}

// medianReplay replays a trace up to calibrateRepeat times, as long as that takes
// no longer than replayTime; its p50 and Seconds are the medians of theirs.
func medianReplay(ctx context.Context, e *engine, t simulate.Trace) (*simulate.Report, error) {
	var ttft, tpot, took []float32
	begin := time.Now()
	for len(took) < calibrateRepeat && (took == nil || time.Since(begin) < replayTime) {
		run, err := replay(ctx, e, t)
		if err != nil {
			return nil, err
		}
		ttft, tpot = append(ttft, float32(run.TTFT.P50)), append(tpot, float32(run.TPOT.P50))
		took = append(took, float32(run.Seconds))
	}
	return &simulate.Report{
		Latencies: simulate.Latencies{TTFT: simulate.NewQuantiles(ttft), TPOT: simulate.NewQuantiles(tpot)},
		Seconds:   simulate.NewQuantiles(took).P50,
	}, nil
}
