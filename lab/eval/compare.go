package eval

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/tokenizer"
)

// Report is the result of Evaluate. The first result is the reference of the others.
type Report struct {
	Text    string   `json:"text"`
	Context int      `json:"context"`
	Stride  int      `json:"stride"`
	Results []Result `json:"results"`
}

// Result is the measurement of one run.
type Result struct {
	Name string `json:"name"`
	*Score
	Relative  float64    `json:"relative_perplexity"` // to the first result's
	Agreement *Agreement `json:"agreement,omitempty"` // with the first result
}

// Run is one way to open a model.
type Run struct {
	Name  string
	Model compute.Options // without the sizes of its steps
}

// Options say what to measure. The other runs are compared with the first.
type Options struct {
	Text    string // file
	Windows Windows
	Greedy  Continuations // when there are several runs
	Runs    []Run
}

// ErrLength reports a sequence that is longer than the model's context.
var ErrLength = errors.New("eval: longer than the model's context")

// Evaluate measures each run, one after the other.
func Evaluate(log zerolog.Logger, o Options) (*Report, error) {
	raw, err := os.ReadFile(o.Text)
	if err != nil {
		return nil, err
	}
	text, err := encodeText(o.Runs[0].Model.Dir, o.Text, string(raw))
	if err != nil {
		return nil, err
	}
	report := &Report{Text: o.Text, Context: o.Windows.Context, Stride: o.Windows.Stride}
	var reference [][]int32
	for i, run := range o.Runs {
		log.Info().Str("model", run.Name).Int("tokens", len(text)).Msg("evaluating")
		result, greedy, err := o.measure(run, text, len(o.Runs) > 1)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			result.Relative, reference = 1, greedy
		} else {
			first := report.Results[0]
			result.Relative = result.Perplexity / first.Perplexity
			agreement := Agree(result.Best, first.Best, greedy, reference)
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
func (o *Options) measure(run Run, text []int32, compare bool) (Result, [][]int32, error) {
	options := run.Model
	options.MaxRows = max(StepRows, o.Greedy.Prompts)
	options.MaxOutputs, options.MaxSequences = options.MaxRows, o.Greedy.Prompts
	options.Generates = true
	m, err := compute.Open(options)
	if err != nil {
		return Result{}, nil, err
	}
	defer m.Close()
	longest := o.Windows.Context
	if compare {
		longest = max(longest, o.Greedy.PromptTokens+o.Greedy.Tokens)
	}
	if longest > m.Program.MaxPositions {
		return Result{}, nil, fmt.Errorf("%w: found sequences of %d tokens, expected at most the %d of %s", ErrLength, longest,
			m.Program.MaxPositions, run.Name)
	}
	score, err := Perplexity(m, text, o.Windows)
	if err != nil {
		return Result{}, nil, fmt.Errorf("%s: %w", run.Name, err)
	}
	result := Result{Name: run.Name, Score: score}
	if !compare {
		return result, nil, nil
	}
	greedy, err := Greedy(m, text, o.Greedy)
	if err != nil {
		return Result{}, nil, fmt.Errorf("%s: %w", run.Name, err)
	}
	return result, greedy, nil
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	fmt.Fprintf(out, "%s: %d tokens scored, windows of %d tokens every %d\n", filepath.Base(r.Text), r.Results[0].Tokens, r.Context,
		r.Stride)
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
