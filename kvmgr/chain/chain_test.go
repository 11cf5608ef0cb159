package chain

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func numbered(n int) []int32 {
	tokens := make([]int32, n)
	for i := range tokens {
		tokens[i] = int32(i)
	}
	return tokens
}

func TestAHashCoversTheSpaceAndAllTokensBefore(t *testing.T) {
	tokens := numbered(70)
	list := Of("a", 16, tokens)
	require.Len(t, list, 4, "whole slabs only")
	require.Equal(t, list[:2], Of("a", 16, tokens[:32]), "what follows does not matter")
	seen := map[Hash]bool{}
	for _, other := range [][]Hash{list, Of("b", 16, tokens), Of("", 16, tokens), Of("a", 32, tokens)} {
		for _, h := range other {
			require.False(t, seen[h])
			seen[h] = true
		}
	}
	for i := range 64 {
		changed := numbered(70)
		changed[i]++
		require.Equal(t, i/16, Common(list, Of("a", 16, changed)), "token %d", i)
	}
	require.Equal(t, list[0], Root("a").Next(tokens[:16]))
}

func TestShortPromptsHaveNoHash(t *testing.T) {
	require.Empty(t, Of("a", 16, numbered(15)))
	require.Empty(t, Of("a", 16, nil))
	require.Empty(t, Of("a", 0, numbered(15)))
}

func TestCommonIsTheLengthOfTheEqualBeginning(t *testing.T) {
	list := Of("a", 4, numbered(400))
	for n := range len(list) + 1 {
		require.Equal(t, n, Common(list, list[:n]))
		require.Equal(t, n, Common(append(list[:n:n], Of("b", 4, numbered(80))...), list))
	}
}

// BenchmarkOf hashes a prompt of 100,000 tokens.
func BenchmarkOf(b *testing.B) {
	tokens := numbered(100_000)
	b.ReportAllocs()
	for b.Loop() {
		Of("tenant", 16, tokens)
	}
}
