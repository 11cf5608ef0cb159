package main

import (
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/explain"
	"github.com/millrace/millrace/lab/roofline"
)

type explainOptions struct {
	model  string
	device config.Device // Backend "": none
	steps  explain.Options
	beams  beamMemory
	roof   rooflineFlags
	json   bool
}

func newExplain() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Print a model's op program with bytes and flops per op",
		Long: `Print the op program that a model's configuration becomes: the ops of each layer, their shapes, and the
bytes and flops of each for a prefill of --prefill tokens and for a decode step at --context tokens.
Nothing is loaded or run; a directory without weights is explained from its config.json.

--backend sycl or cuda counts what the device launches for each op: it loads the model and runs the two steps.

--roofline turns them into the least time that a device needs, --paper does so for the models and
settings of arXiv:2401.05391.`,
		Example: `  millrace explain
  millrace explain DIR --prefill 2048 --context 4096 --json
  millrace explain DIR --prefill 1024 --beams 4 --batch 32 --gen 1024
  millrace explain DIR --roofline max-1550-tile --prefill 1024 --gen 128
  millrace explain --paper`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.roof.curves != "" && !o.roof.paper {
				return config.Usagef("--curves: found it without --paper, expected it with it")
			}
			if o.roof.wanted() {
				return atOnce(cmd.Context(), func() error { return explainRoofline(cmd, o) })
			}
			return explainProgram(cmd.OutOrStdout(), o)
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	config.RegisterModel(f, &o.model)
	f.StringVar(&o.device.Backend, "backend", "",
		"sycl or cuda: load the model and count the kernels that each op launches (default: load nothing)")
	f.StringVar(&o.device.DeviceName, "device", "auto", "device of the sycl or cuda backend, as for serve")
	f.StringVar(&o.device.ISA, "isa", "", "instruction set of the backend, one that doctor lists (default: the best)")
	f.StringVar(&o.device.DType, "dtype", "auto",
		"type of products, and of the KV cache where --kv-type is auto: auto (bf16; on sycl and cuda f16 unless the checkpoint is bf16), or f16 or bf16 on sycl and cuda")
	config.RegisterKVType(f, &o.device.KVType)
	config.RegisterKVEviction(f, &o.device.KVEviction)
	f.IntVar(&o.steps.Prefill, "prefill", 512, "tokens of the prompt")
	f.IntVar(&o.steps.Context, "context", 0, "tokens in the KV cache before the decode step (0: the value of --prefill)")
	o.beams.register(f)
	o.roof.register(f)
	jsonFlag(cmd, &o.json)
	return cmd
}

func explainProgram(out io.Writer, o explainOptions) error {
	if o.steps.Prefill < 1 || o.steps.Context < 0 {
		return config.Usagef("--prefill %d, --context %d: expected at least 1 and 0", o.steps.Prefill, o.steps.Context)
	}
	launches := device.IsOptional(o.device.Backend) // the ops of cpu and ref are calls
	if !launches && !slices.Contains(append(device.Backends(), ""), o.device.Backend) {
		return config.Usagef("--backend: found %q, expected %s", o.device.Backend, strings.Join(device.Backends(), " or "))
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
	eviction, err := model.ParseEviction(o.device.KVEviction)
	if err != nil {
		return config.Usagef("--kv-eviction: %w", err)
	}
	if err := program.SetEviction(eviction); err != nil {
		return config.Usagef("--kv-eviction: %w", err)
	}
	r := &explain.Report{Explanation: explain.Describe(program, o.steps)}
	if !launches && program.Lossy() == "" {
		if r.Pool, err = explainPool(program); err != nil {
			return err
		}
	}
	if launches {
		options, err := modelOptions(dir, o.device)
		if err != nil {
			return err
		}
		if r.Launches, err = explain.CountLaunches(options, o.steps.Prefill); err != nil {
			return err
		}
	}
	if o.beams.beams > 0 {
		segments := kvmgr.Segments{Prompt: o.steps.Prefill, Response: o.beams.gen, Beams: o.beams.beams}
		r.Beams = explain.NewBeams(segments, o.beams.batch, uint64(r.KVBytesPerToken))
	}
	return show(out, r, o.json, nil)
}

// explainPool computes the KV cache of a server with the defaults on this machine.
func explainPool(p *model.Program) (*explain.Pool, error) {
	var defaults config.Serve
	defaults.RegisterBatch(pflag.NewFlagSet("", pflag.ContinueOnError))
	d, err := device.Open(device.Options{Backend: "cpu", Threads: 1})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	info, err := d.Info()
	if err != nil {
		return nil, err
	}
	return explain.NewPool(p, defaults.MaxBatchSize, kvStart, info.MemoryAvailable), nil
}

// beamMemory are explain's flags of the KV cache of beam searches.
type beamMemory struct{ beams, batch, gen int }

func (b *beamMemory) register(f *pflag.FlagSet) {
	f.IntVar(&b.beams, "beams", 0, "beams of beam searches whose KV cache to print (0: none)")
	f.IntVar(&b.batch, "batch", 1, "requests, with --beams or --roofline")
	f.IntVar(&b.gen, "gen", 512, "tokens to generate, with --beams or --roofline")
}

func (b *beamMemory) check() error {
	if b.beams < 0 || b.batch < 1 || b.gen < 1 {
		return config.Usagef("--beams %d, --batch %d, --gen %d: expected at least 0, 1, 1", b.beams, b.batch, b.gen)
	}
	return nil
}

// rooflineFlags are explain's flags of bounds.
type rooflineFlags struct {
	device string
	tiles  int
	paper  bool
	curves string
}

func (r *rooflineFlags) register(f *pflag.FlagSet) {
	f.StringVar(&r.device, "roofline", "",
		"device whose least time for each op to print: a name of the table of docs/simulation.md, "+roofline.ThisCPU+" (measured now) or all")
	f.IntVar(&r.tiles, "tiles", 1, "devices that share the model, with --roofline")
	f.BoolVar(&r.paper, "paper", false, "print the least times of the models and settings of arXiv:2401.05391 beside its own figures")
	f.StringVar(&r.curves, "curves", "", "with --paper: beginning of the name of an SVG file to write, the KV cache by requests")
}

func (r *rooflineFlags) wanted() bool { return r.device != "" || r.paper }

func explainRoofline(cmd *cobra.Command, o explainOptions) error {
	out := cmd.OutOrStdout()
	if o.roof.paper {
		for _, name := range []string{"roofline", "model", "prefill", "context", "beams", "batch", "gen", "tiles"} {
			if cmd.Flags().Changed(name) || name == "model" && o.model != "" {
				return config.Usagef("--%s: not together with --paper, which has settings of its own", name)
			}
		}
		p, err := roofline.NewPaperReport()
		if err == nil && o.roof.curves != "" {
			err = p.Draw(o.roof.curves)
		}
		return show(out, p, o.json, err)
	}
	if cmd.Flags().Changed("context") {
		return config.Usagef("--context: not together with --roofline, which decodes --gen tokens after --prefill")
	}
	if err := o.beams.check(); err != nil {
		return err
	}
	w := roofline.Workload{Prompt: o.steps.Prefill, Gen: o.beams.gen, Batch: o.beams.batch, Beams: max(o.beams.beams, 1),
		Tiles: o.roof.tiles}
	if w.Prompt < 1 || w.Tiles < 1 {
		return config.Usagef("--prefill %d, --tiles %d: expected at least 1", w.Prompt, w.Tiles)
	}
	peaks, err := roofline.Peaks(o.roof.device)
	if errors.Is(err, roofline.ErrUnknownDevice) {
		return config.Usagef("--roofline: %w", err)
	}
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
	return show(out, roofline.NewReport(program, w, peaks), o.json, nil)
}
