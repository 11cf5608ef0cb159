package family

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// lfm3 is LFM2 with sliding windows, norms after the blocks too, and a gate of each head's result.
var lfm3 = family{
	class: "Lfm3ForCausalLM", bare: "Lfm3Model", kind: "lfm3",
	spell:   lfm3Spell,
	config:  lfm3Config,
	tensors: lfm3Gates,

	models: "LFM3",
	features: "LFM2 with sliding windows and a rotary embedding of their own by `layer_types`, RMS norms after each block too (`use_sandwich_norm`), " +
		"a gate of each head's result (`use_attention_gate`)",
}

// lfm3Gate is the tensor of the gates of a layer's heads, each row as often as a head has elements.
const lfm3Gate = "gate_proj_repeated"

// lfm3Spell sets the defaults of Lfm3Config.
func lfm3Spell(f *fields) {
	f.prefer(map[string]string{"norm_eps": "rms_norm_eps"})
	f.sizes(128000, 2048, 7680, 24, 16)
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 128,
		"rms_norm_eps": 1e-5, "conv_L_cache": 7, "sliding_window": 256, "tie_word_embeddings": true,
		"rope_parameters": map[string]any{
			sliding: map[string]any{"rope_type": "default", "rope_theta": 10000},
			full:    map[string]any{"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 1000000},
		},
	})
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		switch {
		case i%4 == 2:
			types[i] = full
		case i%4 == 0 && i > 0:
			types[i] = sliding
		default:
			types[i] = "conv"
		}
	}
	f.defaults(map[string]any{"layer_types": types})
}

// lfm3Config: source is transformers, modeling_lfm3.py.
func lfm3Config(f *fields, c *Config) plan {
	decoderSizes(f, c, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	local := twoRopes(f, c, f.integer(128000, 1, maxPositions, "max_position_embeddings"), 10000)
	p := llamaPlan{
		local: &local,
		mixer: &shortConv{kernel: f.integer(7, 2, maxKernel, "conv_L_cache"), bias: f.flag(false, "conv_bias")},
		norms: layerNorms{attention: "operator_norm", mlp: "ffn_norm"},
		names: strings.NewReplacer("mlp.gate_proj", "feed_forward.w1", "mlp.up_proj", "feed_forward.w3", "mlp.down_proj",
			"feed_forward.w2"),
		final: "embedding_norm",
	}
	if f.flag(true, "use_sandwich_norm") {
		p.norms.attended, p.norms.mlpDone = "post_operator_norm", "post_ffn_norm"
	}
	if f.flag(true, "use_attention_gate") {
		p.attentionGate = lfm3Gate
	}
	types := f.texts("layer_types")
	p.recurrent = make([]bool, len(types))
	for i, t := range types {
		if p.recurrent[i] = t == "conv"; p.recurrent[i] {
			types[i] = full
		}
	}
	if f.err == nil {
		c.Windows = layerTypeWindows(f, types, f.integer(0, 1, maxPositions, "sliding_window"), c.Layers)
	}
	return p
}

// lfm3Gates adds the tensors of the heads' gates with a row for each element.
func lfm3Gates(c *Config, w *weights.Checkpoint) error {
	const suffix = "self_attn.gate_proj.weight"
	names := map[string]string{}
	for _, name := range named(w, func(name string) bool { return strings.HasSuffix(name, suffix) }) {
		names[name] = fmt.Sprintf("%sself_attn.%s.weight", strings.TrimSuffix(name, suffix), lfm3Gate)
	}
	return w.RepeatRows(names, int64(c.HeadDim))
}
