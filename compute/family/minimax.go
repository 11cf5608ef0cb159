package family

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// minimaxM2 is Llama with norms over all of q and of k, and a mixture of experts.
var minimaxM2 = family{
	class: "MiniMaxM2ForCausalLM", bare: "MiniMaxM2Model", kind: "minimax_m2",
	spell:  minimaxM2Spell,
	config: minimaxM2Config,
	gguf: &ggufForm{
		name: "minimax-m2", partial: true,
		parts: sparseMoeParts,
		keys: map[string]string{
			"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
			"expert_feed_forward_length": "intermediate_size", "feed_forward_length": "", "expert_gating_func": ggufGating,
		},
		spell: func(f *fields) { f.gating(gatingSigmoid) },
	},

	models:   "MiniMax-M2, MiniMax-M2.1",
	features: "RMS norms over all heads of q and k together, part of a head rotated (`rotary_dim`), experts: sigmoid with a bias",
}

// minimaxM2Spell sets the defaults of MiniMaxM2Config.
func minimaxM2Spell(f *fields) {
	f.defaults(map[string]any{
		"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 196608, "rope_theta": 5e6, "num_local_experts": 256,
		"num_experts_per_tok": 8,
	})
	if rotary := f.integer(0, 1, maxHeadDim, "rotary_dim"); rotary > 0 {
		f.defaults(map[string]any{"partial_rotary_factor": float64(rotary) / float64(f.integer(128, 1, maxHeadDim, "head_dim"))})
	}
}

// minimaxM2Config: source is transformers, modeling_minimax_m2.py.
func minimaxM2Config(f *fields, c *Config) plan {
	rotary := partialDecoder(f, c, 0)
	e := readExperts(f, []string{"num_local_experts", "num_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	e.routing.Scores, e.routing.Normalize = model.RouteSigmoid, true
	e.names = expertNames{layer: "block_sparse_moe.", router: "gate", bias: "e_score_correction_bias", gate: "w1", up: "w3", down: "w2"}
	return llamaPlan{rotary: rotary, wideNorms: true, experts: e}
}

// minimaxM3 is the text model of MiniMax-M3: an indexer chooses blocks of keys.
var minimaxM3 = family{
	class: "MiniMaxM3VLForCausalLM", also: []string{"MiniMaxM3SparseForConditionalGeneration"}, bare: "MiniMaxM3VLTextModel",
	kind: "minimax_m3_vl_text", spell: minimaxM3Spell,
	config:  minimaxM3Config,
	tensors: minimaxM3Tensors,
	gguf: &ggufForm{
		name: "minimax-m3", partial: true,
		parts: merged(sparseMoeParts, map[string]string{
			"ffn_gate_shexp": "block_sparse_moe.shared_experts.gate_proj", "ffn_up_shexp": "block_sparse_moe.shared_experts.up_proj",
			"ffn_down_shexp": "block_sparse_moe.shared_experts.down_proj",
		}),
		keys: map[string]string{
			"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
			"expert_feed_forward_length": "intermediate_size", "feed_forward_length": "dense_intermediate_size",
			"expert_shared_count": "gguf.expert_shared_count", "expert_weights_scale": "routed_scaling_factor",
			"expert_weights_norm": ggufNorm,
			"expert_gating_func":  ggufGating, "leading_dense_block_count": "",
			"attention.indexer.top_k": "index_topk_blocks", "attention.indexer.block_size": "index_block_size",
			"attention.indexer.head_count": "", "attention.indexer.key_length": "", "attention.indexer.local_blocks": "",
		},
		spell:  minimaxM3GGUF,
		unused: []string{".indexer."},
	},

	models: "the text of MiniMax-M3",
	features: "RMS norms over each head of q and k, part of a head rotated (`partial_rotary_factor`), experts: sigmoid with a bias, a shared one, SwiGLU with limits, plain layers by " +
		"`mlp_layer_types` or `moe_layer_freq`; sequences of up to `index_topk_blocks` blocks of `index_block_size` tokens: an indexer chooses that many, which are all of them",
}

// minimaxM3Spell takes text_config for the whole, and sets the defaults of MiniMaxM3VLTextConfig.
func minimaxM3Spell(f *fields) {
	f.liftText()
	f.sizes(200064, 6144, 3072, 60, 64)
	sparse := f.object("sparse_attention_config")
	for own, name := range map[string]string{"sparse_block_size": "index_block_size", "sparse_topk_blocks": "index_topk_blocks"} {
		if sparse.has(own) {
			f.members[name] = sparse.members[own]
		}
	}
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 524288, "num_local_experts": 128, "num_experts_per_tok": 4,
		"dense_intermediate_size": 12288, "shared_intermediate_size": 3072, "routed_scaling_factor": 2, "rope_theta": 5e6,
	})
	delete(f.members, "rotary_dim") // the class reads partial_rotary_factor
	minimaxM2Spell(f)
	f.set("hidden_act", "silu")
}

// minimaxM3Config: source is transformers, modeling_minimax_m3_vl.py.
func minimaxM3Config(f *fields, c *Config) plan {
	p := minimaxM2Config(f, c).(llamaPlan)
	p.wideNorms, c.QKNorm = false, true
	e := p.experts
	e.routing.Scale = float32(f.number(2, 1e-6, 1e6, "routed_scaling_factor"))
	e.limit, e.alpha = float32(f.number(7, 1e-3, 1e6, "swiglu_limit")), float32(f.number(1.702, -1e3, 1e3, "swiglu_alpha"))
	e.shared, e.names.shared = f.size(maxWidth, "shared_intermediate_size"), "block_sparse_moe.shared_experts."
	e.names.sharedFused, p.fusedMLP = "gate_up_proj", true
	p.limits, c.Intermediate = true, f.size(maxWidth, "dense_intermediate_size")
	for i, sparse := range f.integers("moe_layer_freq") {
		if sparse == 0 {
			e.dense = append(e.dense, i)
		}
	}
	e.denseByType(f, c)
	if f.has("sparse_attention_config") || slices.Contains(f.texts("layer_types"), "minimax_m3_sparse") {
		c.shorten(f.integer(16, 1, maxWidth, "index_topk_blocks")*f.integer(128, 1, maxWidth, "index_block_size"),
			"its indexer, which is not run, chooses index_topk_blocks blocks of index_block_size keys: all of a sequence of no more tokens")
	}
	return p
}

// minimaxM3Names are the names of published tensors for those that transformers writes of the text model alone.
var minimaxM3Names = strings.NewReplacer(
	".mlp.experts.down_proj", ".block_sparse_moe.experts.w2", ".mlp.experts.", ".block_sparse_moe.experts.", ".mlp.shared_experts.",
	".block_sparse_moe.shared_experts.", ".mlp.gate.e_score", ".block_sparse_moe.e_score", ".mlp.gate.", ".block_sparse_moe.gate.",
)

// minimaxM3Tensors adds one to the weights of the norms.
func minimaxM3Tensors(_ *Config, w *weights.Checkpoint) error {
	names := map[string]string{}
	for _, name := range w.Names() {
		if published := minimaxM3Names.Replace(name); published != name {
			names[name] = published
		}
	}
	w.Rename(names)
	return onePlus(w, func(name string) bool {
		return strings.HasSuffix(name, "norm.weight") && !strings.Contains(name, "vision")
	})
}

// minimaxM3GGUF: files do not say the limits of SwiGLU, which are the class's defaults, nor the width of the shared MLP, which its tensors
// have.
func minimaxM3GGUF(f *fields) {
	f.gating(gatingSigmoid)
	f.normalized()
	f.expertsScale()
	f.mlpTypes()
	f.size(maxPositions, "index_topk_blocks")
	f.size(maxPositions, "index_block_size")
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = "minimax_m3_sparse"
		if t, ok := f.describe(fmt.Sprintf("blk.%d.ffn_gate_shexp.weight", i)); ok && len(t.Shape) == 2 {
			f.set("shared_intermediate_size", t.Shape[0])
		}
	}
	f.set("layer_types", types)
}
