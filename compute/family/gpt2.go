package family

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// gpt2 is GPT-2.
var gpt2 = family{
	class: "GPT2LMHeadModel", bare: "GPT2Model", kind: "gpt2",
	spell:   gpt2Spell,
	config:  gpt2Config,
	tensors: gpt2Tensors,
	gguf:    gpt2Form("gpt2", nil),

	models:   "GPT-2, Cerebras-GPT",
	features: "learned positions, layer norms, biases, fused q/k/v, weights with rows in place of columns (`Conv1D`)",
}

// gptBigCode is GPT-2 with one head of keys and values for all heads of queries.
var gptBigCode = family{
	class: "GPTBigCodeForCausalLM", bare: "GPTBigCodeModel", kind: "gpt_bigcode",
	spell:  gptBigCodeSpell,
	config: gptBigCodeConfig,
	gguf:   gpt2Form("starcoder", gptBigCodeGGUF),

	models:   "SantaCoder, StarCoder",
	features: "GPT-2 with `multi_query` or not",
}

// gpt2Form is that of GGUF files with GPT-2's tensors, whose weights have rows already.
func gpt2Form(name string, spell func(*fields)) *ggufForm {
	return &ggufForm{
		name: name, decoder: "transformer.", layers: "h.",
		names: map[string]string{"token_embd": "wte", "position_embd": "wpe", "output_norm": "ln_f"},
		parts: map[string]string{
			"attn_norm": "ln_1", "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_norm": "ln_2", "ffn_up": "mlp.c_fc",
			"ffn_down": "mlp.c_proj",
		},
		keys:  map[string]string{"attention.layer_norm_epsilon": "layer_norm_eps", "feed_forward_length": "n_inner"},
		spell: spell,
	}
}

// gptBigCodeGGUF: the converter has one KV head for all models.
func gptBigCodeGGUF(f *fields) {
	if n := f.integer(1, 0, maxHeads, "num_key_value_heads"); n != 1 {
		f.fault("num_key_value_heads", fmt.Sprint(n), "1")
	}
}

// gptNeo is GPT-Neo.
var gptNeo = family{
	class: "GPTNeoForCausalLM", bare: "GPTNeoModel", kind: "gpt_neo",
	spell:  gptNeoSpell,
	config: gptNeoConfig,

	models:   "GPT-Neo",
	features: "learned positions, layer norms, sliding windows by `attention_types`, products of queries and keys as they are",
}

// gpt2Spell gives members the names that most classes have.
func gpt2Spell(f *fields) {
	f.prefer(map[string]string{
		"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_positions": "max_position_embeddings",
	})
	f.rename(map[string]string{"n_inner": "intermediate_size", "activation_function": "hidden_act"})
	f.plainBlocks(1024)
}

// plainBlocks sets the defaults of GPT-2's kind of decoders, which read no number of KV heads, nor the size of a head.
func (f *fields) plainBlocks(positions int) {
	f.defaults(map[string]any{"intermediate_size": 4 * f.integer(1, 1, maxWidth/4, "hidden_size"), "max_position_embeddings": positions})
	delete(f.members, "num_key_value_heads")
	delete(f.members, "head_dim")
}

// gpt2Config: source is transformers, modeling_gpt2.py.
func gpt2Config(f *fields, c *Config) plan {
	p := gpt2Plan(f, c, "gelu_new")
	p.names.inOrder = true
	f.without("scale_attn_by_inverse_layer_idx")
	return p
}

// gpt2Tensors turns the matrices, whose rows are inputs.
func gpt2Tensors(_ *Config, w *weights.Checkpoint) error {
	return transpose(w, func(name string) bool {
		return strings.HasSuffix(name, "attn.weight") || strings.HasSuffix(name, "c_proj.weight") || strings.HasSuffix(name, "c_fc.weight")
	})
}

func gptBigCodeSpell(f *fields) {
	gpt2Spell(f)
	if f.flag(true, "multi_query") {
		f.set("num_key_value_heads", 1)
	}
}

// gptBigCodeConfig: source is transformers, modeling_gpt_bigcode.py.
func gptBigCodeConfig(f *fields, c *Config) plan { return gpt2Plan(f, c, "gelu_pytorch_tanh") }

func gpt2Plan(f *fields, c *Config, activation string) blockPlan {
	blockSizes(f, c, 0, activation)
	c.MaxPositions = f.integer(0, 1, maxPositions, "max_position_embeddings")
	c.QKVBias, c.OutBias, c.MLPBias = true, true, true
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	f.without("add_cross_attention")
	p := blockPlan{names: blockNames{
		decoder: "transformer.", table: "wte", positions: "wpe", norm: "ln_f",
		layers: "h.", attnNorm: "ln_1", fused: "attn.c_attn", out: "attn.c_proj", mlpNorm: "ln_2", up: "mlp.c_fc", down: "mlp.c_proj",
	}}
	if !f.flag(true, "scale_attn_weights") {
		p.attentionScale = 1
	}
	return p
}

func gptNeoSpell(f *fields) {
	f.rename(map[string]string{
		"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "activation_function": "hidden_act",
		"window_size": "sliding_window",
	})
	f.plainBlocks(2048)
	f.defaults(map[string]any{"sliding_window": 256, "layer_types": gptNeoTypes(f)})
}

// gptNeoTypes spells attention_types, a list of lists of types and how often each of them follows, as layer_types.
func gptNeoTypes(f *fields) []string {
	types := []string{}
	groups := list[[]any](f, "attention_types", "a list of types of layers and their numbers")
	if groups == nil {
		groups = [][]any{{[]any{"global", "local"}, 12.0}}
	}
	for _, g := range groups {
		var names []any
		var n float64
		if len(g) == 2 {
			names, _ = g[0].([]any)
			n, _ = g[1].(float64)
		}
		for range int(min(n, maxLayers)) {
			for _, name := range names[:min(len(names), maxLayers)] {
				types = append(types, map[any]string{"global": full, "local": sliding}[name])
			}
		}
	}
	return types
}

// gptNeoConfig: source is transformers, modeling_gpt_neo.py.
func gptNeoConfig(f *fields, c *Config) plan {
	blockSizes(f, c, 0, "gelu_new")
	c.MaxPositions = f.integer(0, 1, maxPositions, "max_position_embeddings")
	c.OutBias, c.MLPBias = true, true
	c.TieEmbeddings = f.flag(true, "tie_word_embeddings")
	c.windows(f, 0, 0)
	return blockPlan{
		names: blockNames{
			decoder: "transformer.", table: "wte", positions: "wpe", norm: "ln_f",
			layers: "h.", attnNorm: "ln_1", attention: "attn.attention.", out: "attn.attention.out_proj", mlpNorm: "ln_2", up: "mlp.c_fc",
			down: "mlp.c_proj",
		},
		attentionScale: 1,
	}
}
