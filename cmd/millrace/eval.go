package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/eval"
	"github.com/millrace/millrace/tokenizer"
)

type evalOptions struct {
	device  config.Device
	model   string
	against string
	weights []string // measured after those of device.Weights
	kv      []string // and then these types of KV cache
	text    string
	windows eval.Windows
	greedy  eval.Continuations
	asJSON  bool
}

// evalReport is what eval prints with --json. The first result is the one
// that the others are compared with.
type evalReport struct {
	Text    string       `json:"text"`
	Context int          `json:"context"`
	Stride  int          `json:"stride"`
	Results []evalResult `json:"results"`
}

type evalResult struct {
	Name string `json:"name"`
	*eval.Score
	Relative  float64         `json:"relative_perplexity"` // to the first result's
	Agreement *eval.Agreement `json:"agreement,omitempty"` // with the first result
}

// evalRun is one way to open a model.
type evalRun struct {
	name    string
	options compute.Options
}

func newEval(a *app) *cobra.Command {
	var o evalOptions
	cmd := &cobra.Command{
		Use:   "eval",
		Short: "Measure the quality of a model on a text: perplexity, and agreement with another model",
		Long: `Measure how well a model predicts a text: the text is cut into overlapping windows of --context tokens
that begin --stride tokens apart, and every token but the first is scored once, behind at least
--context minus --stride tokens once the first window is full.

--against measures another model of the same vocabulary first, say the one that this one was quantized
from, and compares: the share of the text's positions with the same likeliest token, and the share of
the tokens of greedy continuations before the first that differs. --compare-weights does so for types of
weights, --compare-kv for types of KV cache: the model as --weights and --kv-type have it first, then
with each of these.`,
		Example: `  millrace eval --text testdata/eval/tiny-chat.txt
  millrace eval --text testdata/eval/tiny-chat.txt --compare-weights int8,int4,fp8,nf4,int8+attn.out=bf16
  millrace eval --text testdata/eval/tiny-chat.txt --compare-kv int8,int4
  millrace eval --model QUANTIZED --against DIR --text FILE --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			report, err := evaluate(a, &o)
			if err != nil {
				return err
			}
			if o.asJSON {
				return printJSON(cmd.OutOrStdout(), report)
			}
			return printEval(cmd.OutOrStdout(), report)
		},
	}
	f := cmd.Flags()
	o.device.Register(f)
	config.RegisterModel(f, &o.model)
	f.StringVar(&o.against, "against", "", "model to compare with (default: none)")
	f.StringSliceVar(&o.weights, "compare-weights", nil, "other types of weights to measure the model with, as --weights has them")
	f.StringSliceVar(&o.kv, "compare-kv", nil, "other types of KV cache to measure the model with, as --kv-type has them")
	f.StringVar(&o.text, "text", "", "file of UTF-8 text; special tokens written in it are recognized")
	f.IntVar(&o.windows.Context, "context", 512, "tokens of a window")
	f.IntVar(&o.windows.Stride, "stride", 0, "tokens from the begin of a window to the next one's (0: half of --context)")
	f.IntVar(&o.greedy.Prompts, "prompts", 16, "prompts from the text to continue greedily, when models are compared")
	f.IntVar(&o.greedy.PromptTokens, "prompt-tokens", 64, "tokens of such a prompt")
	f.IntVar(&o.greedy.Tokens, "gen", 32, "tokens of such a continuation")
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

func (o *evalOptions) validate() error {
	if o.text == "" {
		return config.Usagef("--text: found nothing, expected a file")
	}
	if o.windows.Context < 2 {
		return config.Usagef("--context: found %d, expected at least 2", o.windows.Context)
	}
	if o.windows.Stride == 0 {
		o.windows.Stride = o.windows.Context / 2
	}
	if o.windows.Stride < 1 || o.windows.Stride >= o.windows.Context {
		return config.Usagef("--stride: found %d, expected 1 to %d, less than --context", o.windows.Stride, o.windows.Context-1)
	}
	if g := o.greedy; g.Prompts < 1 || g.PromptTokens < 1 || g.Tokens < 1 {
		return config.Usagef("--prompts %d, --prompt-tokens %d, --gen %d: expected at least 1 each", g.Prompts, g.PromptTokens, g.Tokens)
	}
	return o.device.Validate()
}

// runs lists what to measure; what the rest is compared with comes first.
func (o *evalOptions) runs() ([]evalRun, error) {
	dir, err := modelDir(o.model)
	if err != nil {
		return nil, err
	}
	var runs []evalRun
	add := func(dir string, d config.Device) error {
		options, err := modelOptions(dir, d)
		if err != nil {
			return config.Usagef("--compare-weights, --compare-kv: %w", err)
		}
		options.MaxRows = max(eval.StepRows, o.greedy.Prompts)
		options.MaxOutputs, options.MaxSequences = options.MaxRows, o.greedy.Prompts
		name := dir
		if len(o.weights) > 0 {
			name += " " + d.Weights
		}
		if len(o.kv) > 0 {
			name += " KV " + d.KVType
		}
		runs = append(runs, evalRun{name, options})
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
func (o *evalOptions) variants() (all []config.Device) {
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

func evaluate(a *app, o *evalOptions) (*evalReport, error) {
	runs, err := o.runs()
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(o.text)
	if err != nil {
		return nil, err
	}
	text, err := encodeText(runs[0].options.Dir, o.text, string(raw))
	if err != nil {
		return nil, err
	}
	report := &evalReport{Text: o.text, Context: o.windows.Context, Stride: o.windows.Stride}
	var reference [][]int32
	for i, run := range runs {
		a.log.Info().Str("model", run.name).Int("tokens", len(text)).Msg("evaluating")
		result, greedy, err := o.measure(run, text, len(runs) > 1)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			result.Relative, reference = 1, greedy
		} else {
			first := report.Results[0]
			result.Relative = result.Perplexity / first.Perplexity
			agreement := eval.Agree(result.Best, first.Best, greedy, reference)
			result.Agreement = &agreement
		}
		report.Results = append(report.Results, result)
	}
	return report, nil
}

// encodeText gives the tokens of a text by the tokenizer of a model.
func encodeText(dir, file, text string) ([]int32, error) {
	t, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	defer t.Close() //nolint:errcheck // nothing was written
	ids, err := t.Encode(text, true)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(ids) < 2 {
		return nil, fmt.Errorf("%s: found %d tokens, expected at least 2", file, len(ids))
	}
	return ids, nil
}

// measure opens the model, scores the text and, to compare, continues parts of
// it. The model is closed again: the next one needs its memory.
func (o *evalOptions) measure(run evalRun, text []int32, compare bool) (evalResult, [][]int32, error) {
	m, err := compute.Open(run.options)
	if err != nil {
		return evalResult{}, nil, err
	}
	defer m.Close()
	longest := o.windows.Context
	if compare {
		longest = max(longest, o.greedy.PromptTokens+o.greedy.Tokens)
	}
	if longest > m.Program.MaxPositions {
		return evalResult{}, nil, config.Usagef("found sequences of %d tokens, expected at most the %d of %s", longest, m.Program.MaxPositions, run.name)
	}
	score, err := eval.Perplexity(m, text, o.windows)
	if err != nil {
		return evalResult{}, nil, fmt.Errorf("%s: %w", run.name, err)
	}
	result := evalResult{Name: run.name, Score: score}
	if !compare {
		return result, nil, nil
	}
	greedy, err := eval.Greedy(m, text, o.greedy)
	if err != nil {
		return evalResult{}, nil, fmt.Errorf("%s: %w", run.name, err)
	}
	return result, greedy, nil
}

func printEval(out io.Writer, r *evalReport) error {
	fmt.Fprintf(out, "%s: %d tokens scored, windows of %d tokens every %d\n", filepath.Base(r.Text), r.Results[0].Tokens, r.Context, r.Stride)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "model\tnats/token\tperplexity\tof the first\tsame best token\tsame greedy tokens")
	for _, c := range r.Results {
		fmt.Fprintf(w, "%s\t%.5f\t%.4f\t%.4f\t", c.Name, c.Nats, c.Perplexity, c.Relative)
		if a := c.Agreement; a != nil {
			fmt.Fprintf(w, "%.2f%%\t%.1f%%\n", 100*a.Best, 100*a.Greedy)
		} else {
			fmt.Fprint(w, "\t\n")
		}
	}
	return w.Flush()
}
