package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/plan"
	"github.com/millrace/millrace/lab/roofline"
)

// planFlags are the flags of plan.
type planFlags struct {
	model, shape    string
	weights, kvType string
	devices         []string
	kvMemory        config.Bytes
	request         kvmgr.Segments
	tpot            time.Duration
	prices          []float64
	svg             string
	asJSON          bool
}

func newPlan() *cobra.Command {
	var o planFlags
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Estimate how many users of a model fit on a device, how fast, and at which price",
		Long: `Compute from a model's config.json what its KV cache takes, how many requests fit into a device's memory at
once, the time per token by the number of users, and the price of a million tokens. Nothing is loaded. The
results are estimates; only the rates of this machine are measured (--device this-cpu, or a file of
simulate --calibrate).

Several devices are compared, each at the most users within --slo-tpot.`,
		Example: `  millrace plan --model DIR
  millrace plan --model DIR/config.json --device h100 --prompt 1536 --gen 512 --kv-type int8 --price 3
  millrace plan --shape params=7e9,layers=32,kv-heads=32,head-dim=128 --device a100-80gb,h100 --price 2,3
  millrace plan --model DIR --device all --svg devices.svg`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return atOnce(cmd.Context(), func() error { return o.run(cmd.OutOrStdout()) })
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	f.StringVar(&o.model, "model", "", "directory of a Hugging Face model, its config.json, or a GGUF file (default: the demo model)")
	f.StringVar(&o.shape, "shape", "",
		"numbers in place of a model: params=7e9,layers=32,kv-heads=32,head-dim=128; bits=4 for other than 16-bit weights")
	config.RegisterWeights(f, &o.weights)
	config.RegisterKVType(f, &o.kvType)
	f.StringSliceVar(&o.devices, "device", []string{roofline.ThisCPU},
		"devices: names of the table of docs/simulation.md, this-cpu (measured now), all, or JSON files")
	f.Var(&o.kvMemory, "kv-memory", "memory of the KV cache, such as 2GiB (0: what the weights leave of 90% of the device's memory)")
	f.IntVar(&o.request.Prompt, "prompt", 1536, "prompt tokens of each user")
	f.IntVar(&o.request.Response, "gen", 512, "tokens to generate for each user")
	f.IntVar(&o.request.Beams, "beams", 1, "beams of each request (1: no beam search)")
	f.DurationVar(&o.tpot, "slo-tpot", 50*time.Millisecond, "bound of the mean time per further token (0: none)")
	f.Float64SliceVar(&o.prices, "price", nil, "price of each device per hour, in the order of --device (default: none)")
	f.StringVar(&o.svg, "svg", "", "SVG file to write: time per token by users")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *planFlags) validate() error {
	r := o.request
	switch {
	case r.Prompt < 1 || r.Response < 1 || r.Beams < 1 || r.Beams > sample.MaxBeams:
		return config.Usagef("--prompt %d, --gen %d, --beams %d: expected at least 1, 1, and 1 to %d", r.Prompt, r.Response, r.Beams,
			sample.MaxBeams)
	case o.tpot < 0:
		return config.Usagef("--slo-tpot: found %v, expected at least 0", o.tpot)
	case o.kvMemory < 0:
		return config.Usagef("--kv-memory: found %d, expected at least 0", o.kvMemory)
	case o.shape != "" && o.model != "":
		return config.Usagef("found both --model %s and --shape %s, expected one", o.model, o.shape)
	case o.shape != "" && o.weights != "file":
		return config.Usagef("--weights: found %s together with --shape, expected bits= in --shape", o.weights)
	case len(o.devices) == 0:
		return config.Usagef("--device: found nothing, expected names of devices")
	}
	for _, p := range o.prices {
		if !(p > 0 && p <= math.MaxFloat32) {
			return config.Usagef("--price: found %g, expected a positive number", p)
		}
	}
	return nil
}

func (o *planFlags) run(out io.Writer) error {
	if err := o.validate(); err != nil {
		return err
	}
	m, err := o.readModel()
	if err != nil {
		return err
	}
	if m.Program.KV, err = model.ParseKVType(o.kvType); err != nil {
		return config.Usagef("--kv-type: %w", err)
	}
	devices, err := o.readDevices()
	if err != nil {
		return err
	}
	if len(o.prices) > 0 && len(o.prices) != len(devices) {
		return config.Usagef("--price: found %d prices, expected one for each of the %d devices", len(o.prices), len(devices))
	}
	report, err := plan.Make(plan.Options{
		Model: m, Devices: devices, Prices: o.prices, Request: o.request,
		KVMemory: uint64(o.kvMemory), TPOT: o.tpot.Seconds(),
	})
	if errors.Is(err, plan.ErrRequest) {
		return config.Usagef("%w", err)
	}
	if err == nil && o.svg != "" {
		err = report.Draw(o.svg)
	}
	return show(out, report, o.asJSON, err)
}

// readModel reads the model of --model or of --shape.
func (o *planFlags) readModel() (plan.Model, error) {
	if o.shape != "" {
		m, err := plan.ParseShape(o.shape)
		if err != nil {
			return m, config.Usagef("--shape: %w", err)
		}
		return m, nil
	}
	dir, err := modelDir(o.model)
	if err != nil {
		return plan.Model{}, err
	}
	program, err := compute.ReadProgram(dir)
	if err != nil {
		return plan.Model{}, err
	}
	weights, err := model.ParseWeights(o.weights)
	if err == nil {
		err = program.SetWeights(weights)
	}
	if err != nil {
		return plan.Model{}, config.Usagef("--weights: %w", err)
	}
	name, err := filepath.Abs(dir)
	if err != nil {
		return plan.Model{}, err
	}
	return plan.NewModel(fmt.Sprintf("%s (%s)", filepath.Base(name), program.WeightsText(weights)), program), nil
}

// readDevices finds the devices of --device, and measures this machine if it is one of them.
func (o *planFlags) readDevices() (devices []sim.Device, err error) {
	for _, name := range o.devices {
		if strings.HasSuffix(name, ".json") {
			d, _, err := simDevice(name)
			if err != nil {
				return nil, err
			}
			devices = append(devices, d)
			continue
		}
		peaks, err := roofline.Peaks(name)
		if errors.Is(err, roofline.ErrUnknownDevice) {
			return nil, config.Usagef("--device: %w, or a file that ends in .json", err)
		}
		if err != nil {
			return nil, err
		}
		for _, p := range peaks {
			devices = append(devices, sim.Device{Peak: p})
		}
	}
	return devices, nil
}
