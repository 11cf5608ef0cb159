package main

import (
	"io"
	"slices"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/bench"
)

// benchFlags are the flags of bench.
type benchFlags struct {
	bench.Options

	device config.Device
	server urlFlags
	model  string
	curves string
	asJSON bool
}

func newBench(a *app) *cobra.Command {
	var o benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure prefill and decode of a model on this machine",
		Long: `Measure the model on the device alone: prefill of one prompt after the other, then decoding of all
sequences together, with random tokens. The machine's own limits (read bandwidth of all cores, peak of
the products) are measured every few steps of the same run, so that the shares can be compared between
machines, and between quiet and busy minutes of one.

The sequences of an encoder are texts: their prefill is all that it does.

--beams measures beam searches instead, one for each sequence. Their steps alternate with those of greedy
decoding after the same prompts.

--ops, --sdpa and --queries measure op by op instead, each op against the device's limits.

--url measures a server instead, of any program with OpenAI's API: requests arrive at random moments at --rate,
and the times are those that a client sees, with a histogram. Goodput counts answers within --ttft and --tpot.`,
		Example: `  millrace bench --model DIR --prompt 512 --gen 32 --batch 1,8,16 --json
  millrace bench --model DIR --prompt 128,512,2048 --batch 1,8,16 --curves grid
  millrace bench --model DIR --ops --batch 1,8
  millrace bench --model ENCODER --prompt 128 --batch 64
  millrace bench --model DIR --sdpa --prompt 1024 --batch 1,2,4,8,16
  millrace bench --model DIR --prompt 128,2048,8192 --queries 1,8,64
  millrace bench --url http://127.0.0.1:8080 --rate 4 --requests 200 --prompt 256 --gen 64`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.server.url != "" {
				prompt, err := o.onePrompt(true)
				if err != nil {
					return err
				}
				return o.server.run(cmd.Context(), cmd.OutOrStdout(), o.model, prompt, o.Gen, o.asJSON)
			}
			return atOnce(cmd.Context(), func() error { return o.run(cmd.OutOrStdout(), a.log) })
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	o.device.Register(f)
	config.RegisterModel(f, &o.model)
	f.IntSliceVar(&o.Prompts, "prompt", []int{512}, "prompt tokens of each sequence, one case for each with each --batch")
	f.IntVar(&o.Gen, "gen", 32, "tokens to generate")
	f.IntVar(&o.Shared, "shared", 0, "first prompt tokens that are computed once, in KV slabs that all sequences share")
	f.IntSliceVar(&o.Batches, "batch", []int{1, 8, 16}, "numbers of sequences, one case for each")
	f.IntVar(&o.Beams, "beams", 0, "beams of beam searches, to measure as many of them as --batch (0: sequences)")
	f.IntVar(&o.Repeat, "repeat", 3, "runs of each case, of which the median counts")
	f.IntVar(&o.Rows, "max-batch-tokens", 512, "tokens per step: decode rows and prompt chunks together")
	f.BoolVar(&o.Ops, "ops", false,
		"measure op by op: a prefill step of --prompt tokens, and a decode step of each --batch with --beams rows each")
	f.BoolVar(&o.SDPA, "sdpa", false,
		"measure attention in decode steps of each --batch: --beams rows (0: 4) after --prompt + --gen tokens")
	f.IntSliceVar(&o.Queries, "queries", nil,
		"measure attention of these numbers of rows of one sequence, after each --prompt: a decode step has 1, a chunk of a prompt more")
	f.StringVar(&o.curves, "curves", "",
		"beginning of the names of the SVG files to write: time to first token by --prompt, and time per output token by --batch; with --sdpa attention by --batch")
	o.server.register(f)
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

// onePrompt is the least of --prompt, and an error if there are several where one is needed.
func (o *benchFlags) onePrompt(needed bool) (int, error) {
	if len(o.Prompts) == 0 || needed && len(o.Prompts) > 1 {
		return 0, config.Usagef("--prompt: found %d numbers of tokens, expected one, or several without --ops, --sdpa, --shared and --url",
			len(o.Prompts))
	}
	return slices.Min(o.Prompts), nil
}

// profiles says that ops are measured.
func (o *benchFlags) profiles() bool { return o.Ops || o.SDPA || len(o.Queries) > 0 }

func (o *benchFlags) validate() error {
	if len(o.Batches) == 0 {
		return config.Usagef("--batch: found nothing, expected numbers of sequences")
	}
	for _, b := range o.Batches {
		if b < 1 {
			return config.Usagef("--batch: found %d, expected at least 1", b)
		}
	}
	prompt, err := o.onePrompt(o.Ops || o.SDPA || o.Shared > 0)
	if err != nil {
		return err
	}
	if o.Beams < 0 || o.Beams == 1 || o.Beams > sample.MaxBeams || o.Beams > 0 && (prompt < 2 || o.Gen < 1) {
		return config.Usagef("--beams %d, --prompt %d, --gen %d: expected 2 to %d beams, at least 2 and 1 tokens", o.Beams, prompt, o.Gen,
			sample.MaxBeams)
	}
	if o.curves != "" && !o.SDPA && (o.profiles() || o.Beams > 0) {
		return config.Usagef("--curves: found it with --ops, --queries or --beams, whose tables have no curves, expected it without, or with --sdpa")
	}
	if len(o.Queries) > 0 && slices.Min(o.Queries) < 1 {
		return config.Usagef("--queries: found %d, expected at least 1", slices.Min(o.Queries))
	}
	if o.Shared < 0 || o.Shared >= prompt || o.Shared%device.SlabTokens != 0 || o.Shared > 0 && (o.Beams > 0 || o.profiles()) {
		return config.Usagef("--shared %d, --prompt %d: expected a multiple of %d below the prompt, without --beams, --ops, --sdpa and --queries",
			o.Shared, prompt, device.SlabTokens)
	}
	if prompt < 1 || o.Gen < 0 || o.Repeat < 1 || o.Rows < 1 {
		return config.Usagef("--prompt %d, --gen %d, --repeat %d, --max-batch-tokens %d: expected at least 1, 0, 1, 1",
			prompt, o.Gen, o.Repeat, o.Rows)
	}
	if uses, cause := o.device.KVUses(); !uses.Rollback {
		return config.Usagef("found %s, expected another value: bench maps slabs by itself, and runs tokens again", cause)
	}
	return o.device.Validate()
}

func (o *benchFlags) run(out io.Writer, log zerolog.Logger) error {
	if err := o.validate(); err != nil {
		return err
	}
	dir, err := modelDir(o.model)
	if err != nil {
		return err
	}
	if o.Model, err = modelOptions(dir, o.device); err != nil {
		return err
	}
	o.Model.OneGroup = true // it maps slabs by itself, and gives none back
	if o.profiles() {
		r, err := bench.RunProfile(log, o.Options)
		if err == nil && o.curves != "" {
			err = r.Draw(o.curves)
		}
		return show(out, r, o.asJSON, err)
	}
	r, err := bench.Run(log, o.Options)
	if err == nil && o.curves != "" {
		err = r.Draw(o.curves)
	}
	return show(out, r, o.asJSON, err)
}
