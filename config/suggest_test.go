package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSuggestTakesTheNearestName(t *testing.T) {
	known := map[string]bool{"listen": true, "nats-listen": true, "model": true}
	require.Equal(t, "; did you mean listen?", suggest("listne", known))
	require.Equal(t, "; did you mean nats-listen?", suggest("nats_listen", known))
	require.Empty(t, suggest("x", map[string]bool{}))
}
