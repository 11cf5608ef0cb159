package ollama

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// described serves one model with a description and one of a worker of an earlier version.
func described() []api.Model {
	return []api.Model{
		{ID: "org/coder", WeightFacts: api.WeightFacts{Created: time.Unix(1e9, 0), ContextLength: 4096, Description: api.Description{
			Architecture: "qwen3", Format: "gguf", Weights: "int8+attn.out=bf16", Digest: strings.Repeat("ab", 32), Parameters: 494_032_768,
			Bytes: 5 << 30, Layers: 24, Heads: 14, KVHeads: 2, Hidden: 896, FeedForward: 4864, Vocab: 151936,
		}}, TextFacts: api.TextFacts{Format: "hermes+think", Infill: []string{"<P>", "<S>", "<M>"}}},
		{ID: "old", WeightFacts: api.WeightFacts{ContextLength: 512}},
	}
}

func TestModelsHaveDigestsSizesAndFamilies(t *testing.T) {
	for _, list := range []func() ([]byte, error){
		func() ([]byte, error) { return Tags(nil, described()) },
		func() ([]byte, error) { return Running(nil, described()) },
	} {
		body, err := list()
		require.NoError(t, err)
		var lib Library
		require.NoError(t, json.Unmarshal(body, &lib))
		require.Len(t, lib.Models, 2)
		m := lib.Models[0]
		require.Equal(t, strings.Repeat("ab", 32), m.Digest)
		require.EqualValues(t, 5<<30, m.Size)
		require.Equal(t, Details{Format: "gguf", Family: "qwen3", Families: []string{"qwen3"}, ParameterSize: "494.03M",
			Quantization: "INT8"}, m.Details)
		require.Len(t, lib.Models[1].Digest, 64, "clients cut it to 12 characters")
		require.NotEqual(t, m.Digest, lib.Models[1].Digest, "and use it as a key")
		require.Contains(t, string(body), `"families":[]`)
	}
}

func TestACardHasWhatClientsLookUp(t *testing.T) {
	show := func(name string) (card Card) {
		body, err := Show([]byte(`{"model":"`+name+`"}`), described())
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, &card))
		return card
	}
	c := show("org/coder:latest")
	arch := c.ModelInfo["general.architecture"].(string)
	require.Equal(t, "qwen3", arch)
	require.EqualValues(t, 4096, c.ModelInfo[arch+".context_length"], "as VS Code reads it")
	require.Equal(t, "coder", c.ModelInfo["general.basename"])
	for name, want := range map[string]float64{"general.parameter_count": 494_032_768, "qwen3.block_count": 24,
		"qwen3.embedding_length": 896, "qwen3.attention.head_count": 14,
		"qwen3.attention.head_count_kv": 2, "qwen3.feed_forward_length": 4864, "qwen3.vocab_size": 151936} {
		require.Equal(t, want, c.ModelInfo[name], name)
	}
	require.Equal(t, []string{"completion", "insert", "tools", "thinking"}, c.Capabilities)
	require.Contains(t, c.Template, "<P>{{ .Prompt }}<S>{{ .Suffix }}<M>", "Continue reads it for .Suffix")
	require.Contains(t, c.Template, ".Tools")
	require.Regexp(t, `(?m)^num_ctx +4096$`, c.Parameters)
	require.Regexp(t, `(?m)^top_p +1$`, c.Parameters)
	require.Equal(t, "FROM org/coder\n", c.Modelfile)
	c = show("old")
	require.EqualValues(t, 512, c.ModelInfo[c.ModelInfo["general.architecture"].(string)+".context_length"])
	require.NotContains(t, c.Template, ".Suffix")
	for _, body := range []string{`{}`, `{"model":""}`, `{"name":null}`} {
		_, err := Show([]byte(body), described())
		require.Equal(t, api.CodeInvalid, api.AsError(err).Code, body)
	}
	_, err := Show([]byte(`{"model":"`+strings.Repeat("x", 1<<20)+`"}`), described())
	require.Equal(t, `model "`+strings.Repeat("x", 64)+`"... not found`, err.Error())
}

func TestParametersAreCountedAsOllamaDoes(t *testing.T) {
	for n, want := range map[int64]string{0: "", 999: "999", 14_700: "14.70K", 494_032_768: "494.03M", 8_030_261_248: "8.0B",
		1_000_000: "1.00M"} {
		require.Equal(t, want, amount(n))
	}
}
