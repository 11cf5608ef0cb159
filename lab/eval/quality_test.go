package eval

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

// kept is a type of weights or of the KV cache, and how much the perplexity of the demo model may rise with it, as a ratio.
type kept struct {
	name  string
	set   func(*compute.Options) error
	limit float64
}

func weightsOf(name string, limit float64) kept {
	return kept{name, func(o *compute.Options) (err error) {
		o.Weights, err = model.ParseWeights(name)
		return err
	}, limit}
}

func cacheOf(name string, limit float64) kept {
	return kept{name, func(o *compute.Options) (err error) {
		o.KV, err = model.ParseKVType(name)
		return err
	}, limit}
}

// TestQuantizedWeightsKeepTheirQuality: the perplexity rises by at most 1% with int8 weights, 8% with int4 in groups of 32, 1.5% with fp8
// and 8% with nf4.
func TestQuantizedWeightsKeepTheirQuality(t *testing.T) {
	requireQuality(t, weightsOf("int8", 1.01), weightsOf("int4", 1.08), weightsOf("fp8", 1.015), weightsOf("nf4", 1.08))
}

// TestKVCachesOfCodesKeepTheirQuality: the perplexity rises by at most 0.5% with keys and values of int8 and 2% with int4.
func TestKVCachesOfCodesKeepTheirQuality(t *testing.T) {
	requireQuality(t, cacheOf("int8", 1.005), cacheOf("int4", 1.02))
}

// requireQuality measures on the text of testdata/eval. In short mode it does so on the first sixth, with few tokens in two windows, and
// allows half as much again, because the errors of fewer tokens cancel less.
func requireQuality(t *testing.T, all ...kept) {
	t.Helper()
	plain := compute.Options{Dir: demo, Device: device.Options{Threads: 1}} // other packages are tested beside this one
	runs := []Run{{Name: "16 bits", Model: plain}}
	for _, k := range all {
		o := plain
		require.NoError(t, k.set(&o))
		runs = append(runs, Run{Name: k.name, Model: o})
	}
	raw, err := os.ReadFile("../../testdata/eval/tiny-chat.txt")
	require.NoError(t, err)
	windows, slack := Windows{Context: 512, Stride: 256}, 1.0
	if testing.Short() {
		windows.Stride, slack = 448, 1.5
		raw = []byte(strings.ToValidUTF8(string(raw[:len(raw)/6]), ""))
	}
	text := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(text, raw, 0o600))
	r, err := Evaluate(zerolog.Nop(), Options{
		Text: text, Windows: windows,
		Greedy: Continuations{Prompts: 4, PromptTokens: 64, Tokens: 32}, Runs: runs,
	})
	require.NoError(t, err)
	require.Len(t, r.Results, len(runs))
	for i, k := range all {
		result := r.Results[i+1]
		t.Logf("%s: perplexity %.4f, %.4f of the first", result.Name, result.Perplexity, result.Relative)
		require.LessOrEqual(t, result.Relative, 1+slack*(k.limit-1), k.name)
		require.NotEqual(t, r.Results[0].Nats, result.Nats, "%s had no effect", k.name)
	}
}
