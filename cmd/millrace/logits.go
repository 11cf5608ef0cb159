package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/config"
)

// logitsChunk is the number of tokens per step: it bounds the logits in memory.
const logitsChunk = 64

type logitsOptions struct {
	config.Device

	model             string
	tokens, positions []int32
	json              bool
}

// logitsResult has one row of logits [vocab] per position, and what computed them: with equal
// digests they have equal bits.
type logitsResult struct {
	Numerics  string      `json:"numerics"` // digest
	Class     string      `json:"class"`    // of the kernels
	Positions []int32     `json:"positions"`
	Logits    [][]float32 `json:"logits"`
}

func newLogits() *cobra.Command {
	var o logitsOptions
	cmd := &cobra.Command{
		Use:   "logits",
		Short: "Print a model's logits for given tokens",
		Long: `Print the logits of a model for the given tokens, before any sampling, at every position or at the
given ones. They serve to compare a model with another system.`,
		Example: `  millrace logits --tokens 1,2,3 --positions 0,2 --json
  millrace logits --model DIR --tokens 1,2,3 --backend ref`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return atOnce(cmd.Context(), func() error {
				r, err := logits(o)
				if err != nil {
					return err
				}
				if o.json {
					return printJSON(cmd.OutOrStdout(), r)
				}
				return printLogits(cmd.OutOrStdout(), r)
			})
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	o.Register(f)
	config.RegisterModel(f, &o.model)
	f.Int32SliceVar(&o.tokens, "tokens", nil, "token ids, separated by commas")
	f.Int32SliceVar(&o.positions, "positions", nil, "positions to print, from 0 (default: all)")
	jsonFlag(cmd, &o.json)
	return cmd
}

func (o *logitsOptions) validate() error {
	if err := o.Validate(); err != nil {
		return err
	}
	if len(o.tokens) == 0 {
		return config.Usagef("--tokens: found nothing, expected token ids separated by commas")
	}
	for _, p := range o.positions {
		if p < 0 || int(p) >= len(o.tokens) {
			return config.Usagef("--positions: found %d, expected 0 to %d", p, len(o.tokens)-1)
		}
	}
	return nil
}

func logits(o logitsOptions) (*logitsResult, error) {
	dir, err := modelDir(o.model)
	if err != nil {
		return nil, err
	}
	options, err := modelOptions(dir, o.Device)
	if err != nil {
		return nil, err
	}
	options.MaxRows, options.MaxOutputs, options.MaxSequences, options.MaxTokens = logitsChunk, logitsChunk, 1, len(o.tokens)
	options.Generates = true
	m, err := compute.Open(options)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	defer m.Close()
	if longest := min(m.Program.MaxPositions, m.Slabs()*m.KV().SlabTokens); len(o.tokens) > longest {
		return nil, config.Usagef("--tokens: found %d tokens, expected at most %d", len(o.tokens), longest)
	}
	all, err := runAll(m, o.tokens, o.positions)
	if err != nil {
		return nil, err
	}
	if len(o.positions) == 0 {
		for p := range o.tokens {
			o.positions = append(o.positions, int32(p))
		}
	}
	n := m.Numerics()
	r := &logitsResult{Numerics: n.Digest(), Class: n.Class, Positions: o.positions}
	for _, p := range o.positions {
		r.Logits = append(r.Logits, all[p])
	}
	return r, nil
}

// runAll runs the tokens of one sequence, chunk by chunk, and returns the
// logits by position: of all, or of the wanted positions only.
func runAll(m *compute.Model, tokens, wanted []int32) (map[int32][]float32, error) {
	e := m.Engine()
	region, err := e.NewRegionAt(0, len(tokens))
	if err != nil {
		return nil, err
	}
	defer region.Close()

	rows := map[int32][]float32{}
	for first := 0; first < len(tokens); first += logitsChunk {
		chunk := tokens[first:min(first+logitsChunk, len(tokens))]
		out, err := e.Run([]device.Rows{{Region: region, Tokens: chunk, Position: first}})
		if err != nil {
			return nil, err
		}
		for i := range out.Rows() {
			if p := int32(first + i); len(wanted) == 0 || slices.Contains(wanted, p) {
				rows[p] = slices.Clone(out.Row(i)) // the engine's until its next run
			}
		}
	}
	return rows, nil
}

// printLogits prints the largest logits of each position, for people.
func printLogits(w io.Writer, r *logitsResult) error {
	const best = 5
	for i, row := range r.Logits {
		ids := make([]int, len(row))
		for id := range ids {
			ids[id] = id
		}
		slices.SortStableFunc(ids, func(a, b int) int { return cmp.Compare(row[b], row[a]) })
		if _, err := fmt.Fprintf(w, "position %d:", r.Positions[i]); err != nil {
			return err
		}
		for _, id := range ids[:min(best, len(ids))] {
			if _, err := fmt.Fprintf(w, "  %d %.4f", id, row[id]); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(w, "\n"); err != nil {
			return err
		}
	}
	return nil
}
