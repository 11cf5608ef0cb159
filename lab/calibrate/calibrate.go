// Package calibrate compares the fleet simulator with the server's pipeline on this machine, and
// describes the machine for it. It must not know flags or how either of them works inside.
package calibrate

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/lab/measure"
	"github.com/millrace/millrace/lab/simulate"
)

// The sizes of a calibration.
const (
	profileRepeat   = 3               // runs of each step
	calibrateRepeat = 15              // replays of each trace
	replayTime      = 2 * time.Second // of the replays of a trace, together
	calibratePast   = 128             // tokens before decode steps
	servedPrompt    = 32              // tokens of each request of a trace
	servedOutput    = 24              // mean tokens of each answer
	fitRounds       = 6               // of the fit to a trace
)

// Calibrate measures the model on this machine's processor and describes the device.
func (p *Pipeline) Calibrate(ctx context.Context) (*sim.Device, error) {
	var batches []int
	for n := 1; n <= p.Sched.MaxBatchSize; n *= 2 {
		batches = append(batches, n)
	}
	d, err := p.measureDevice(batches)
	if err != nil {
		return nil, err
	}
	if err := p.fitServed(ctx, &d, batches); err != nil {
		return nil, err
	}
	if err := d.Validate(); err != nil {
		return nil, fmt.Errorf("calibrate: the measurement gives an invalid device; the machine may be busy: %w", err)
	}
	p.Log.Info().Float64("gbps", d.GBps).Float64("tflops", d.TFLOPS).Float64("request_seconds", d.RequestSeconds).Msg("calibrated")
	return &d, nil
}

// WriteDevice writes a device to a file that --device can name.
func WriteDevice(path string, d *sim.Device) error {
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // for everybody to read
}

// measureDevice measures the ops. The pipeline is idle: the device is free.
func (p *Pipeline) measureDevice(batches []int) (sim.Device, error) {
	info, err := p.Model.Device.Info()
	if err != nil {
		return sim.Device{}, err
	}
	roof, err := measure.OpenRoof(p.Model.Device, info)
	if err != nil {
		return sim.Device{}, err
	}
	defer roof.Close()
	c := measure.Calibration{Batches: batches, Past: calibratePast}
	for n := 32; n <= p.Sched.MaxBatchTokens; n *= 2 {
		c.Prompts = append(c.Prompts, n)
	}
	p.Log.Info().Ints("batches", c.Batches).Ints("prompts", c.Prompts).Msg("measuring ops")
	d, err := measure.Profile{Model: p.Model, Roof: roof, Repeat: profileRepeat, Warm: true}.Calibrate(c, info.Name)
	d.Memory = float64(info.MemoryTotal) / 1e9
	return d, err
}

// fitServed fits the device to equal requests that run together in the pipeline. It scales the
// shares that the ops reach at their number of rows, until the simulated steps take as long as
// the served ones, host and caches included. The rest of the time to the first token of a lone
// request becomes RequestSeconds.
func (p *Pipeline) fitServed(ctx context.Context, d *sim.Device, batches []int) error {
	for _, n := range batches {
		trace := make(simulate.Trace, n)
		for j := range trace {
			trace[j] = simulate.Request{Prompt: servedPrompt, Output: servedOutput, MaxTokens: servedOutput}
		}
		served, err := p.medianReplay(ctx, trace)
		if err != nil {
			return err
		}
		var modeled *simulate.Report
		for range fitRounds {
			if modeled, err = p.simulated(d, trace); err != nil {
				return err
			}
			scale(d, n, n, modeled.TPOT.P50/served.TPOT.P50)
		}
		if n == 1 {
			d.RequestSeconds = max(served.TTFT.P50-modeled.TTFT.P50, 0)
		}
		p.Log.Info().Int("requests", n).Float64("tpot", served.TPOT.P50).Float64("modeled", modeled.TPOT.P50).
			Float64("ttft", served.TTFT.P50).Float64("modeled_ttft", modeled.TTFT.P50).Msg("fitted to the pipeline")
	}
	return p.fitMixed(ctx, d, batches[len(batches)-1])
}

// fitMixed fits the device to steps of prompts and decode rows: to the time of two batches of
// requests with unequal answers.
func (p *Pipeline) fitMixed(ctx context.Context, d *sim.Device, batch int) error {
	trace := make(simulate.Trace, 2*batch)
	for i := range trace {
		output := servedOutput/2 + i*servedOutput/len(trace)
		trace[i] = simulate.Request{Prompt: servedPrompt, Output: output, MaxTokens: output}
	}
	served, err := p.medianReplay(ctx, trace)
	if err != nil {
		return err
	}
	var modeled *simulate.Report
	for range fitRounds {
		if modeled, err = p.simulated(d, trace); err != nil {
			return err
		}
		scale(d, batch+1, math.MaxInt, modeled.Seconds/served.Seconds)
	}
	p.Log.Info().Int("requests", len(trace)).Float64("seconds", served.Seconds).Float64("modeled",
		modeled.Seconds).Msg("fitted to the pipeline")
	return nil
}

// scale multiplies the shares of ops whose rows are between the given counts. The rows of attention
// are those of a sequence, so it stays as it is.
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

// medianReplay replays a trace up to calibrateRepeat times within replayTime. Its P50 and Seconds
// are the medians of the replays.
func (p *Pipeline) medianReplay(ctx context.Context, t simulate.Trace) (*simulate.Report, error) {
	var ttft, tpot, took []float32
	begin := time.Now()
	for len(took) < calibrateRepeat && (took == nil || time.Since(begin) < replayTime) {
		run, err := p.replay(ctx, t)
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
