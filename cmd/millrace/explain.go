package main

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/config"
)

type explainOptions struct {
	model  string
	device config.Device // Backend "": none
	steps  model.ExplainOptions
	beams  beamMemory
	roof   rooflineFlags
	json   bool
}

func newExplain() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain [MODEL]",
		Short: "Print a model's op program with bytes and flops per op",
		Long: `Print the op program that a model's configuration becomes: the ops of each layer, their shapes, and the
bytes and flops of each for a prefill of --prefill tokens and for a decode step at --context tokens.
Nothing is loaded or run; a directory without weights is explained from its config.json.

--backend sycl counts what the device launches for each op: it loads the model and runs the two steps.

--roofline turns them into the least time that a device needs, --paper does so for the models and
settings of arXiv:2401.05391.`,
		Example: `  millrace explain
  millrace explain DIR --prefill 2048 --context 4096 --json
  millrace explain DIR --prefill 1024 --beams 4 --batch 32 --gen 1024
  millrace explain DIR --roofline max-1550-tile --prefill 1024 --gen 128
  millrace explain --paper`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				if cmd.Flags().Changed("model") && o.model != args[0] {
					return config.Usagef("found both MODEL %s and --model %s, expected one", args[0], o.model)
				}
				o.model = args[0]
			}
			if o.roof.wanted() {
				return explainRoofline(cmd, o)
			}
			return explain(cmd.OutOrStdout(), o)
		},
	}
	f := cmd.Flags()
	config.RegisterModel(f, &o.model)
	f.StringVar(&o.device.Backend, "backend", "", "sycl: load the model and count the kernels that each op launches (default: nothing is loaded)")
	f.StringVar(&o.device.DeviceName, "device", "auto", "device of the sycl backend, as for serve")
	f.StringVar(&o.device.ISA, "isa", "", "kernels of the sycl backend, as for serve")
	f.StringVar(&o.device.DType, "dtype", "auto", "type of products of the sycl backend, as for serve")
	config.RegisterKVType(f, &o.device.KVType)
	f.IntVar(&o.steps.Prefill, "prefill", 512, "tokens of the prompt")
	f.IntVar(&o.steps.Context, "context", 0, "tokens in the KV cache before the decode step (0: as --prefill)")
	o.beams.register(f)
	o.roof.register(f)
	jsonFlag(cmd, &o.json)
	return cmd
}

func explain(out io.Writer, o explainOptions) error {
	if o.steps.Prefill < 1 || o.steps.Context < 0 {
		return config.Usagef("--prefill %d, --context %d: expected at least 1 and 0", o.steps.Prefill, o.steps.Context)
	}
	switch o.device.Backend {
	case "", "cpu", "ref": // their ops are calls
	case "sycl":
	default:
		return config.Usagef("--backend: found %q, expected cpu or ref or sycl", o.device.Backend)
	}
	if err := o.beams.check(); err != nil {
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
	if program.KV, err = model.ParseKVType(o.device.KVType); err != nil {
		return config.Usagef("--kv-type: %w", err)
	}
	var counted *launches
	if o.device.Backend == "sycl" {
		if counted, err = countLaunches(dir, o.device, o.steps.Prefill); err != nil {
			return err
		}
	}
	description := model.Describe(program, o.steps)
	kv := o.beams.of(o.steps.Prefill, uint64(description.KVBytesPerToken))
	if o.json {
		return printJSON(out, struct {
			model.Explanation
			Beams    *beamBytes `json:"beams,omitempty"`
			Launches *launches  `json:"launches,omitempty"`
		}{description, kv, counted})
	}
	err = model.Explain(out, program, o.steps)
	if err == nil && counted != nil {
		err = counted.print(out)
	}
	if err == nil && kv != nil {
		err = kv.print(out)
	}
	return err
}
