package family

import (
	"cmp"
	"fmt"
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
	layout := weights.Layout{Name: func(tensor string) string { return huggingFaceName(tensor, known.gguf.parts) }}
	if !known.gguf.interleaved {
		return layout, nil
	}
	q, err := ggufHeads(m, name+".attention.head_count", 0)
	if err != nil {
		return layout, err
	}
	k, err := ggufHeads(m, name+".attention.head_count_kv", q)
	layout.Interleaved = func(tensor string) int64 {
		switch {
		case !strings.HasPrefix(tensor, "blk."):
		case strings.HasSuffix(tensor, ".attn_q.weight"), strings.HasSuffix(tensor, ".attn_q.bias"):
			return q
		case strings.HasSuffix(tensor, ".attn_k.weight"), strings.HasSuffix(tensor, ".attn_k.bias"):
			return k
		}
		return 0
	}
	return layout, err
}

// ggufHeads is a number of heads, missing when it is absent and missing is not 0.
func ggufHeads(m weights.Metadata, key string, missing int64) (int64, error) {
	v, ok := m[key]
	if !ok && missing != 0 {
		return missing, nil
	}
	n, isInt := v.(int64)
	if !isInt || n < 1 {
		found := fmt.Sprint(v)
		if !ok {
			found = "nothing"
		}
		return 0, &weights.FormatError{Name: key, Found: found, Expected: "an integer of at least 1"}
	}
	return n, nil
}

// huggingFaceName translates a tensor's name; those that have no counterpart
// stay as they are. own are the parts of a layer that the family names otherwise. Source: gguf-py/gguf/tensor_mapping.py of llama.cpp.
func huggingFaceName(name string, own map[string]string) string {
	switch name {
	case "token_embd.weight":
		return "model.embed_tokens.weight"
	case "output_norm.weight":
		return "model.norm.weight"
	case "output.weight":
		return "lm_head.weight"
	}
	layer, rest, ok := strings.Cut(strings.TrimPrefix(name, "blk."), ".")
	if !ok || !strings.HasPrefix(name, "blk.") {
		return name
	}
	part, kind, _ := strings.Cut(rest, ".")
	parts := map[string]string{
		"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
		"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
		"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
		"ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
		"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
	}
	if to := cmp.Or(own[part], parts[part]); to != "" {
		return "model.layers." + layer + "." + to + "." + kind
	}
	return name
}
