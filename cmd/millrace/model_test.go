package main

import (
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unicode"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models"
)

// simulated is an engine on the simulated device, which takes no time.
func simulated(t *testing.T, dir string) *engine {
	t.Helper()
	s := &config.Serve{Model: dir, MaxBatchTokens: 32, MaxBatchSize: 4, MaxWaiting: 4}
	s.Backend, s.DeviceName = "sim", "flex-170"
	e, err := openEngine(s, nil, nil, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.shutdown(time.Second)) })
	return e
}

func answerOf(t *testing.T, e *engine, prompt string, p sample.Params) string {
	t.Helper()
	r := &api.Request{ID: t.Name(), Model: e.modelID, N: 1, Prompt: prompt, MaxTokens: 60, Sampling: p, TopLogprobs: -1, IgnoreEOS: true, Arrival: time.Now()}
	a, err := readAnswer(t.Context(), io.Discard, e, r, true)
	require.NoError(t, err)
	require.Len(t, a.Tokens, 60)
	return a.Text
}

func TestTheSimulatedDeviceServesAModelWithoutWeights(t *testing.T) {
	demo, err := models.Demo()
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), models.DemoName)
	require.NoError(t, os.Mkdir(dir, 0o755))
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json"} {
		text, err := os.ReadFile(filepath.Join(demo, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	whole, bare := simulated(t, demo), simulated(t, dir)
	p := sample.Default()
	p.Seed = 7
	text := answerOf(t, whole, "Once upon a time", p)
	require.Equal(t, text, answerOf(t, bare, "Once upon a time", p), "weights do not matter")
	require.NotEqual(t, text, answerOf(t, whole, "Twice upon a time", p))
	for _, r := range text {
		require.True(t, unicode.IsPrint(r), "%q", text)
	}
}
