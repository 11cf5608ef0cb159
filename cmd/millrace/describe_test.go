package main

import (
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models"
)

// TestADescriptionIsThatOfTheFiles: the digest is the same in each process, and another one for other weights.
func TestADescriptionIsThatOfTheFiles(t *testing.T) {
	dir, err := models.Demo()
	require.NoError(t, err)
	describe := func(weights string, device string) api.Description {
		m, err := newModel(&config.Serve{Model: dir, Device: config.Device{Backend: device, Weights: weights, KVType: "auto", Packed: "off",
			DType: "auto"}, KVMemory: 16 << 20,
			MaxBatchTokens: 64, MaxBatchSize: 4}, nil, zerolog.Nop())
		defer m.close()
		require.NoError(t, err)
		return m.describe(weights)
	}
	d := describe("bf16", "cpu")
	require.Regexp(t, "^[0-9a-f]{64}$", d.Digest)
	require.EqualValues(t, 7344384, d.Parameters)
	require.Equal(t, "llama", d.Architecture)
	require.Equal(t, "safetensors", d.Format)
	require.Equal(t, 8, d.Layers)
	require.Positive(t, d.Bytes)
	require.Equal(t, d, describe("bf16", "cpu"))
	require.Equal(t, d.Digest, describe("bf16", "ref").Digest, "what computes it makes no other model")
	require.NotEqual(t, d.Digest, describe("int8", "cpu").Digest)
}
