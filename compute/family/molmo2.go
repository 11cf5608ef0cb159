package family

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// molmo2 is the text model of Molmo 2: Llama with norms of q and k.
var molmo2 = family{
	class: "Molmo2ForConditionalGeneration", bare: "Molmo2TextModel", kind: "molmo2_text",
	spell:   molmo2Spell,
	config:  molmo2Config,
	tensors: molmo2Tensors,

	models: "the text of Molmo 2 4B and 8B",
	features: "RMS norms of q and k, over each head or over all (`qk_norm_type`), before or after the blocks (`norm_after`), fused q/k/v and gate/up, scaled rotary embedding in the layers of " +
		"`rope_scaling_layers`; tokens of images are left out",
}

// molmo2Spell takes text_config for the whole, and sets the defaults of Molmo2TextConfig.
func molmo2Spell(f *fields) {
	f.liftText()
	f.sizes(151936, 4096, 12288, 36, 32)
	f.prefer(map[string]string{"qkv_bias": "attention_bias", "layer_norm_eps": "rms_norm_eps"})
	f.defaults(map[string]any{"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 36864})
}

// molmo2Config: source is transformers, modeling_molmo2.py.
func molmo2Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 0, 0)
	c.QKVBias = f.flag(false, "attention_bias")
	p := llamaPlan{fused: true, fusedMLP: true, upFirst: true}
	switch kind := f.text("qwen3", "qk_norm_type"); kind {
	case "qwen3":
		c.QKNorm = true
	case "olmo":
		p.wideNorms = true
	default:
		f.fault("qk_norm_type", kind, "qwen3 or olmo")
	}
	if f.flag(false, "norm_after") {
		p.norms = layerNorms{attended: llamaNorms.attention, mlpDone: llamaNorms.mlp}
	}
	if scaled := f.integers("rope_scaling_layers"); scaled != nil {
		for i := range c.Layers {
			r := c.Rope
			if !slices.Contains(scaled, i) {
				r = Rope{Type: "default", Theta: r.Theta}
			}
			p.ropes = append(p.ropes, r)
		}
	}
	return p
}

// molmo2Names are the parts of Llama's names for those of published tensors.
var molmo2Names = strings.NewReplacer(
	".transformer.", ".", "blocks.", "layers.", "ln_f.", "norm.", "att_proj", "qkv_proj", "attn_out", "o_proj",
	"attn_norm", "input_layernorm", "ff_norm", "post_attention_layernorm", "ff_proj", "gate_up_proj", "ff_out", "down_proj",
)

func molmo2Tensors(c *Config, w *weights.Checkpoint) error {
	names := map[string]string{}
	for _, name := range named(w, func(name string) bool { return strings.HasPrefix(name, "model.transformer.") }) {
		names[name] = molmo2Names.Replace(name)
	}
	w.Rename(names)
	const table = "model.embed_tokens.weight"
	if err := w.Stack(map[string][]string{table: {"model.wte.embedding", "model.wte.new_embedding"}}); err != nil {
		return err
	}
	w.Shorten(table, int64(c.Vocab))
	return nil
}
