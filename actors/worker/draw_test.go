package worker

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

// deviceLogits stay on a device, which draws tokens on request. It notes the rows that are read.
type deviceLogits struct {
	rows   [][]float32
	read   []int
	unsaid int // the row of which the device does not say the token
	failed error
}

func (d *deviceLogits) Hidden(int) []float32 { return nil }

func (d *deviceLogits) Row(i int) []float32 {
	d.read = append(d.read, i)
	return slices.Clone(d.rows[i])
}

func (d *deviceLogits) Best(i int) (int32, bool) { return int32(len(d.rows[i]) - 1), true }

func (d *deviceLogits) Draw(draws []sample.Draw, tokens []int32) error {
	for i := range draws {
		var err error
		if tokens[i], err = draws[i].Token(slices.Clone(d.rows[draws[i].Row]), new(sample.Scratch)); err != nil {
			return err
		}
		if draws[i].Row == d.unsaid {
			tokens[i] = -1
		}
	}
	return d.failed
}

// TestADeviceDrawsTheTokensOfAStep: those that need more than its logits come from them, and the tokens are the same.
func TestADeviceDrawsTheTokensOfAStep(t *testing.T) {
	const vocab = 40
	logits := &deviceLogits{unsaid: 5}
	for row := range 8 {
		values := make([]float32, vocab)
		for i := range values {
			values[i] = float32(math.Sin(float64(row*vocab + i)))
		}
		logits.rows = append(logits.rows, values)
	}
	l := &loop{logits: stepRows{Logits: logits}}
	add := func(p sample.Params, row, drafts int) *sequence {
		s := &sequence{tokens: []int32{1, 2, 3}, sampler: sample.New(p, vocab, nil), draft: make([]int32, drafts)}
		l.outputs = append(l.outputs, output{seq: s, row: row, drafts: drafts})
		return s
	}
	warm := sample.Params{Temperature: 1, Seed: 7}
	greedy := add(sample.Params{}, 0, 0)
	plain := add(warm, 1, 0)
	drafted := add(warm, 2, 1)
	first, err := sample.New(warm, vocab, nil).Sample(slices.Clone(logits.rows[2]), 3, new(sample.Scratch))
	require.NoError(t, err)
	drafted.draft[0] = first.Token // so that the row after it counts
	read := add(sample.Params{Temperature: 1, Logprobs: true}, 4, 0)
	unsaid := add(warm, 5, 0)
	guided := add(sample.Params{}, 6, 0)
	mask := grammar.NewMask(vocab)
	mask[0] = 1 << 9
	guided.guide = &guide{masks: []grammar.Mask{mask}, free: []bool{false}, rows: 1, err: nil}

	require.NoError(t, l.drawOnDevice())
	var scratch sample.Scratch
	for i := range l.outputs {
		o := &l.outputs[i]
		if o.seq == guided {
			c, err := o.seq.draw(l.logits, o.row, mask, len(o.seq.tokens), &scratch)
			require.NoError(t, err)
			require.EqualValues(t, 9, c.Token, "the one token of the mask")
			continue
		}
		require.NoError(t, o.seq.sample(l.logits, o, &scratch))
	}
	require.Equal(t, []int{4, 5}, logits.read)
	require.Equal(t, []sample.Choice{{Token: vocab - 1}}, greedy.choices, "what the device says, without a draw")
	require.Len(t, drafted.choices, 2)
	for _, s := range []*sequence{plain, drafted, unsaid} {
		o := &l.outputs[slices.IndexFunc(l.outputs, func(o output) bool { return o.seq == s })]
		for i, c := range s.choices {
			want, err := sample.New(warm, vocab, nil).Sample(slices.Clone(logits.rows[o.row+i]), 3+i, &scratch)
			require.NoError(t, err)
			require.Equal(t, want, c)
		}
	}
	require.Len(t, read.choices, 1)

	logits.failed = errors.New("the device is lost")
	require.ErrorIs(t, l.drawOnDevice(), logits.failed)
}
