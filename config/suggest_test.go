package config

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

func TestSuggestTakesTheNearestName(t *testing.T) {
	known := map[string]bool{"listen": true, "nats-listen": true, "model": true}
	require.Equal(t, "; did you mean listen?", suggest("listne", known))
	require.Equal(t, "; did you mean nats-listen?", suggest("nats_listen", known))
	require.Empty(t, suggest("x", map[string]bool{}))
}
