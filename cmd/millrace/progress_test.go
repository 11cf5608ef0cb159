package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestProgressOfLoadingNeverFalls(t *testing.T) {
	p := loadProgress{total: 200, begin: 1000}
	for _, step := range [][2]int64{{900, 0}, {1000, 0}, {1100, 50}, {1060, 50}, {1151, 75}, {5000, 99}} {
		require.EqualValues(t, step[1], p.percent(step[0]))
	}
	require.Zero(t, (&loadProgress{}).percent(7), "of an unknown size")
}

func TestProgressIsLoggedAtEachTick(t *testing.T) {
	var log bytes.Buffer
	ticks := make(chan time.Time)
	sizes := []int64{10, 10, 60}
	stop := reportLoading(loadProgress{total: 100}, ticks, func() int64 {
		size := sizes[0]
		sizes = sizes[1:]
		return size
	}, zerolog.New(&log).Level(zerolog.InfoLevel).Hook(onlyLoading{}))
	for range 3 {
		ticks <- time.Time{}
	}
	stop()
	require.Equal(t,
		"{\"level\":\"info\",\"percent\":10,\"message\":\"loading the model\"}\n{\"level\":\"info\",\"percent\":60,\"message\":\"loading the model\"}\n", log.String())

	quiet := zerolog.New(&log).Hook(onlyLoading{})
	quiet.Info().Msg("ready")
	quiet.Warn().Msg("careful")
	require.NotContains(t, log.String(), "ready")
	require.Contains(t, log.String(), "careful")
}

func TestTheSizeOfAModelIsThatOfItsWeights(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int{"model-1.safetensors": 10, "model-2.safetensors": 5, "tokenizer.json": 100, "m.gguf": 7} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.Repeat("x", size)), 0o600))
	}
	require.EqualValues(t, 15, modelBytes(dir))
	require.EqualValues(t, 7, modelBytes(filepath.Join(dir, "m.gguf")))
	require.Zero(t, modelBytes("/nonexistent"))
	require.Positive(t, residentBytes())
}
