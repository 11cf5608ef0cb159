package device_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/sample"
)

func openBeams(t *testing.T, name string) (*fixture.Model, []fixture.BeamGroup) {
	t.Helper()
	groups, err := fixture.Beams(filepath.Join("../../testdata/beams", name+".json"))
	require.NoError(t, err)
	m, err := fixture.Open(filepath.Join("../../testdata/models", name))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
	return m, groups
}

// searcher runs beam searches on one engine, each with the slabs from 0 on.
type searcher struct {
	*device.Engine
	slabs int
}

func newSearcher(t *testing.T, backend, isa string, m *fixture.Model) searcher {
	t.Helper()
	const rows, slabs = 80, 80
	d, err := device.Open(options(t, backend, isa))
	require.NoError(t, err)
	t.Cleanup(d.Close)
	e, err := d.Load(m.Program, m.Weights, device.Limits{MaxRows: rows, MaxOutputs: rows})
	require.NoError(t, err)
	t.Cleanup(e.Close)
	require.NoError(t, e.ReserveKV(slabs))
	return searcher{e, slabs}
}

// search is a beam search: the prompt as plain rows, then all beams at once. It
// returns the slabs that it used, too.
func (s searcher) search(t *testing.T, c *fixture.BeamCase, p sample.BeamParams) (hyps []sample.Hypothesis, slabs int, err error) {
	t.Helper()
	grow := func(r *device.Region, tokens int) {
		for r.Tokens() < tokens {
			require.NoError(t, r.Append([]int32{int32(slabs)}))
			slabs++
		}
	}
	beam, err := sample.NewBeam(p, s.Vocab(), c.MaxNew, c.EOS)
	require.NoError(t, err)
	region, err := s.NewRegion(len(c.Prompt))
	require.NoError(t, err)
	defer region.Close()
	responses := make([]*device.Region, p.Width)
	for i := range responses {
		responses[i], err = s.NewRegion(c.MaxNew)
		require.NoError(t, err)
		defer responses[i].Close()
	}
	grow(region, len(c.Prompt))
	logits, err := s.Run([]device.Rows{{Region: region, Tokens: c.Prompt, OutputsFrom: len(c.Prompt) - 1}})
	require.NoError(t, err)
	require.NoError(t, beam.Advance(logits.Row))
	for !beam.Done() {
		for _, r := range responses {
			grow(r, beam.Chosen())
		}
		logits, err := s.Run([]device.Rows{{
			Region: region, Tokens: beam.Tokens(), Position: len(c.Prompt) + beam.Chosen() - 1,
			Beams: &device.Beams{Prompt: len(c.Prompt), Responses: responses, Index: beam.Index()},
		}})
		if err != nil {
			return nil, 0, err
		}
		require.NoError(t, beam.Advance(logits.Row))
	}
	return beam.Results(2), slabs, nil
}

// TestBeamSearchEqualsTransformers: ref computes in float32 as transformers
// does, so every hypothesis is the same, but for exact ties. The other backends
// round products and KV to bf16: the best hypothesis is the same wherever
// rounding of that size does not change it in transformers either. In short mode, instruction sets but the best search with one model.
func TestBeamSearchEqualsTransformers(t *testing.T) {
	for _, backend := range backends(t) {
		for i, isa := range isas(t, backend) {
			names := []string{"llama-gqa", "gptj", "opt-prenorm", "bloom-6-heads"}
			if i > 0 && testing.Short() {
				names = names[:1]
			}
			for _, name := range names {
				t.Run(filepath.Join(backend, isa, name), func(t *testing.T) {
					m, groups := openBeams(t, name)
					s := newSearcher(t, backend, isa, m)
					require.Len(t, groups, 4)
					for i := range groups {
						compareBeams(t, s, &groups[i], backend)
					}
				})
			}
		}
	}
}

func compareBeams(t *testing.T, s searcher, g *fixture.BeamGroup, backend string) {
	t.Helper()
	exact := backend == "ref"
	compared, same, ties := 0, 0, 0
	for i := range g.Cases {
		c := &g.Cases[i]
		params, err := c.Params(g.Beams)
		require.NoError(t, err)
		got, _, err := s.search(t, c, params)
		if device.IsOptional(backend) && errors.Is(err, device.ErrUnsupported) {
			t.Skipf("NOT TESTED: beam search on %s: %v", backend, err)
		}
		require.NoError(t, err)
		text := fmt.Sprintf("%d beams, case %d: %+v", g.Beams, i, c)
		if exact && c.Tie {
			ties++
			continue
		}
		if fmt.Sprint(got[0].Tokens) == fmt.Sprint(c.Answers[0]) {
			same++
		}
		if !exact && !c.Stable {
			continue
		}
		compared++
		require.Equal(t, c.Answers[0], got[0].Tokens, text)
		if exact {
			require.Equal(t, c.Answers[1], got[1].Tokens, text)
			for n := range got {
				require.InEpsilon(t, c.Scores[n], got[n].Score, 1e-4, text)
			}
		}
	}
	require.GreaterOrEqual(t, compared, 30)
	t.Logf("%d beams: %d of %d best hypotheses equal, %d of them had to be; %d exact ties", g.Beams, same, len(g.Cases), compared, ties)
}

// TestBeamSearchOfOneBeamIsGreedy on a prompt that is prefilled in one step.
func TestBeamSearchOfOneBeamIsGreedy(t *testing.T) {
	m, _ := openBeams(t, "llama-gqa")
	for _, backend := range []string{"ref", "cpu"} {
		s := newSearcher(t, backend, "", m)
		c := fixture.BeamCase{Prompt: m.Expected.Prompt, MaxNew: len(m.Expected.Greedy)}
		got, slabs, err := s.search(t, &c, sample.BeamParams{Width: 1})
		require.NoError(t, err)
		require.Equal(t, m.Expected.Greedy, got[0].Tokens)
		require.Equal(t, device.Slabs(len(c.Prompt))+device.Slabs(c.MaxNew-1), slabs)
	}
}
