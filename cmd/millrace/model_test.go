package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/models"
)

// deviceFile writes a description of a simulated device.
func deviceFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "device.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// simulated is an engine on the simulated device, which takes no time.
func simulated(t *testing.T, dir string) *engine {
	t.Helper()
	s := &config.Serve{Model: dir, MaxBatchTokens: 32, MaxBatchSize: 4, MaxWaiting: 4}
	s.Backend, s.DeviceName = "sim", deviceFile(t, `{"base": "flex-170", "speed": 0, "answer_tokens": 0}`)
	e, err := openEngine(s, beginLoading(s, zerolog.Nop()), nil, nil, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.shutdown(time.Second)) })
	return e
}

func TestTheSimulatedDeviceHasNoHeavyTokens(t *testing.T) {
	demo, err := models.Demo()
	require.NoError(t, err)
	s := &config.Serve{Model: demo, MaxBatchTokens: 32, MaxBatchSize: 4, MaxWaiting: 4}
	s.Backend, s.DeviceName, s.KVEviction = "sim", deviceFile(t, `{"base": "flex-170", "speed": 0}`), "h2o"
	_, err = openEngine(s, beginLoading(s, zerolog.Nop()), nil, nil, zerolog.Nop())
	require.ErrorContains(t, err, "--kv-eviction: found h2o with --backend sim, expected another value")
}

// TestHeavyTokensHaveNoDrafts: a text that repeats would have draft tokens, and a rejected one would run its position twice.
func TestHeavyTokensHaveNoDrafts(t *testing.T) {
	demo, err := models.Demo()
	require.NoError(t, err)
	s := &config.Serve{Model: demo, MaxBatchTokens: 32, MaxBatchSize: 4, MaxWaiting: 4, DraftRows: 8}
	s.Backend, s.KVEviction, s.KVMemory, s.Packed, s.Threads = "cpu", "h2o:heavy=40,recent=20", 4<<20, "off", 1
	e, err := openEngine(s, beginLoading(s, zerolog.Nop()), nil, nil, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.shutdown(time.Second)) })
	answerOf(t, e, strings.Repeat("The badger took the short path. ", 12), sample.Default())
}

func answerOf(t *testing.T, e *engine, prompt string, p sample.Params) string {
	t.Helper()
	r := &api.Request{ID: t.Name(), Model: e.modelID, N: 1, Prompt: prompt, MaxTokens: 60, Sampling: p, TopLogprobs: -1, IgnoreEOS: true,
		Arrival: time.Now()}
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

// computing is an engine on the cpu backend.
func computing(t *testing.T, dir string, change func(*config.Serve)) *engine {
	t.Helper()
	s := &config.Serve{Model: dir, ServedModelName: "m", MaxBatchTokens: 32, MaxBatchSize: 2, MaxWaiting: 4}
	s.KVMemory = 8 << 20
	change(s)
	e, err := openEngine(s, beginLoading(s, zerolog.Nop()), nil, nil, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.shutdown(time.Second)) })
	return e
}

// TestABeatTellsProcessesApartThatAnswerOtherwise: by weights, types and kernels in one digest,
// by the template in the other.
func TestABeatTellsProcessesApartThatAnswerOtherwise(t *testing.T) {
	demo, err := models.Demo()
	require.NoError(t, err)
	same := func(*config.Serve) {}
	first := computing(t, demo, same).Member()
	require.Len(t, first.Worker.Numerics, 32)
	require.Len(t, first.Text, 32)
	require.Contains(t, first.Worker.Class, "cpu ")

	again := computing(t, demo, func(s *config.Serve) {
		s.Threads, s.MaxBatchTokens, s.MaxBatchSize, s.KVMemory = 1, 200, 8, 16<<20
	}).Member()
	require.Equal(t, first.Worker.Numerics, again.Worker.Numerics, "sizes and threads make no difference")
	require.Equal(t, first.Text, again.Text)

	for name, change := range map[string]func(*config.Serve){
		"weights": func(s *config.Serve) { s.Weights = "int8" },
		"KV type": func(s *config.Serve) { s.KVType = "int8" },
		"class":   func(s *config.Serve) { s.ISA = "portable" },
		"sim":     func(s *config.Serve) { s.Backend = "sim" },
	} {
		other := computing(t, demo, change).Member()
		require.NotEqual(t, first.Worker.Numerics, other.Worker.Numerics, name)
		require.Equal(t, first.Text, other.Text, name)
	}

	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(demo)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte("{{ messages[0].content }}"), 0o600))
	template := computing(t, dir, same).Member()
	require.Equal(t, first.Worker.Numerics, template.Worker.Numerics)
	require.NotEqual(t, first.Text, template.Text)
}

// TestWithADiskAllLayersShareSlabs of a model of which two of three layers have a window.
func TestWithADiskAllLayersShareSlabs(t *testing.T) {
	for _, backend := range []string{"cpu", "sim"} {
		for disk, groups := range map[string]kvmgr.Counts{"": {Full: 1, Windowed: 2}, t.TempDir(): {Full: 1}} {
			s := &config.Serve{Model: "../../testdata/models/qwen2-window", KVDisk: disk, MaxBatchTokens: 32, MaxBatchSize: 4,
				KVMemory: 1 << 20}
			s.Backend, s.Packed = backend, "off"
			if backend == "sim" {
				s.DeviceName = deviceFile(t, `{"base": "flex-170", "speed": 0, "answer_tokens": 0}`)
			}
			m, err := newModel(s, nil, zerolog.Nop())
			t.Cleanup(m.close)
			require.NoError(t, err)
			require.Equal(t, groups, m.KV().Counts(), "%s, disk %q", backend, disk)
			require.Equal(t, groups.Windowed > 0, schedConfig(s, m.KV(), m.program.MaxPositions).KV.Trims())
		}
	}
}

// TestTheFirstLayersOfTheSettingMakeDraftTokens, unless there are none; where they cannot, the model is refused.
func TestTheFirstLayersOfTheSettingMakeDraftTokens(t *testing.T) {
	serve := func(rows int, disk string) *config.Serve {
		s := &config.Serve{Model: "../../testdata/models/llama-gqa", KVDisk: disk, DraftRows: rows, DraftLayers: 1, MaxBatchTokens: 32,
			MaxBatchSize: 4, KVMemory: 1 << 20}
		s.Backend, s.Packed = "cpu", "off"
		return s
	}
	for rows, groups := range map[int]int{0: 1, 8: 2} {
		m, err := newModel(serve(rows, ""), nil, zerolog.Nop())
		t.Cleanup(m.close)
		require.NoError(t, err)
		require.Equal(t, kvmgr.Counts{Full: groups}, m.KV().Counts())
		require.Equal(t, rows > 0, m.Runner.(*compute.Model).Drafter() != nil)
	}
	m, err := newModel(serve(8, t.TempDir()), nil, zerolog.Nop())
	t.Cleanup(m.close)
	require.ErrorContains(t, err, "found a KV cache of one group of layers, as a disk has it")
	s := serve(8, "")
	s.Backend, s.DeviceName = "sim", deviceFile(t, `{"base": "flex-170", "speed": 0}`)
	m, err = newModel(s, nil, zerolog.Nop())
	t.Cleanup(m.close)
	require.ErrorContains(t, err, "--draft-layers: found 1 with --backend sim, expected 0")
}
