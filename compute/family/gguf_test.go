package family

import (
	"encoding/json"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/weights"
)

// ggufMetadata is of a small Llama.
func ggufMetadata() weights.Metadata {
	return weights.Metadata{
		"general.architecture": "llama", "llama.embedding_length": int64(48), "llama.block_count": int64(2),
		"llama.feed_forward_length": int64(104), "llama.attention.head_count": int64(6), "llama.context_length": int64(128),
		"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": int64(131),
		"tokenizer.ggml.eos_token_id": int64(2), "tokenizer.ggml.eot_token_id": int64(5), "tokenizer.ggml.eom_token_id": int64(2),
	}
}

// tables is a source with a token table.
type tables map[string]weights.Tensor

func (t tables) Describe(name string) (weights.Tensor, bool) {
	found, ok := t[name]
	return found, ok
}

func (t tables) Tensor(name string) (weights.Tensor, bool) { return t.Describe(name) }

func ggufTables() tables {
	t := weights.Tensor{DType: weights.F16, Shape: []int64{131, 48}}
	return tables{"model.embed_tokens.weight": t, "transformer.wte.weight": t, "bert.embeddings.word_embeddings.weight": t,
		"model.embeddings.tok_embeddings.weight": t}
}

func TestGGUFMetadataGivesTheConfigurationWithLlamaCppsDefaults(t *testing.T) {
	f, err := ggufFields("a.gguf", ggufMetadata(), ggufTables())
	require.NoError(t, err)
	c, err := parseConfig(f)
	require.NoError(t, err)
	require.Equal(t, "LlamaForCausalLM", c.Architecture)
	require.Equal(t, []int{131, 48, 2, 104, 128}, []int{c.Vocab, c.Hidden, c.Layers, c.Intermediate, c.MaxPositions})
	require.Equal(t, []int{6, 6, 8}, []int{c.Heads, c.KVHeads, c.HeadDim}, "as many KV heads as heads, hidden / heads")
	require.True(t, c.TieEmbeddings, "no output.weight")
	require.False(t, c.QKVBias)
	require.Equal(t, []int32{2, 5}, c.Generation.EOS)
	require.InDelta(t, 10000, c.Rope.Theta, 0)
	require.InDelta(t, 1e-5, c.Eps, 1e-12)

	// Qwen3's class has a head size of its own where config.json says nothing; GGUF means hidden / heads.
	m := weights.Metadata{}
	for k, v := range ggufMetadata() {
		if k[:5] == "llama" {
			k = "qwen3" + k[5:]
		}
		m[k] = v
	}
	m["general.architecture"] = "qwen3"
	f, err = ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	c, err = parseConfig(f)
	require.NoError(t, err)
	require.Equal(t, 8, c.HeadDim)
	require.True(t, c.QKNorm)
}

func TestGGUFFaultsNameTheFilesKeys(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any // nil: absent
		want  string
	}{
		{"general.architecture", "gemma5",
			`general.architecture: found "gemma5", expected a GGUF architecture of docs/models.md, where the nearest are gemma`},
		{"llama.embedding_length", nil, "llama.embedding_length: found nothing, expected an integer"},
		{"llama.embedding_length", int64(50),
			"llama.attention.key_length: found nothing, expected a number, as 50 is no multiple of 6 heads"},
		{"llama.block_count", int64(-1), "llama.block_count: found -1, expected an integer in 1.."},
		{"llama.attention.head_count", []any{int64(6), int64(6)}, "llama.attention.head_count: found [6,6]"},
		{"llama.attention.head_count_kv", int64(4), "llama.attention.head_count_kv: found 4, expected a divisor of the 6 attention heads"},
		{"llama.attention.layer_norm_rms_epsilon", "x", `llama.attention.layer_norm_rms_epsilon: found "x"`},
		{"llama.rope.freq_base", 0.5, "llama.rope.freq_base: found 0.5"},
		{"llama.rope.scaling.type", "longrope", `rope_factors_short.weight: found nothing, expected 4 numbers`},
		{"llama.rope.scaling.factor", 0.5, "llama.rope.scaling.factor: found 0.5, expected a number in 1.."},
		{"llama.rope.scale_linear", "2", `llama.rope.scale_linear: found "2", expected a number in 1..`},
		{"llama.expert_count", int64(8), "llama.expert_used_count: found nothing"}, // a Mixtral then
		{"llama.attention.causal", false, "llama.attention.causal: found false, expected true"},
		{"llama.residual_scale", 0.5, "llama.residual_scale: found 0.5, expected none"},
		{"llama.swin_norm", true, "llama.swin_norm: found true, expected none"},
		{"llama.nextn_predict_layers", int64(2), "llama.block_count: found 2, expected an integer in 3.."},
		{"llama.attention.sliding_window", int64(4096), "llama.attention.sliding_window: found 4096, expected none"},
		{"llama.rope.scaling.attn_factor", 1.2, "llama.rope.scaling.attn_factor: found 1.2, expected none"},
		{"llama.rope.dimension_count", int64(4), "llama.rope.dimension_count: found 4, expected the size of a head: 8"},
		{"llama.attention.value_length", int64(16), "llama.attention.value_length: found 16, expected the size of a head: 8"},
	} {
		m := ggufMetadata()
		m[c.key] = c.value
		if c.value == nil {
			delete(m, c.key)
		}
		f, err := ggufFields("a.gguf", m, ggufTables())
		if err == nil {
			_, err = parseConfig(f)
		}
		require.ErrorContains(t, err, "a.gguf: "+c.want, c.key)
		require.NotContains(t, err.Error(), "\n")
	}
	_, err := ggufFields("a.gguf", ggufMetadata(), tables{})
	require.ErrorContains(t, err, "token_embd.weight: found no such matrix")
}

func TestGGUFRopeScalingIsSpelledAsInAConfiguration(t *testing.T) {
	m := ggufMetadata()
	m["llama.rope.scaling.type"], m["llama.rope.scaling.factor"] = "yarn", 4.0
	m["llama.rope.scaling.original_context_length"] = int64(32)
	f, err := ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(f.members["rope_scaling"], &got))
	require.Equal(t, map[string]any{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32.0}, got)
}

// TestGGUFRopeFactorIsLlamaCpps: llama_model_base::load_hparams of llama-model.cpp.
func TestGGUFRopeFactorIsLlamaCpps(t *testing.T) {
	for _, c := range []struct {
		name   string
		keys   weights.Metadata
		kind   string
		factor float64
		most   int
	}{
		{"the key of old files", weights.Metadata{"rope.scale_linear": 4.0}, "linear", 4, 512},
		{"the key of old files, with a type", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.type": "linear"}, "linear", 4, 512},
		{"both keys", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.factor": 2.0}, "linear", 2, 256},
		{"no type", weights.Metadata{"rope.scaling.factor": 2.0}, "linear", 2, 256},
		{"no scaling by its type", weights.Metadata{"rope.scale_linear": 4.0, "rope.scaling.type": "none"}, "default", 0, 128},
		{"0 is 1", weights.Metadata{"rope.scale_linear": 0.0}, "default", 0, 128},
		{"linear without a factor", weights.Metadata{"rope.scaling.type": "linear"}, "default", 0, 128},
		{"yarn with the key of old files", weights.Metadata{"rope.scaling.type": "yarn", "rope.scale_linear": 4.0}, "yarn", 4, 512},
		{"yarn without a factor", weights.Metadata{"rope.scaling.type": "yarn"}, "yarn", 1, 128},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := ggufMetadata()
			for key, v := range c.keys {
				m["llama."+key] = v
			}
			f, err := ggufFields("a.gguf", m, ggufTables())
			require.NoError(t, err)
			cfg, err := parseConfig(f)
			require.NoError(t, err)
			require.Equal(t, c.kind, cfg.Rope.Type)
			require.InDelta(t, c.factor, cfg.Rope.Factor, 0)
			require.Equal(t, c.most, cfg.MaxPositions)
		})
	}
}

// ggufOf is metadata of another architecture, with its keys.
func ggufOf(kind string, keys weights.Metadata) weights.Metadata {
	m := weights.Metadata{"general.architecture": kind}
	for key, v := range ggufMetadata() {
		if own, ok := strings.CutPrefix(key, "llama."); ok {
			m[kind+"."+own] = v
		}
	}
	for key, v := range keys {
		m[kind+"."+key] = v
		if v == nil {
			delete(m, kind+"."+key)
		}
	}
	return m
}

// TestGGUFFamiliesRefuseWhatTheyDoNotHave: keys with values that would change the result, and lists that no family has.
func TestGGUFFamiliesRefuseWhatTheyDoNotHave(t *testing.T) {
	experts := weights.Metadata{
		"expert_count": int64(8), "expert_used_count": int64(2), "expert_feed_forward_length": int64(40), "expert_shared_count": int64(1),
	}
	latents := weights.Metadata{
		"attention.key_length": int64(32), "attention.key_length_mla": int64(24), "attention.value_length_mla": int64(32),
		"rope.dimension_count": int64(8), "attention.kv_lora_rank": int64(24), "attention.head_count_kv": int64(1),
	}
	window := weights.Metadata{"attention.sliding_window": int64(8)}
	states := weights.Metadata{
		"ssm.conv_kernel": int64(4), "ssm.inner_size": int64(96), "ssm.state_size": int64(16), "ssm.group_count": int64(1),
		"ssm.time_step_rank": int64(6), "attention.head_count_kv": []any{int64(0), int64(2)},
	}
	for _, c := range []struct {
		kind  string
		keys  []weights.Metadata
		key   string
		value any
		want  string
	}{
		{"glm4moe", []weights.Metadata{experts}, "expert_gating_func", int64(3), "glm4moe.expert_gating_func: found 3, expected 2"},
		{"lfm2", nil, "attention.head_count_kv", []any{int64(2)},
			"lfm2.attention.head_count_kv: found 1 entries, expected one for each of 2 layers"},
		{"lfm2", nil, "attention.head_count_kv", []any{int64(2), int64(3)},
			"lfm2.attention.head_count_kv: found [2,3], expected one number, or 0, for each layer"},
		{"deepseek2", []weights.Metadata{experts, latents}, "attention.key_length_mla", int64(8),
			"deepseek2.attention.key_length_mla: found 8, expected more than rope.dimension_count, 8"},
		{"mistral4", []weights.Metadata{experts, latents}, "attention.temperature_scale", 0.1,
			"mistral4.attention.temperature_scale: found 0.1, expected none without"},
		{"granitehybrid", []weights.Metadata{states, {"logit_scale": 2.0}}, "ssm.inner_size", int64(97),
			"granitehybrid.ssm.inner_size: found 97, expected a multiple of"},
		{"afmoe", []weights.Metadata{experts}, "expert_weights_norm", false, "afmoe.expert_weights_norm: found false, expected true"},
		{"hunyuan-moe", []weights.Metadata{experts}, "expert_shared_count", int64(2),
			"hunyuan-moe.expert_shared_count: found 2, expected 1"},
		{"hy_v3", []weights.Metadata{experts}, "expert_shared_feed_forward_length", int64(41),
			"hy_v3.expert_shared_feed_forward_length: found 41, expected a multiple of"},
		{"olmo2", nil, "attention.sliding_window_pattern", []any{true},
			"olmo2.attention.sliding_window_pattern: found [true], expected none"},
		{"exaone4", []weights.Metadata{{"attention.sliding_window": int64(8)}}, "attention.sliding_window_pattern", []any{true},
			"exaone4.attention.sliding_window_pattern: found 1 entries, expected one for each of 2 layers"},
		{"starcoder", nil, "attention.head_count_kv", int64(6), "starcoder.attention.head_count_kv: found 6, expected 1"},
		{"starcoder", []weights.Metadata{{"attention.head_count_kv": int64(1)}}, "feed_forward_length", int64(0),
			"starcoder.feed_forward_length: found 0, expected an integer in 1.."},
		{"kimi-linear", []weights.Metadata{experts, latents}, "expert_gating_func", int64(1),
			"kimi-linear.expert_gating_func: found 1, expected 2"},
		{"bert", nil, "attention.causal", true, "bert.attention.causal: found true, expected false"},
		{"gemma-embedding", nil, "attention.causal", true, "gemma-embedding.attention.causal: found true, expected false"},
		{"gemma3", nil, "attention.causal", false, "gemma3.attention.causal: found false, expected true"},
		{"modern-bert", nil, "classifier.pooling_type", int64(3),
			"modern-bert.classifier.pooling_type: found 3, expected an integer in 1..2"},
		{"mimo2", []weights.Metadata{experts, window, {"attention.sliding_window_pattern": []any{int64(0), int64(1)}}},
			"attention.head_count_kv", []any{int64(3), int64(3)},
			"mimo2.attention.head_count_kv: found [3,3], expected twice the number in layers with a window"},
		{"mimo2", []weights.Metadata{experts, window, {"attention.sliding_window_pattern": []any{int64(0), int64(1)}}},
			"attention.head_count_kv", []any{int64(3)}, "mimo2.attention.head_count_kv: found 1 entries, expected one for each of 2 layers"},
		{"mimo2", []weights.Metadata{experts}, "attention.sliding_window_pattern", []any{true, int64(2)},
			"mimo2.attention.sliding_window_pattern: found 2, expected a flag"},
		{"mimo2", []weights.Metadata{experts}, "attention.sliding_window_pattern", []any{true, true},
			"mimo2.attention.sliding_window: found nothing, expected an integer"},
		{"mpt", []weights.Metadata{{"feed_forward_length": int64(192)}}, "attention.max_alibi_bias", 0.0,
			"mpt.attention.max_alibi_bias: found 0, expected 8"},
		{"mpt", nil, "feed_forward_length", int64(100), "mpt.feed_forward_length: found 100, expected 4 times embedding_length, 192"},
		{"mpt", nil, "attention.head_count_kv", int64(2), "mpt.attention.head_count_kv: found 2, expected as many as heads, 6"},
		{"muse-glimmer", []weights.Metadata{window}, "logit_scale", nil, "muse-glimmer.logit_scale: found nothing, expected a number"},
		{"muse-glimmer", []weights.Metadata{window, {"logit_scale": 1.0}}, "final_logit_softcapping", 20.0,
			"blk.0.attn_q_norm.weight: found no such vector in F32, expected the weights of a norm"},
		{"deepseek32", []weights.Metadata{experts, latents}, "attention.indexer.top_k", nil,
			"deepseek32.attention.indexer.top_k: found nothing, expected an integer"},
		{"hunyuan_vl", []weights.Metadata{{"rope.scaling.alpha": 2.0, "rope.scaling.type": "linear"}}, "rope.scaling.factor", 2.0,
			"hunyuan_vl.rope.scaling.alpha: found 2, expected none with another scaling"},
		{"granite_swa", nil, "attention.sliding_window_pattern", []any{true},
			"granite_swa.attention.sliding_window_pattern: found [true], expected a flag for each of 2 layers"},
		{"granite_swa", []weights.Metadata{window, {"attention.sliding_window_pattern": []any{true, false}}},
			"attention.rope_pattern", []any{true}, "granite_swa.attention.rope_pattern: found 1 entries, expected one for each of 2 layers"},
		{"cohere2moe", []weights.Metadata{experts, window, {"attention.sliding_window_pattern": []any{true, false}}},
			"expert_gating_func", int64(1), "cohere2moe.expert_weights_norm: found false, expected true"},
		{"cohere2moe", []weights.Metadata{experts, window, {"attention.sliding_window_pattern": []any{true, false}}},
			"expert_gating_func", int64(3), "cohere2moe.expert_gating_func: found 3, expected 1 or 2"},
		{"cohere2moe", []weights.Metadata{experts, window, {"attention.sliding_window_pattern": []any{true, false}}},
			"expert_shared_feed_forward_length", int64(41),
			"cohere2moe.expert_shared_feed_forward_length: found 41, expected 40, the width of the shared experts"},
		{"apertus", nil, "xielu.alpha_p", []any{1.0, 2.0},
			"apertus.xielu.alpha_p: found 2 and 0 numbers, expected two for each of 2 layers"},
	} {
		t.Run(c.kind+" "+c.key, func(t *testing.T) {
			m := ggufOf(c.kind, nil)
			for _, keys := range append(c.keys, weights.Metadata{c.key: c.value}) {
				for key, v := range keys {
					m[c.kind+"."+key] = v
				}
			}
			f, err := ggufFields("a.gguf", m, ggufTables())
			if err == nil {
				_, err = parseConfig(f)
			}
			require.ErrorContains(t, err, "a.gguf: "+c.want)
		})
	}
}

// TestGGUFClassesAreTheRowsOfTheHead, whose labels are as many. The pooling is that of the classes.
func TestGGUFClassesAreTheRowsOfTheHead(t *testing.T) {
	read := func(kind string, keys weights.Metadata, more tables) (*Config, error) {
		found := ggufTables()
		maps.Copy(found, more)
		m := ggufOf(kind, keys)
		f, err := ggufFields("a.gguf", m, found)
		if err != nil {
			return nil, err
		}
		c, err := parseConfig(f)
		if err == nil {
			c.ggufPooling(m)
		}
		return c, err
	}
	dense, out := weights.Tensor{Shape: []int64{48, 48}}, weights.Tensor{Shape: []int64{3, 48}}
	roberta := tables{"classifier.dense.weight": dense, "classifier.out_proj.weight": out}
	c, err := read("bert", weights.Metadata{"classifier.output_labels": []string{"a", "b", "c"}, "pooling_type": int64(4)}, roberta)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, c.Classifier.Labels)
	require.Empty(t, c.Pooling.Problem)
	c, err = read("modern-bert", nil, tables{"head.dense.weight": dense, "classifier.weight": out})
	require.NoError(t, err)
	require.Equal(t, []string{"LABEL_0", "LABEL_1", "LABEL_2"}, c.Classifier.Labels)
	vectors, err := read("modern-bert", nil, tables{"head.dense.weight": dense})
	require.NoError(t, err)
	for own, refused := range map[*Config]bool{c: true, vectors: false} { // a masked language model's head is left out
		b := &builder{cfg: own, source: unread{ggufTables(), []string{"head.dense.weight"}}, sought: map[string]bool{}}
		b.refuseUnread()
		require.Equal(t, refused, b.err != nil)
	}
	c, err = read("bert", weights.Metadata{"pooling_type": int64(4)}, nil)
	require.NoError(t, err)
	require.Empty(t, c.Classifier.Labels)
	require.Contains(t, c.Pooling.Problem, "the pooling 4")
	_, err = read("bert", weights.Metadata{"classifier.output_labels": []string{"a"}}, roberta)
	require.ErrorContains(t, err, "a.gguf: bert.classifier.output_labels: found 1 labels, expected 3, the rows of cls.output")
	_, err = read("bert", nil, tables{"classifier.out_proj.weight": out})
	require.ErrorContains(t, err, "a.gguf: cls.weight: found no such tensor, expected the layer before cls.output")
}

// TestGGUFOfDeepSeekIsOneOfItsFamilies by the function of its gates, or by its size where llama.cpp knows that.
func TestGGUFOfDeepSeekIsOneOfItsFamilies(t *testing.T) {
	for want, keys := range map[string]weights.Metadata{
		"YoutuForCausalLM":      {},
		"DeepseekV2ForCausalLM": {"expert_count": int64(8)},
		"DeepseekV3ForCausalLM": {"expert_count": int64(8), "expert_gating_func": int64(2)},
	} {
		known, _ := ggufFamily(ggufOf("deepseek2", keys))
		require.Equal(t, want, known.class)
	}
	known, _ := ggufFamily(ggufOf("deepseek2", weights.Metadata{"expert_count": int64(64), "block_count": int64(47),
		"vocab_size": int64(154880)}))
	require.Equal(t, "DeepseekV3ForCausalLM", known.class)
}

// TestGGUFYaRNOfLatentsScalesScoresAlone: the key has a tenth of mscale_all_dim, which mscale equals in all published models.
func TestGGUFYaRNOfLatentsScalesScoresAlone(t *testing.T) {
	m := ggufOf("deepseek2", weights.Metadata{
		"expert_count": int64(8), "expert_used_count": int64(2), "expert_feed_forward_length": int64(40), "expert_gating_func": int64(2),
		"attention.key_length_mla": int64(24), "attention.value_length_mla": int64(32), "rope.dimension_count": int64(8),
		"attention.kv_lora_rank": int64(24), "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
		"rope.scaling.original_context_length": int64(32), "rope.scaling.yarn_log_multiplier": float64(float32(0.1)),
	})
	f, err := ggufFields("a.gguf", m, ggufTables())
	require.NoError(t, err)
	c, err := parseConfig(f)
	require.NoError(t, err)
	_, cosines := c.Rope.Table(8)
	require.InDelta(t, 1, cosines, 0)
	scale := 0.1*math.Log(40) + 1
	require.InDelta(t, scale*scale/math.Sqrt(24), latentsOf(c.plan).scale, 1e-6)
}

// unread is a checkpoint with a tensor that no op reads.
type unread struct {
	TensorSource
	names []string
}

func (u unread) Names() []string { return u.names }

// TestGGUFTensorsThatNothingReadsAreRefused, but for those of later layers and the factors of the rotary embedding.
func TestGGUFTensorsThatNothingReadsAreRefused(t *testing.T) {
	f, err := ggufFields("a.gguf", ggufMetadata(), ggufTables())
	require.NoError(t, err)
	c, err := parseConfig(f)
	require.NoError(t, err)
	for name, want := range map[string]string{
		"model.layers.1.self_attn.o_proj.bias": "a.gguf: model.layers.1.self_attn.o_proj.bias: found a tensor that nothing reads, expected none",
		"blk.1.attn_q.scale":                   "a.gguf: blk.1.attn_q.scale: found a tensor that nothing reads",
		"position_embd.weight":                 "a.gguf: position_embd.weight: found a tensor that nothing reads",
		"model.layers.2.mlp.up_proj.weight":    "", "rope_freqs.weight": "", "blk.0.attn_rot_embd.weight": "", "v.blk.0.attn_q.weight": "",
	} {
		b := &builder{cfg: c, source: unread{ggufTables(), []string{name}}, sought: map[string]bool{}}
		b.refuseUnread()
		if want == "" {
			require.NoError(t, b.err, name)
		} else {
			require.ErrorContains(t, b.err, want)
		}
	}
}
