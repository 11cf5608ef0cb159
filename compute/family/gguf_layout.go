package family

import (
	"cmp"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// ggufLayout says how the tensors of a GGUF file become those of a Hugging Face checkpoint. Those of an unknown architecture
// keep their names.
func ggufLayout(m weights.Metadata) (weights.Layout, error) {
	known, name := ggufFamily(m)
	if known == nil {
		return weights.Layout{}, nil
	}
	layout := weights.Layout{Name: func(tensor string) string { return known.gguf.huggingFaceName(tensor) }}
	if !known.gguf.interleaved || name != known.gguf.name {
		return layout, nil
	}
	q, err := ggufHeads(m, name+".attention.head_count", nil)
	if err != nil {
		return layout, err
	}
	k, err := ggufHeads(m, name+".attention.head_count_kv", q)
	layout.Interleaved = func(tensor string) int64 {
		layer, part, _ := strings.Cut(strings.TrimPrefix(tensor, "blk."), ".")
		i, fault := strconv.Atoi(layer)
		switch part, _, _ = strings.Cut(part, "."); {
		case fault != nil:
		case part == "attn_q":
			return q(i)
		case part == "attn_k":
			return k(i)
		}
		return 0
	}
	return layout, err
}

// ggufHeads are the heads of each layer: one number for all, or a list. missing are those where the key is absent; nil: it must be there.
func ggufHeads(m weights.Metadata, key string, missing func(layer int) int64) (func(layer int) int64, error) {
	v, ok := m[key]
	if !ok && missing != nil {
		return missing, nil
	}
	most, _ := v.(int64)
	of := func(int) int64 { return most }
	if all, ok := v.(weights.List); ok {
		own := func(layer int) int64 { n, _ := all.At(layer).(int64); return n }
		for i := range all.Len() {
			most = max(most, own(i))
		}
		of = func(layer int) int64 {
			if layer >= 0 && layer < all.Len() && own(layer) > 0 {
				return own(layer)
			}
			return most
		}
	}
	if most < 1 {
		found := fmt.Sprint(v)
		if !ok {
			found = "nothing"
		}
		return nil, &weights.FormatError{Name: key, Found: found, Expected: "an integer of at least 1"}
	}
	return of, nil
}

// ggufParts are the names of a layer's tensors that most families have, to those of Hugging Face. Source: gguf-py/gguf/tensor_mapping.py of
// llama.cpp.
var ggufParts = map[string]string{
	"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
	"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
	"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
	"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	"ffn_gate_inp": "mlp.gate", "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
	"ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
	"ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
	"ffn_down_shexp": "mlp.shared_experts.down_proj",
}

// huggingFaceName translates a tensor's name; those that have no counterpart stay as they are.
func (g *ggufForm) huggingFaceName(name string) string {
	if name == "output.weight" || name == "output.bias" {
		return "lm_head" + strings.TrimPrefix(name, "output")
	}
	if end := strings.LastIndexByte(name, '.'); end > 0 && g.head[name[:end]] != "" {
		return g.head[name[:end]] + name[end:]
	}
	layer, rest, ok := strings.Cut(strings.TrimPrefix(name, "blk."), ".")
	if !strings.HasPrefix(name, "blk.") {
		part, kind, _ := strings.Cut(name, ".")
		known := map[string]string{"token_embd": "embed_tokens", "output_norm": "norm"}
		if to := cmp.Or(g.names[part], known[part]); to != "" && kind != "" {
			return cmp.Or(g.decoder, "model.") + to + "." + kind
		}
		return name
	}
	at := cmp.Or(g.decoder, "model.") + cmp.Or(g.layers, "layers.") + layer + "."
	if to := cmp.Or(g.parts[rest], ggufParts[rest]); ok && to != "" {
		return at + to
	}
	part, kind, _ := strings.Cut(rest, ".")
	if to := cmp.Or(g.parts[part], ggufParts[part]); to != "" && kind != "" {
		return at + to + "." + kind
	}
	return name
}

// sparseMoeParts are the names of experts as Mixtral has them.
var sparseMoeParts = map[string]string{
	"ffn_gate_inp": "block_sparse_moe.gate", "exp_probs_b.bias": "block_sparse_moe.e_score_correction_bias",
	"ffn_gate_exps": "block_sparse_moe.experts.w1", "ffn_up_exps": "block_sparse_moe.experts.w3",
	"ffn_down_exps": "block_sparse_moe.experts.w2",
}

// sandwichParts are the names of norms before and after each block, as Gemma 2 has them.
var sandwichParts = map[string]string{
	"post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
	"post_ffw_norm": "post_feedforward_layernorm",
}

// merged is the union of maps; a later one goes before.
func merged(all ...map[string]string) map[string]string {
	union := map[string]string{}
	for _, m := range all {
		maps.Copy(union, m)
	}
	return union
}
