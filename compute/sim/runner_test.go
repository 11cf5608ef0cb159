package sim_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sim"
)

// program is that of a fixture's configuration, without weights.
func program(t *testing.T, name string) *model.Program {
	t.Helper()
	cfg, err := family.LoadConfig(filepath.Join("../../testdata/models", name))
	require.NoError(t, err)
	p, err := family.Build(cfg, nil)
	require.NoError(t, err)
	return p
}

func options(t *testing.T) sim.Options {
	d, _, err := sim.Find("cpu")
	require.NoError(t, err)
	return sim.Options{Program: program(t, "llama-gqa"), Device: d, MaxRows: 64, MaxOutputs: 8, MaxSequences: 8}
}

func open(t *testing.T, o sim.Options) *sim.Runner {
	t.Helper()
	r, err := sim.Open(o)
	require.NoError(t, err)
	t.Cleanup(r.Close)
	return r
}

// region is one over the given slabs.
func region(t *testing.T, r compute.Runner, slabs ...int32) compute.Region {
	t.Helper()
	g, err := r.NewRegion(len(slabs) * r.KV().SlabTokens)
	require.NoError(t, err)
	require.NoError(t, g.Append(slabs))
	return g
}

// greedy is OpenAI's default without randomness, seeded the same with it.
func greedy() sample.Params { p := sample.Default(); p.Temperature = 0; return p }
func seeded() sample.Params {
	p := sample.Default()
	p.Temperature, p.Seed, p.RepetitionPenalty, p.TopP = 2, 11, 1.3, 0.97
	return p
}

// goOn continues tokens by n, with the prompt in chunks, on a runner where
// nothing of it is in the KV cache yet. Sampling counts from the sequence's
// beginning, as after a move.
func goOn(t *testing.T, r compute.Runner, p sample.Params, tokens []int32, prompt, n, chunk int, slabs ...int32) []int32 {
	t.Helper()
	g := region(t, r, slabs...)
	defer g.Close()
	sampler := sample.New(p, r.Vocab(), tokens[:prompt])
	sampler.Replay(tokens[prompt:])
	tokens = slices.Clone(tokens)
	for at := 0; n > 0; {
		rows := min(chunk, len(tokens)-at)
		l, err := r.Run([]compute.Rows{{Region: g, Tokens: tokens[at : at+rows], Position: at, Output: at+rows == len(tokens)}})
		require.NoError(t, err)
		if at += rows; at < len(tokens) {
			continue
		}
		c, err := sampler.Sample(l.Row(0), len(tokens), new(sample.Scratch))
		require.NoError(t, err)
		sampler.Accept(c.Token)
		tokens = append(tokens, c.Token)
		n--
	}
	return tokens
}

func TestASequenceThatMovesGoesOnAsIfItHadStayed(t *testing.T) {
	o := options(t)
	for name, p := range map[string]sample.Params{"greedy": greedy(), "seeded": seeded()} {
		t.Run(name, func(t *testing.T) {
			prompt := []int32{5, 6, 7, 100, 11}
			stayed := goOn(t, open(t, o), p, prompt, len(prompt), 41, 64, 0, 1, 2)
			require.Len(t, stayed, 46)
			for _, cut := range []int{6, 16, 17, 40} {
				moved := goOn(t, open(t, o), p, stayed[:cut], len(prompt), 46-cut, 7, 5, 3, 0)
				require.Equal(t, stayed, moved, "moved after %d tokens", cut)
			}
			again := goOn(t, open(t, o), p, prompt, len(prompt), 41, 2, 4, 5, 6)
			require.Equal(t, stayed, again, "in chunks of 2")
			other := goOn(t, open(t, o), p, []int32{5, 6, 8, 100, 11}, len(prompt), 41, 64, 0, 1, 2)
			require.NotEqual(t, stayed[5:], other[5:], "after another prompt")
		})
	}
}

func TestABatchDoesNotChangeTheTokens(t *testing.T) {
	r := open(t, options(t))
	alone := make([][]float32, 3)
	batch := make([]compute.Rows, 3)
	for i := range batch {
		tokens := []int32{int32(i), 9, int32(3 * i)}
		batch[i] = compute.Rows{Region: region(t, r, int32(i)), Tokens: tokens, Output: i != 1}
		l, err := r.Run([]compute.Rows{{Region: region(t, r, 7), Tokens: tokens, Output: true}})
		require.NoError(t, err)
		alone[i] = slices.Clone(l.Row(0))
	}
	l, err := r.Run(batch)
	require.NoError(t, err)
	require.Equal(t, alone[0], l.Row(0))
	require.Equal(t, alone[2], l.Row(1), "the second output is the third sequence's")
	require.NotEqual(t, alone[0], alone[2])
}

// The simulated cache finds faults of the allocator: a sequence reads
// its slabs, whichever sequence wrote them.
func TestAWrongSlabShows(t *testing.T) {
	r := open(t, options(t))
	tokens := make([]int32, device.SlabTokens)
	mine, shared := region(t, r, 0, 1), region(t, r, 0, 2)
	_, err := r.Run([]compute.Rows{{Region: mine, Tokens: tokens}})
	require.NoError(t, err)
	last := func(g compute.Region) []float32 {
		l, err := r.Run([]compute.Rows{{Region: g, Tokens: []int32{1}, Position: len(tokens), Output: true}})
		require.NoError(t, err)
		return slices.Clone(l.Row(0))
	}
	right := last(mine)
	require.Equal(t, right, last(shared), "a shared prefix is read from the shared slab")
	tokens[3] = 1
	_, err = r.Run([]compute.Rows{{Region: region(t, r, 0), Tokens: tokens}})
	require.NoError(t, err)
	require.NotEqual(t, right, last(mine), "somebody else wrote into the slab")
}

func TestBeamsReadThePastThatTheirIndexNames(t *testing.T) {
	r := open(t, options(t))
	prompt := region(t, r, 0)
	_, err := r.Run([]compute.Rows{{Region: prompt, Tokens: []int32{1, 2, 3}}})
	require.NoError(t, err)
	beams := &compute.Beams{Prompt: 3, Responses: []compute.Region{region(t, r, 1), region(t, r, 2)}, Index: [][]int32{{}, {}}}
	step := func(position int, tokens ...int32) [][]float32 {
		l, err := r.Run([]compute.Rows{{Region: prompt, Tokens: tokens, Position: position, Output: true, Beams: beams}})
		require.NoError(t, err)
		return [][]float32{slices.Clone(l.Row(0)), slices.Clone(l.Row(1))}
	}
	plain := func(tokens ...int32) []float32 {
		l, err := r.Run([]compute.Rows{{Region: region(t, r, 5), Tokens: tokens, Output: true}})
		require.NoError(t, err)
		return slices.Clone(l.Row(0))
	}
	step(3, 10, 20)
	beams.Index = [][]int32{{1}, {1}} // both continue from the second
	rows := step(4, 11, 21)
	require.Equal(t, plain(1, 2, 3, 20, 11), rows[0])
	require.Equal(t, plain(1, 2, 3, 20, 21), rows[1])
	beams.Index = [][]int32{{1, 1}, {1, 0}}
	rows = step(5, 12, 22)
	require.Equal(t, plain(1, 2, 3, 20, 21, 12), rows[0])
	require.Equal(t, plain(1, 2, 3, 20, 11, 22), rows[1])
}

func TestAnswersAreOfTheGivenTokensAndEndAtTheirMeanLength(t *testing.T) {
	o := options(t)
	o.Text, o.End, o.AnswerTokens = []int32{17, 18, 19, 100, 101, 102, 103, 104, 105}, []int32{2}, 50
	r := open(t, o)
	g := region(t, r, 0)
	allowed := append([]int32{2}, o.Text...)
	ends, steps := 0, 20000
	for i := range steps {
		l, err := r.Run([]compute.Rows{{Region: g, Tokens: []int32{int32(i % 7), int32(i % 127), int32(i % 113)}, Output: true}})
		require.NoError(t, err)
		c, err := sample.New(seeded(), r.Vocab(), nil).Sample(l.Row(0), i, new(sample.Scratch))
		require.NoError(t, err)
		require.Contains(t, allowed, c.Token)
		if c.Token == 2 {
			ends++
		}
	}
	require.InEpsilon(t, steps/50, ends, 0.25)
}

// TestTheDeviceSaysWhatSamplingItsLogitsGives: the likeliest token, and tokens that it draws.
func TestTheDeviceSaysWhatSamplingItsLogitsGives(t *testing.T) {
	for name, change := range map[string]func(*sim.Options){
		"any": func(*sim.Options) {},
		"given and ends": func(o *sim.Options) {
			o.Text, o.End, o.AnswerTokens = []int32{17, 18, 19}, []int32{2}, 5
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := options(t)
			change(&o)
			r := open(t, o)
			g := region(t, r, 0)
			rng := rand.New(rand.NewPCG(3, 9))
			for i := range int32(2000) {
				l, err := r.Run([]compute.Rows{{Region: g, Tokens: []int32{i % 7, i % 127, i % 113}, Output: true}})
				require.NoError(t, err)
				best, ok := l.(compute.Best).Best(0)
				require.True(t, ok)
				c, err := sample.New(greedy(), r.Vocab(), nil).Sample(l.Row(0), 1, new(sample.Scratch))
				require.NoError(t, err)
				require.Equal(t, c.Token, best)

				p := sample.Params{
					Temperature: 2 * rng.Float32(), TopK: rng.IntN(2) * rng.IntN(12), TopP: float32(rng.IntN(2)) * rng.Float32(),
					MinP: float32(rng.IntN(2)) * 0.3 * rng.Float32(), Seed: rng.Uint64(),
				}
				s := sample.New(p, r.Vocab(), nil)
				d, ok := s.Draw(1)
				require.True(t, ok)
				var drawn [1]int32
				require.NoError(t, l.(compute.Draws).Draw([]sample.Draw{d}, drawn[:]))
				c, err = s.Sample(l.Row(0), 1, new(sample.Scratch))
				require.NoError(t, err)
				require.Equal(t, c.Token, drawn[0], "%+v", p)
			}
		})
	}
}

func TestEveryTokenHasALogprobAndCanBeAskedFor(t *testing.T) {
	r := open(t, options(t))
	p := greedy()
	p.Logprobs, p.TopLogprobs, p.LogitBias = true, 20, map[int32]float32{3: 100}
	l, err := r.Run([]compute.Rows{{Region: region(t, r, 0), Tokens: []int32{1}, Output: true}})
	require.NoError(t, err)
	for _, v := range l.Row(0) {
		require.False(t, math.IsInf(float64(v), 0) || math.IsNaN(float64(v)))
	}
	c, err := sample.New(p, r.Vocab(), nil).Sample(l.Row(0), 1, new(sample.Scratch))
	require.NoError(t, err)
	require.EqualValues(t, 3, c.Token)
	require.Len(t, c.Top, 20)
	require.Less(t, c.Logprob, float32(0))
}

func TestARowThatSamplingOverwroteIsFreshInTheNextStep(t *testing.T) {
	r := open(t, options(t))
	run := func() []float32 {
		l, err := r.Run([]compute.Rows{{Region: region(t, r, 0), Tokens: []int32{1}, Output: true}})
		require.NoError(t, err)
		return l.Row(0)
	}
	first := slices.Clone(run())
	clear(run())
	require.Equal(t, first, run())
}

func TestAStepThatADeviceWouldRefuseIsAnError(t *testing.T) {
	r := open(t, options(t))
	g := region(t, r, 0)
	for what, batch := range map[string][]compute.Rows{
		"no tokens":                 {{Region: g}},
		"token 999":                 {{Region: g, Tokens: []int32{999}}},
		"position 16, slabs 0 to 0": {{Region: g, Tokens: make([]int32, 17)}},
		"over 64 rows":              {{Region: g, Tokens: make([]int32, 65)}},
		"a region of type":          {{Tokens: []int32{1}}},
		"1 responses and 0 indices": {{Region: g, Tokens: []int32{1}, Position: 1,
			Beams: &compute.Beams{Prompt: 1, Responses: []compute.Region{g}}}},
	} {
		_, err := r.Run(batch)
		require.ErrorIs(t, err, device.ErrInvalid, what)
		require.ErrorContains(t, err, what)
	}
	require.ErrorIs(t, g.Append([]int32{1}), device.ErrInvalid)
	wrong, err := r.NewRegion(1)
	require.NoError(t, err)
	require.ErrorIs(t, wrong.Append([]int32{int32(r.Slabs())}), device.ErrInvalid)
}

func TestThePoolIsWhatTheWeightsLeave(t *testing.T) {
	o := options(t)
	o.MaxSequences = 1 << 20
	slab, weights := float64(sim.SlabBytes(o.Program)), float64(sim.WeightBytes(o.Program))
	o.Device.Memory = (weights + 10.5*slab) / 0.9 / 1e9
	require.Equal(t, 10, open(t, o).Slabs())
	o.KVMemory = int64(3 * slab)
	require.Equal(t, 3, open(t, o).Slabs())
	o.KVMemory, o.Device.Memory = 0, weights/1e9
	_, err := sim.Open(o)
	require.ErrorContains(t, err, "cpu has")
	o.Device.Memory, o.MaxSequences = 0, 2
	require.Equal(t, 2*device.Slabs(o.Program.MaxPositions), open(t, o).Slabs())
}

// TestAStateIsThatOfTheTokensBeforeARow: a step refuses another one, and takes a copy.
func TestAStateIsThatOfTheTokensBeforeARow(t *testing.T) {
	o := options(t)
	o.StateSlabs = 2
	r := open(t, o)
	require.Equal(t, compute.StateKV(2, o.MaxRows, false), r.KV())
	withState := func(slabs ...int32) compute.Region {
		g, err := r.NewRegion(40)
		require.NoError(t, err)
		require.NoError(t, g.Append(slabs))
		return g
	}
	rows := func(g compute.Region, at int, tokens ...int32) error {
		_, err := r.Run([]compute.Rows{{Region: g, Tokens: tokens, Position: at, Output: true}})
		return err
	}
	prompt := []int32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}
	one := withState(0, 1, 2, 3)
	require.NoError(t, rows(one, 0, prompt...))
	require.NoError(t, r.CopySlab(0, 8, device.SlabTokens))
	require.NoError(t, r.CopySlab(1, 9, device.SlabTokens))
	require.NoError(t, rows(one, 16, 17))
	require.ErrorContains(t, rows(one, 16, 17), "slab 0 of the state is not of the tokens up to position 15")
	two := withState(4, 5, 2, 6)
	require.ErrorContains(t, rows(two, 16, 18), "slab 0 of the state")
	require.NoError(t, r.CopySlab(8, 4, device.SlabTokens))
	require.ErrorContains(t, rows(two, 16, 18), "slab 1 of the state")
	require.NoError(t, r.CopySlab(9, 5, device.SlabTokens))
	require.NoError(t, rows(two, 16, 18))
	require.NoError(t, rows(two, 17, 19))
	require.NoError(t, rows(two, 0, 20), "the first token needs none")
}
