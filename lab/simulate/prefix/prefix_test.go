package prefix_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/lab/simulate/prefix"
)

// conversations returns prompts of conversations that take turns, each with one of a few system prompts, and of documents
// that are read once.
func conversations(seed uint64, prompts int) (t prefix.Trace) {
	rng := rand.New(rand.NewPCG(seed, 0))
	last := int32(0)
	extend := func(prompt []int32, blocks int) []int32 {
		prompt = append([]int32(nil), prompt...)
		for range blocks {
			last++
			prompt = append(prompt, last)
		}
		return prompt
	}
	var systems [][]int32
	for range 20 {
		systems = append(systems, extend(nil, 5))
	}
	open := make([][]int32, 10)
	for range prompts {
		i := rng.IntN(len(open))
		switch {
		case rng.IntN(2) == 0:
			t = append(t, extend(nil, 1+rng.IntN(10)))
			continue
		case open[i] == nil || rng.IntN(4) == 0:
			open[i] = systems[rng.IntN(len(systems))]
		}
		open[i] = extend(open[i], 1+rng.IntN(3))
		t = append(t, open[i])
	}
	return t
}

func TestACacheThatHoldsAllHitsWhatAnUnlimitedOneHits(t *testing.T) {
	trace := conversations(1, 2000)
	seen, hits, all := map[int32]bool{}, 0, 0
	for _, prompt := range trace {
		for _, block := range prompt {
			if all++; seen[block] {
				hits++
			}
			seen[block] = true
		}
	}
	s, err := trace.Compare([]int{2 * len(seen), len(seen) + 1})
	require.NoError(t, err)
	require.Equal(t, []int{2000, all, len(seen)}, []int{s.Prompts, s.Blocks, s.Distinct})
	want := float64(hits) / float64(all)
	require.InDelta(t, want, s.Unlimited, 1e-9)
	require.Equal(t, len(seen)+1, s.Sizes[0].Blocks, "in ascending order")
	for _, z := range s.Sizes {
		require.Equal(t, []float64{want, want, want}, []float64{z.LRU, z.Server, z.Oracle})
	}
}

func TestAServerHitsMoreThanLRUAndLessThanTheOracle(t *testing.T) {
	for seed := range uint64(5) {
		s, err := conversations(seed, 3000).Compare([]int{200, 400, 800})
		require.NoError(t, err)
		for _, z := range s.Sizes {
			require.Greater(t, z.Server, z.LRU, "%+v", z)
			require.Greater(t, z.Oracle, z.Server, "%+v", z)
			require.LessOrEqual(t, z.Oracle, s.Unlimited, "%+v", z)
		}
	}
}

func TestTheOracleKeepsTheBlocksOfTheNextPrompts(t *testing.T) {
	a, b, c := []int32{1}, []int32{2}, []int32{3}
	trace := prefix.Trace{a, b, c, a, b, c, a, b, c}
	s, err := trace.Compare([]int{2})
	require.NoError(t, err)
	require.Zero(t, s.Sizes[0].LRU, "each block was evicted just before")
	require.InDelta(t, 3.0/9, s.Sizes[0].Oracle, 1e-9)
}

func TestAPromptLargerThanTheCacheHitsNothing(t *testing.T) {
	long := []int32{1, 2, 3, 4}
	ratio, err := prefix.Trace{{9}, long, long, {9}}.Replay(4, kvmgr.ReusedLRU)
	require.NoError(t, err)
	require.InDelta(t, 1.0/10, ratio, 1e-9)
}

func TestReadTakesJSONLines(t *testing.T) {
	lines := `{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0, 1]}` + "\n" + `{"hash_ids": [0]}`
	for _, text := range []string{lines, lines + "\n"} {
		trace, err := prefix.Read(strings.NewReader(text))
		require.NoError(t, err)
		require.Equal(t, prefix.Trace{{0, 1}, {0}}, trace)
	}
	for text, says := range map[string]string{
		"": "no lines", lines + "\n{}": "line 3 has no hash_ids", "{": "line 1", `{"hash_ids": [4294967296]}`: "line 1",
		lines + "\n\n": "line 3",
	} {
		_, err := prefix.Read(strings.NewReader(text))
		require.ErrorIs(t, err, prefix.ErrTrace)
		require.ErrorContains(t, err, says)
	}
}

func TestAPictureHasALineForEachOrder(t *testing.T) {
	s, err := conversations(1, 500).Compare([]int{50, 100})
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "hits.svg")
	require.NoError(t, s.Draw(path))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 8, strings.Count(string(text), "<circle"), "four lines of two sizes")
	require.Error(t, s.Draw(filepath.Join(path, "no folder")))

	var table strings.Builder
	require.NoError(t, s.Print(&table))
	z := s.Sizes[1]
	require.Contains(t, table.String(), fmt.Sprintf("%.2f%%", 100*(z.Oracle-z.Server)))
}
