package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/eval"
)

// evalFlags are the flags of eval.
type evalFlags struct {
	eval.Windows

	device  config.Device
	model   string
	against string
	weights []string // measured after those of device.Weights
	kv      []string // and then these types of KV cache
	text    string
	greedy  eval.Continuations
	asJSON  bool
}

func newEval(a *app) *cobra.Command {
	var o evalFlags
	cmd := &cobra.Command{
		Use:   "eval",
		Short: "Measure the quality of a model on a text: perplexity, and agreement with another model",
		Long: `Measure how well a model predicts a text: the text is cut into overlapping windows of --context tokens
that begin --stride tokens apart, and every token but the first is scored once: from the second
window on after at least --context minus --stride tokens.

--against measures another model of the same vocabulary first, say the one that this one was quantized
from, and compares: the share of the text's positions with the same likeliest token, and the share of
the tokens of greedy continuations before the first that differs. --compare-weights does so for types of
weights, --compare-kv for types of KV cache: the model as --weights and --kv-type have it first, then
with each of these.`,
		Example: `  millrace eval --text testdata/eval/tiny-chat.txt
  millrace eval --text testdata/eval/tiny-chat.txt --compare-weights int8,int4,fp8,nf4,int8+attn.out=bf16
  millrace eval --text testdata/eval/tiny-chat.txt --compare-kv int8,int4
  millrace eval --model QUANTIZED --against DIR --text FILE --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			runs, err := o.runs()
			if err != nil {
				return err
			}
			return atOnce(cmd.Context(), func() error {
				r, err := eval.Evaluate(a.log, eval.Options{Text: o.text, Windows: o.Windows, Greedy: o.greedy, Runs: runs})
				if errors.Is(err, eval.ErrLength) {
					err = config.Usagef("%w", err)
				}
				return show(cmd.OutOrStdout(), r, o.asJSON, err)
			})
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	o.device.Register(f)
	config.RegisterModel(f, &o.model)
	f.StringVar(&o.against, "against", "", "model to compare with (default: none)")
	f.StringSliceVar(&o.weights, "compare-weights", nil, "further types of weights to measure, each a value of --weights")
	f.StringSliceVar(&o.kv, "compare-kv", nil, "further types of KV cache to measure, each a value of --kv-type")
	f.StringVar(&o.text, "text", "", "file of UTF-8 text; special tokens in it are recognized")
	f.IntVar(&o.Context, "context", 512, "tokens per window")
	f.IntVar(&o.Stride, "stride", 0, "tokens between the starts of two windows (0: half of --context)")
	f.IntVar(&o.greedy.Prompts, "prompts", 16, "prompts from the text to continue greedily, when models are compared")
	f.IntVar(&o.greedy.PromptTokens, "prompt-tokens", 64, "tokens per prompt to continue")
	f.IntVar(&o.greedy.Tokens, "gen", 32, "tokens per continuation")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *evalFlags) validate() error {
	if o.text == "" {
		return config.Usagef("--text: found nothing, expected a file")
	}
	if o.Context < 2 {
		return config.Usagef("--context: found %d, expected at least 2", o.Context)
	}
	if o.Stride == 0 {
		o.Stride = o.Context / 2
	}
	if o.Stride < 1 || o.Stride >= o.Context {
		return config.Usagef("--stride: found %d, expected 1 to %d, less than --context", o.Stride, o.Context-1)
	}
	if g := o.greedy; g.Prompts < 1 || g.PromptTokens < 1 || g.Tokens < 1 {
		return config.Usagef("--prompts %d, --prompt-tokens %d, --gen %d: expected at least 1 each", g.Prompts, g.PromptTokens, g.Tokens)
	}
	return o.device.Validate()
}

// runs lists what to measure; what the rest is compared with comes first.
func (o *evalFlags) runs() ([]eval.Run, error) {
	dir, err := modelDir(o.model)
	if err != nil {
		return nil, err
	}
	var runs []eval.Run
	add := func(dir string, d config.Device) error {
		options, err := modelOptions(dir, d)
		if err != nil {
			return config.Usagef("--compare-weights, --compare-kv: %w", err)
		}
		name := dir
		if len(o.weights) > 0 {
			name += " " + d.Weights
		}
		if len(o.kv) > 0 {
			name += " KV " + d.KVType
		}
		runs = append(runs, eval.Run{Name: name, Model: options})
		return nil
	}
	var errs []error
	if o.against != "" {
		errs = append(errs, add(o.against, o.device))
	}
	errs = append(errs, add(dir, o.device))
	for _, d := range o.variants() {
		errs = append(errs, add(dir, d))
	}
	return runs, errors.Join(errs...)
}

// variants are the devices to compare with the one of the flags.
func (o *evalFlags) variants() (all []config.Device) {
	for _, weights := range o.weights {
		d := o.device
		d.Weights = weights
		all = append(all, d)
	}
	for _, kv := range o.kv {
		d := o.device
		d.KVType = kv
		all = append(all, d)
	}
	return all
}
