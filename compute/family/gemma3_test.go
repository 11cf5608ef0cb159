package family

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// gemmaJSON is a valid configuration of 7 layers.
func gemmaJSON() object {
	return object{
		"architectures": []string{"Gemma3ForCausalLM"}, "vocab_size": 131, "hidden_size": 48, "intermediate_size": 104,
		"num_hidden_layers": 7, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "sliding_window": 9,
		"max_position_embeddings": 100,
	}
}

func TestGemmaBothSpellingsSayTheSame(t *testing.T) {
	four, err := parse(t, with(gemmaJSON(), object{
		"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": object{"rope_type": "linear", "factor": 8},
		"sliding_window_pattern": 3,
	}))
	require.NoError(t, err)
	five, err := parse(t, with(gemmaJSON(), object{
		"rope_parameters": object{
			"full_attention":    object{"rope_theta": 2e6, "rope_type": "linear", "factor": 8},
			"sliding_attention": object{"rope_theta": 2e4, "rope_type": "default"},
		},
		"layer_types": []string{sliding, sliding, full, sliding, sliding, full, sliding},
	}))
	require.NoError(t, err)
	require.Equal(t, five, four)
	require.Equal(t, Rope{Type: "linear", Theta: 2e6, Factor: 8, OriginalPositions: 100}, four.Rope)
	require.Equal(t, []int{9, 9, 0, 9, 9, 0, 9}, four.Windows)
	require.Equal(t, 100, four.MaxPositions, "the factor is in it")
	require.Equal(t, Rope{Type: "default", Theta: 2e4}, *four.plan.(llamaPlan).local)
}

// TestGemmaLeavesOutDefaults: configurations of models with images have text_config with few members.
func TestGemmaLeavesOutDefaults(t *testing.T) {
	c, err := parse(t, object{
		"architectures": []string{"Gemma3ForConditionalGeneration"}, "eos_token_id": []int{1, 106}, "torch_dtype": "bfloat16",
		"text_config": object{"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
			"rope_scaling": object{"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, "eos_token_id": 1},
	})
	require.NoError(t, err)
	require.Equal(t, "Gemma3ForCausalLM", c.Architecture)
	require.Equal(t, "bfloat16", c.DType)
	require.Equal(t, []int32{1, 106}, c.Generation.EOS)
	require.Equal(t, []int{262208, 2560, 34, 8, 4, 256, 10240, 131072},
		[]int{c.Vocab, c.Hidden, c.Layers, c.Heads, c.KVHeads, c.HeadDim, c.Intermediate, c.MaxPositions})
	require.Equal(t, []int{1024, 1024, 1024, 1024, 1024, 0, 1024}, c.Windows[:7])
	require.InDelta(t, 1e6, c.Rope.Theta, 0)
	require.True(t, c.TieEmbeddings && c.QKNorm && !c.QKVBias)
	p := c.plan.(llamaPlan)
	require.InDelta(t, 1.0/16, p.attentionScale, 0)
	require.InDelta(t, 10000, p.local.Theta, 0)
}

func TestGemmaFaultsNameFieldFoundAndExpected(t *testing.T) {
	for want, change := range map[string]object{
		"final_logit_softcapping: found 30, expected null": {"final_logit_softcapping": 30},
		"use_bidirectional_attention: found true, expected false, with a head for classes": {"use_bidirectional_attention": true,
			"architectures": []string{"Gemma3TextForSequenceClassification"}},
		"attn_logit_softcapping: found 50, expected null":                                 {"attn_logit_softcapping": 50},
		"sliding_window_pattern: found 0, expected an integer in 1..":                     {"sliding_window_pattern": 0},
		"hidden_activation: found \"mish\", expected silu":                                {"hidden_activation": "mish"},
		"query_pre_attn_scalar: found 0, expected a number in 1..":                        {"query_pre_attn_scalar": 0},
		"rope_parameters.sliding_attention.rope_type: found \"linear\", expected default": {"rope_parameters": object{sliding: object{"rope_type": "linear"}}},
		"rope_parameters.sliding_attention: found 4, expected an object":                  {"rope_parameters": object{sliding: 4}},
		"rope_local_base_freq: found 1, expected a number in 2..":                         {"rope_local_base_freq": 1},
		"text_config.num_key_value_heads: found 4, expected a divisor of the 6 attention": {"num_key_value_heads": nil,
			"text_config": object{"num_key_value_heads": 4}},
		"text_config: found 4, expected an object":                           {"text_config": 4},
		"partial_rotary_factor: found 0.5, expected 1 for this architecture": {"partial_rotary_factor": 0.5},
		"rope_parameters.full_attention: found 7, expected an object": {"rope_parameters": object{sliding: object{},
			full: 7}},
		"layer_types: found 1 entries, expected one for each of 7 layers":                {"layer_types": []string{full}},
		"rope_parameters.full_attention.rope_type: found \"ntk\", expected default, dyn": {"rope_parameters": object{full: object{"rope_type": "ntk"}}},
	} {
		_, err := parse(t, with(gemmaJSON(), change))
		require.ErrorContains(t, err, "config.json: "+want)
	}
}

// TestGemmaIsFoundUnderThePrefixesOfModelsThatSee, as different versions of transformers write them.
func TestGemmaIsFoundUnderThePrefixesOfModelsThatSee(t *testing.T) {
	c, err := LoadConfig("../../testdata/models/gemma3")
	require.NoError(t, err)
	w, err := OpenWeights(c)
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Close()) }()
	for _, prefix := range []string{"model.", "language_model.model.", "model.language_model.", "language_model.", ""} {
		source := tables{}
		for _, name := range w.Names() {
			x, _ := w.Tensor(name)
			source[prefix+strings.TrimPrefix(name, "model.")] = x
		}
		p, err := Build(c, source)
		require.NoError(t, err, prefix)
		require.Equal(t, prefix+"embed_tokens.weight", p.Tensors[0].Name)
		require.Len(t, p.Tensors, len(source))
	}
}

// TestGemmaNormsHaveOneAdded to the values of the file, the checkpoint's and not those of a GGUF file, which has the sums.
func TestGemmaNormsHaveOneAdded(t *testing.T) {
	const dir = "../../testdata/models/gemma3"
	c, err := LoadConfig(dir)
	require.NoError(t, err)
	with, err := OpenWeights(c)
	require.NoError(t, err)
	plain, err := weights.Open(dir)
	require.NoError(t, err)
	for _, w := range []*weights.Checkpoint{with, plain} {
		defer func() { require.NoError(t, w.Close()) }()
	}
	differ := map[string]int{}
	for _, name := range plain.Names() {
		a, _ := plain.Tensor(name)
		b, _ := with.Tensor(name)
		require.Equal(t, a.Shape, b.Shape)
		if a.DType != b.DType {
			require.Equal(t, weights.F32, b.DType)
			parts := strings.Split(name, ".")
			differ[parts[len(parts)-2]]++
		}
	}
	require.Equal(t, map[string]int{"input_layernorm": 4, "post_attention_layernorm": 4, "pre_feedforward_layernorm": 4,
		"post_feedforward_layernorm": 4,
		"q_norm":                     4, "k_norm": 4, "norm": 1}, differ)
}

func TestGemmaGGUFHasTheScaleOfLlamaCpp(t *testing.T) {
	m := weights.Metadata{}
	for k, v := range ggufMetadata() {
		m[strings.Replace(k, "llama.", "gemma3.", 1)] = v
	}
	m["general.architecture"], m["gemma3.attention.sliding_window"] = "gemma3", int64(9)
	m["gemma3.attention.key_length"] = int64(12)
	for layers, want := range map[int64]string{2: "12", 62: "8"} { // of 27B, hidden / heads
		m["gemma3.block_count"] = layers
		f, err := ggufFields("a.gguf", m, ggufTables())
		require.NoError(t, err)
		require.Equal(t, want, string(f.members["query_pre_attn_scalar"]))
		c, err := parseConfig(f)
		require.NoError(t, err)
		require.Equal(t, 9, c.Windows[0])
	}
	m["gemma3.block_count"] = int64(7)
	m["gemma3.attention.sliding_window_pattern"], m["gemma3.rope.freq_base_swa"] = int64(3), 500.0
	f, err := ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	c, err := parseConfig(f)
	require.NoError(t, err)
	require.Equal(t, []int{9, 9, 0, 9}, c.Windows[:4])
	require.InDelta(t, 500, c.plan.(llamaPlan).local.Theta, 0)
	m["gemma3.final_logit_softcapping"] = 30.0
	f, err = ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	_, err = parseConfig(f)
	require.ErrorContains(t, err, "gemma3.final_logit_softcapping: found 30, expected null")
}

// TestGemmaDenseLayersOfGGUFGiveVectorsOfAHiddenState, else no program has a place for them.
func TestGemmaDenseLayersOfGGUFGiveVectorsOfAHiddenState(t *testing.T) {
	c := &Config{File: "a.gguf", Architecture: gemma3.class, Encoder: true, Hidden: 48}
	require.NoError(t, c.ggufDense(tables{}))
	require.Empty(t, c.Pooling.Dense)
	first := weights.Tensor{Shape: []int64{80, 48}}
	require.ErrorContains(t, c.ggufDense(tables{"2_Dense/linear.weight": first}),
		"a.gguf: dense_3.weight: found vectors of 80, expected 48, the width of a hidden state")
	require.ErrorContains(t, c.ggufDense(tables{"2_Dense/linear.weight": {Shape: []int64{80}}}),
		"a.gguf: 2_Dense/linear: found [80], expected a matrix")
}
