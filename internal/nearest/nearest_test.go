package nearest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDistanceIsTheNumberOfEdits(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3},
		{"flaw", "lawn", 2}, {"kv_memory", "kv-memory", 1}, {"ab", "ba", 2},
	} {
		require.Equal(t, tt.want, distance(tt.a, tt.b), "%s -> %s", tt.a, tt.b)
	}
}

func TestNearerNamesComeFirst(t *testing.T) {
	known := []string{"model", "nats-listen", "listen", "listed"}
	require.Equal(t, []string{"listen", "listed", "model"}, Names("lisen", known, 3))
	require.Equal(t, []string{"listed", "listen"}, Names("liste", known, 2), "the alphabet decides")
	require.Len(t, Names("x", known, 9), 4)
	require.Empty(t, Names("x", nil, 3))
	require.Equal(t, "model", known[0], "it stays in its order")
}
