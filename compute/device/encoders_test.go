package device_test

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// encoded is a text of a fixture, and what transformers makes of it.
type encoded struct {
	Text   string
	Pair   *string
	IDs    []int32
	Types  []int
	Vector []float32
}

// second is where the tokens of type 1 begin.
func (e *encoded) second() int {
	if i := slices.Index(e.Types, 1); i >= 0 {
		return i
	}
	return len(e.IDs)
}

// TestEncodersEqualTransformers compares the vectors and the logits of classes of all texts with those of transformers, and of all in one
// step with those of each alone.
func TestEncodersEqualTransformers(t *testing.T) {
	dirs, err := filepath.Glob("../../testdata/encoders/*")
	require.NoError(t, err)
	require.Len(t, dirs, 41)
	worst := map[string]float64{}
	for _, backend := range backends(t) {
		for _, o := range variants(t, backend) {
			for _, dir := range dirs {
				t.Run(filepath.Join(backend, o.ISA, o.DType, filepath.Base(dir)), func(t *testing.T) {
					var texts []encoded
					require.NoError(t, weights.ReadJSON(filepath.Join(dir, "expected.json"), &texts, "texts"))
					cfg, err := family.LoadConfig(dir)
					require.NoError(t, err)
					w, err := family.OpenWeights(cfg)
					require.NoError(t, err)
					defer w.Close() //nolint:errcheck // nothing was written
					p, err := family.Build(cfg, w)
					require.NoError(t, err)
					require.False(t, p.Generates())
					d, err := device.Open(o)
					require.NoError(t, err)
					defer d.Close()
					lim := device.Limits{MaxRows: 500, MaxOutputs: len(texts), MaxHidden: len(texts)}
					e, err := d.Load(p, w, lim)
					require.NoError(t, err)
					defer e.Close()
					require.NoError(t, e.ReserveKV(100))
					together := runEncoder(t, e, p, texts)
					for i := range texts {
						if backend == "ref" {
							for k, want := range texts[i].Vector {
								require.InDelta(t, want, together[i][k], 1e-3, "text %d, element %d", i, k)
							}
						}
						off := apart(cfg, together[i], texts[i].Vector)
						require.LessOrEqual(t, off, farthest, "text %d", i)
						worst[backend] = max(worst[backend], off)
						requireSameBits(t, together[i], runEncoder(t, e, p, texts[i:i+1])[0], i)
					}
				})
			}
		}
	}
	t.Logf("the farthest from transformers: %v", worst)
}

// apart is how far a cosine is from 1, or, of logits of few classes, how far they are from those expected over the largest.
func apart(cfg *family.Config, got, want []float32) float64 {
	if len(cfg.Classifier.Labels) == 0 {
		return 1 - cosine(doubles(got), doubles(want))
	}
	most := 0.0
	for i := range want {
		most = max(most, math.Abs(float64(got[i]-want[i])))
	}
	return most / 50 // products of bf16: 5% of a logit near 1
}

func doubles(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// runEncoder returns the vectors, or the logits, of texts in one step.
func runEncoder(t *testing.T, e *device.Engine, p *model.Program, texts []encoded) [][]float32 {
	t.Helper()
	var batch []device.Rows
	next := int32(0)
	for i := range texts {
		text := &texts[i]
		r, err := e.NewRegion(len(text.IDs))
		require.NoError(t, err)
		defer r.Close()
		slabs := make([]int32, e.Slabs(len(text.IDs)))
		for k := range slabs {
			slabs[k] = next
			next++
		}
		require.NoError(t, r.Append(slabs))
		second := 0 // of a decoder, which has no types of tokens
		if p.Encoder() {
			second = text.second()
		}
		batch = append(batch, device.Rows{Region: r, Tokens: text.IDs, OutputsFrom: len(text.IDs) - 1, Second: second,
			Hidden: p.Classes == 1 && len(text.Vector) > 1})
	}
	out, err := e.Run(batch)
	require.NoError(t, err)
	var all [][]float32
	for i := range batch {
		if batch[i].Hidden {
			all = append(all, slices.Clone(out.Hidden(i)))
		} else {
			all = append(all, slices.Clone(out.Row(i)))
		}
		require.Len(t, all[i], len(texts[i].Vector))
	}
	return all
}
