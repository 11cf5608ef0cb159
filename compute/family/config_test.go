package family

import (
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

type object = map[string]any

// llamaJSON is a valid configuration of awkward sizes.
func llamaJSON() object {
	return object{
		"architectures": []string{"LlamaForCausalLM"}, "vocab_size": 131, "hidden_size": 48,
		"intermediate_size": 104, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
		"head_dim": 10, "max_position_embeddings": 100, "rms_norm_eps": 1e-5,
	}
}

func with(base object, changes object) object {
	c := maps.Clone(base)
	for k, v := range changes {
		if v == "absent" {
			delete(c, k)
		} else {
			c[k] = v
		}
	}
	return c
}

func parse(t *testing.T, content object) (*Config, error) {
	t.Helper()
	raw, err := json.Marshal(content)
	require.NoError(t, err)
	f, err := parseFields("config.json", raw)
	require.NoError(t, err)
	return parseConfig(f)
}

func TestConfigBothSpellingsSayTheSame(t *testing.T) {
	four, err := parse(t, with(llamaJSON(), object{
		"rope_theta": 500000.0, "torch_dtype": "bfloat16",
		"rope_scaling": object{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
			"original_max_position_embeddings": 50},
	}))
	require.NoError(t, err)
	old, err := parse(t, with(llamaJSON(), object{
		"rope_theta": 500000, "torch_dtype": "bfloat16",
		"rope_scaling": object{"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 50},
	}))
	require.NoError(t, err)
	five, err := parse(t, with(llamaJSON(), object{
		"dtype": "bfloat16", "rope_scaling": nil,
		"rope_parameters": object{"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
			"high_freq_factor": 4.0, "original_max_position_embeddings": 50},
	}))
	require.NoError(t, err)
	require.Equal(t, "llama3", five.Rope.Type)
	require.Equal(t, 500000.0, five.Rope.Theta)
	require.Equal(t, "bfloat16", five.DType)
	require.Equal(t, five, four)
	require.Equal(t, five, old)
}

func TestConfigMaxPositionsFollowTheScaling(t *testing.T) {
	for _, c := range []struct {
		name string
		rope object
		want int
	}{
		{"default", nil, 100},
		{"linear multiplies", object{"rope_type": "linear", "factor": 2.5}, 250},
		{"llama3 is trained at its length", object{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
			"original_max_position_embeddings": 50}, 100},
		{"yarn extends the original", object{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 50}, 200},
		{"yarn without an original extends the maximum", object{"rope_type": "yarn", "factor": 4}, 400},
		{"yarn already extended", object{"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 50}, 100},
		{"yarn without a factor", object{"rope_type": "yarn", "original_max_position_embeddings": 25}, 100},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := parse(t, with(llamaJSON(), object{"rope_scaling": c.rope}))
			require.NoError(t, err)
			require.Equal(t, c.want, cfg.MaxPositions)
		})
	}
}

// TestLongRoPEIsChosenByTheLongestSequence, so that no key in the cache has another rotation than the next ones.
func TestLongRoPEIsChosenByTheLongestSequence(t *testing.T) {
	short, long := []float32{1, 1, 1, 2, 2}, []float32{1, 2, 3, 4, 5}
	for original, want := range map[int][]float32{100: short, 101: short, 99: long, 20: long} {
		cfg, err := parse(t, with(llamaJSON(), object{"architectures": []string{"Phi3ForCausalLM"},
			"original_max_position_embeddings": original,
			"rope_scaling":                     object{"type": "longrope", "short_factor": short, "long_factor": long}}))
		require.NoError(t, err)
		require.Equal(t, want, cfg.Rope.Divisors, original)
		require.Equal(t, 100, cfg.MaxPositions)
		_, scale := cfg.Rope.Table(cfg.HeadDim)
		require.InDelta(t, math.Sqrt(1+math.Log(max(100/float64(original), 1))/math.Log(float64(original))), scale, 1e-6)
	}
}

func TestConfigWindowsByLayer(t *testing.T) {
	mistral := with(llamaJSON(), object{"architectures": []string{"MistralForCausalLM"}})
	qwen := with(llamaJSON(), object{"architectures": []string{"Qwen2ForCausalLM"}, "use_sliding_window": true,
		"sliding_window": 7, "max_window_layers": 2})
	for _, c := range []struct {
		name    string
		content object
		want    []int
	}{
		{"mistral", with(mistral, object{"sliding_window": 9}), []int{9, 9, 9}},
		{"mistral null is none", with(mistral, object{"sliding_window": nil}), nil},
		{"mistral absent is the class's default", mistral, []int{4096, 4096, 4096}},
		{"llama has none", with(llamaJSON(), object{"sliding_window": 9}), nil},
		{"qwen from max_window_layers on", qwen, []int{0, 0, 7}},
		{"qwen unused", with(qwen, object{"use_sliding_window": false}), nil},
		{"qwen layer types go first", with(qwen, object{
			"layer_types": []string{"sliding_attention", "full_attention", "sliding_attention"}}), []int{7, 0, 7}},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := parse(t, c.content)
			require.NoError(t, err)
			require.Equal(t, c.want, cfg.Windows)
		})
	}
}

func TestConfigFaultsNameFieldFoundAndExpected(t *testing.T) {
	for _, c := range []struct {
		name   string
		change object
		want   string
	}{
		{"architecture", object{"architectures": []string{"RwkvForCausalLM"}},
			"architectures: found RwkvForCausalLM, expected an architecture of docs/models.md, where the nearest are "},
		{"no architecture", object{"architectures": "absent"}, "architectures: found nothing, expected an architecture of docs/models.md"},
		{"architecture no list", object{"architectures": 7}, "architectures: found 7, expected a list of strings"},
		{"zero", object{"hidden_size": 0}, "hidden_size: found 0, expected an integer in 1..262144"},
		{"negative", object{"num_hidden_layers": -3}, "num_hidden_layers: found -3, expected an integer in 1..1024"},
		{"absurd", object{"vocab_size": 1e18}, "vocab_size: found 1000000000000000000, expected an integer in 1..4194304"},
		{"beyond 64 bits", object{"vocab_size": json.Number("99999999999999999999999")}, "vocab_size: found 99999999999999999999999"},
		{"fraction", object{"head_dim": 10.5}, "head_dim: found 10.5, expected an integer"},
		{"string", object{"vocab_size": "131"}, `vocab_size: found "131", expected an integer`},
		{"missing", object{"intermediate_size": "absent"}, "intermediate_size: found nothing, expected an integer"},
		{"heads", object{"num_key_value_heads": 4}, "num_key_value_heads: found 4, expected a divisor of the 6 attention heads"},
		{"hidden over heads", object{"head_dim": nil, "hidden_size": 50},
			"hidden_size: found 50, expected a multiple of the 6 attention heads"},
		{"odd head", object{"head_dim": 9}, "head_dim: found 9, expected an even number"},
		{"eps", object{"rms_norm_eps": 0}, "rms_norm_eps: found 0, expected a number in 1e-12..0.1"},
		{"activation", object{"hidden_act": "mish"}, `hidden_act: found "mish", expected silu`},
		{"flag", object{"attention_bias": 1}, "attention_bias: found 1, expected true or false"},
		{"theta", object{"rope_theta": -1}, "rope_theta: found -1, expected a number"},
		{"rope type", object{"rope_scaling": object{"type": "ntk"}},
			`rope_scaling.rope_type: found "ntk", expected default, dynamic, linear, llama3, longrope, proportional or yarn`},
		{"longrope without factors", object{"rope_scaling": object{"type": "longrope", "short_factor": []float64{1, 1, 1, 1, 1}}},
			"rope_scaling.long_factor: found nothing, expected 5 numbers in 0.001..10000"},
		{"longrope of another size", object{"rope_scaling": object{"type": "su", "short_factor": []int{1, 2}}},
			"rope_scaling.short_factor: found [1,2], expected 5 numbers in 0.001..10000"},
		{"longrope of 0", object{"rope_scaling": object{"type": "su", "short_factor": []int{1, 1, 1, 1, 0}}},
			"rope_scaling.short_factor: found [1,1,1,1,0], expected 5 numbers in 0.001..10000"},
		{"longrope of one position", object{"original_max_position_embeddings": 1, "rope_scaling": object{"type": "longrope"}},
			"original_max_position_embeddings: found 1, expected 2 or more, for longrope"},
		{"phi3 partial rotary", object{"architectures": []string{"Phi3ForCausalLM"}, "partial_rotary_factor": 0.5},
			"partial_rotary_factor: found 0.5, expected one that rotates an even number of the 10 elements of a head"},
		{"rope factor", object{"rope_scaling": object{"type": "linear", "factor": 0}},
			"rope_scaling.factor: found 0, expected a number in 1..10000"},
		{"rope factor missing", object{"rope_parameters": object{"rope_type": "llama3"}}, "rope_parameters.factor: found nothing"},
		{"rope bounds", object{"rope_scaling": object{"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
			"rope_scaling.high_freq_factor: found 4, expected more than low_freq_factor 4"},
		{"rope no object", object{"rope_scaling": 4}, "rope_scaling: found 4, expected an object"},
		{"partial rotary", object{"partial_rotary_factor": 0.5}, "partial_rotary_factor: found 0.5, expected 1"},
		{"eos", object{"eos_token_id": 2.5}, `eos_token_id: found 2.5, expected a token id in 0..4194303 or a list`},
		{"eos negative", object{"eos_token_id": []int{2, -5}}, "eos_token_id: found [2,-5], expected a token id in 0.."},
		{"bos of lists", object{"bos_token_id": [][]int{{1}}}, "bos_token_id: found [[1]], expected a token id in 0.."},
		{"architectures of other tasks", object{"architectures": []string{"LlamaForTokenClassification", "LlamaTower"}},
			"architectures: found LlamaForTokenClassification, LlamaTower, expected an architecture of docs/models.md, where the nearest are LlamaForSequenceClassification, "},
		{"another model_type", object{"architectures": nil, "model_type": "rwkv"},
			"architectures: found nothing, expected an architecture of docs/models.md"},
		{"no repetition_penalty", object{"repetition_penalty": 0}, "repetition_penalty: found 0, expected a number in 0.01..100"},
		{"rope of layers that differ", object{"layer_types": []string{"full_attention", "sliding_attention"}, "rope_parameters": object{
			"full_attention": object{"rope_theta": 5000}, "sliding_attention": object{"rope_theta": 6000}}},
			`rope_parameters.sliding_attention: found {"rope_theta":6000}, expected the parameters of full_attention`},
		{"rope of no layer", object{"rope_parameters": object{"sliding_attention": object{"rope_theta": 6000}}},
			"rope_parameters.full_attention: found nothing, expected an object"},
		{"quantized otherwise", object{"quantization_config": object{"quant_method": "exl2"}},
			`quantization_config.quant_method: found "exl2", expected one of auto-round, awq`},
		{"quantized to 3 bits", object{"quantization_config": object{"quant_method": "gptq", "bits": 3}},
			"quantization_config.bits: found 3, expected 4 or 8"},
		{"gptj rotary", object{"architectures": []string{"GPTJForCausalLM"}, "num_attention_heads": 6, "num_key_value_heads": nil,
			"rotary_dim": 10},
			"rotary_dim: found 10, expected an even number of 8 at most"},
		{"opt norms without weights", object{"architectures": []string{"OPTForCausalLM"}, "num_key_value_heads": nil, "ffn_dim": 9,
			"layer_norm_elementwise_affine": false}, "layer_norm_elementwise_affine: found false, expected true"},
		{"layer types", object{"architectures": []string{"Qwen3ForCausalLM"}, "use_sliding_window": true,
			"layer_types": []string{"full_attention"}},
			"layer_types: found 1 entries, expected one for each of 3 layers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, with(llamaJSON(), c.change))
			var format *weights.FormatError
			require.ErrorAs(t, err, &format)
			require.Contains(t, err.Error(), "config.json: "+c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// TestConfigTakesWhatPythonWrites of transformers' configurations.
func TestConfigTakesWhatPythonWrites(t *testing.T) {
	raw, err := json.Marshal(llamaJSON())
	require.NoError(t, err)
	numbers := `{"initializer_range": NaN, "layerdrop": -Infinity, "name\"NaN": "a NaN, an Infinity", "list": [NaN,Infinity], `
	cfg, err := ParseConfig("config.json", []byte(numbers+string(raw[1:])))
	require.NoError(t, err)
	require.Equal(t, 48, cfg.Hidden)
	_, err = ParseConfig("config.json", []byte(`{"rms_norm_eps": NaN, `+strings.ReplaceAll(string(raw[1:]), `"rms_norm_eps"`, `"eps"`)))
	require.ErrorContains(t, err, `rms_norm_eps: found "NaN", expected a number in`)

	cfg, err = parse(t, with(llamaJSON(), object{"bos_token_id": []int{1}, "eos_token_id": "</s>", "top_k": -1}))
	require.NoError(t, err)
	require.EqualValues(t, 1, *cfg.Generation.BOS)
	require.Empty(t, cfg.Generation.EOS, "the tokenizer knows the text's id")
	require.Equal(t, -1, *cfg.Generation.TopK)
	cfg, err = parse(t, with(llamaJSON(), object{"bos_token_id": "<s>", "eos_token_id": []any{"</s>", 5}}))
	require.NoError(t, err)
	require.Nil(t, cfg.Generation.BOS)
	require.Equal(t, []int32{5}, cfg.Generation.EOS)
}

func TestConfigFindsTheClass(t *testing.T) {
	for _, c := range []struct {
		change object
		want   string
		noHead bool
	}{
		{object{"architectures": []string{"LlamaModel"}}, "LlamaForCausalLM", true},
		{object{"architectures": []string{"MistralModel"}}, "MistralForCausalLM", true},
		{object{"architectures": []string{"Qwen2Model"}}, "Qwen2ForCausalLM", true},
		{object{"architectures": []string{"Tower", "Qwen3ForCausalLM"}}, "Qwen3ForCausalLM", false},
		{object{"architectures": "absent", "model_type": "mistral"}, "MistralForCausalLM", false},
		{object{"architectures": []string{}, "model_type": "qwen2"}, "Qwen2ForCausalLM", false},
	} {
		cfg, err := parse(t, with(llamaJSON(), c.change))
		require.NoError(t, err)
		require.Equal(t, c.want, cfg.Architecture)
		require.Equal(t, c.noHead, cfg.NoHead)
	}
	_, err := parse(t, with(llamaJSON(), object{"architectures": []string{"GPTJModel"}}))
	require.ErrorContains(t, err, "architectures: found GPTJModel", "its output layer has a bias")
}

func TestRopeOfLayerTypes(t *testing.T) {
	scaled := object{"rope_theta": 5000, "rope_type": "linear", "factor": 2}
	for _, change := range []object{
		{"rope_parameters": object{"full_attention": scaled}},
		{"rope_parameters": object{"full_attention": scaled, "sliding_attention": object{"rope_theta": 7}},
			"layer_types": []string{"full_attention"}},
		{"rope_parameters": object{"full_attention": scaled, "sliding_attention": scaled},
			"layer_types": []string{"full_attention", "sliding_attention"}},
	} {
		cfg, err := parse(t, with(llamaJSON(), change))
		require.NoError(t, err)
		require.Equal(t, Rope{Type: "linear", Theta: 5000, Factor: 2, OriginalPositions: 100}, cfg.Rope)
	}
}

func TestGenerationConfigGoesFirst(t *testing.T) {
	dir := t.TempDir()
	raw, err := json.Marshal(with(llamaJSON(), object{"eos_token_id": 2, "bos_token_id": 1, "top_p": 0.5}))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600))

	cfg, err := LoadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, []int32{2}, cfg.Generation.EOS)
	require.EqualValues(t, 1, *cfg.Generation.BOS)
	require.Nil(t, cfg.Generation.Temperature)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"),
		[]byte(`{"eos_token_id":[7,9],"temperature":0.75,"top_k":20,"do_sample":true,"bos_token_id":-1}`), 0o600))
	cfg, err = LoadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, []int32{7, 9}, cfg.Generation.EOS)
	require.Nil(t, cfg.Generation.BOS)
	require.InDelta(t, 0.75, *cfg.Generation.Temperature, 0)
	require.InDelta(t, 0.5, *cfg.Generation.TopP, 0)
	require.Equal(t, 20, *cfg.Generation.TopK)
	require.True(t, *cfg.Generation.DoSample)

	require.NoError(t, os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"top_k":-2}`), 0o600))
	_, err = LoadConfig(dir)
	require.ErrorContains(t, err, "generation_config.json: top_k: found -2, expected an integer in -1..")
}

func TestLoadConfigOfNoModel(t *testing.T) {
	_, err := LoadConfig(t.TempDir())
	require.ErrorContains(t, err, "found no config.json, expected a Hugging Face model directory")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"a":`), 0o600))
	_, err = LoadConfig(dir)
	require.ErrorContains(t, err, "config.json: found unexpected end of JSON input, expected a JSON object")
}

// FuzzConfig: any bytes give a one-line fault or a configuration whose program
// is built or refused without a panic.
func FuzzConfig(f *testing.F) {
	for _, dir := range []string{"../../models/tiny-chat", "../../testdata/models/*"} {
		files, err := filepath.Glob(filepath.Join(dir, "config.json"))
		if err != nil || len(files) == 0 {
			f.Fatalf("%s: found no config.json: %v", dir, err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		fields, err := parseFields("config.json", raw)
		if err != nil {
			return
		}
		cfg, err := parseConfig(fields)
		if err == nil {
			if cfg.Layers < 1 || cfg.Hidden < 1 || cfg.Heads < 1 || cfg.KVHeads < 1 || cfg.HeadDim < 1 ||
				cfg.Vocab < 1 || cfg.Intermediate < 1 || cfg.MaxPositions < 1 || cfg.Heads%cfg.KVHeads != 0 {
				t.Fatalf("accepted %+v", cfg)
			}
			cfg.Layers = min(cfg.Layers, 3) // the program's size is the model's
			if cfg.Windows != nil {
				cfg.Windows = cfg.Windows[:cfg.Layers]
			}
			_, err = Build(cfg, noTensors{})
		}
		var format *weights.FormatError
		if !errors.As(err, &format) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("not a one-line FormatError: %q", err)
		}
	})
}

type noTensors struct{}

func (noTensors) Tensor(string) (weights.Tensor, bool) { return weights.Tensor{}, false }
