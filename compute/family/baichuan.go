package family

import (
	"fmt"

	"github.com/millrace/millrace/compute/weights"
)

// baichuan is Baichuan 1 and 2: Llama with q, k and v in one tensor, 7B with a rotary embedding and 13B with ALiBi. Its class is beside its
// checkpoints.
var baichuan = family{
	class: "BaichuanForCausalLM", also: []string{"BaiChuanForCausalLM"}, kind: "baichuan",
	config:  baichuanConfig,
	tensors: baichuanTensors,
	gguf:    &ggufForm{name: "baichuan", interleaved: true, tensors: baichuanTensors},

	models:   "Baichuan and Baichuan 2, 7B and 13B",
	features: "as Llama, fused q/k/v, ALiBi without `max_position_embeddings` (13B), rows of the head normalized (Baichuan 2)",
}

const (
	baichuan2Vocab  = 125696 // all of Baichuan 2 have it, and no other
	baichuan13Depth = 40     // layers of 13B, whose GGUF files do not say that there is no rotary embedding
)

// baichuanPlan knows whether the head has its rows divided by their lengths.
type baichuanPlan struct {
	blockPlan
	normedHead bool
}

// baichuanConfig: source is modeling_baichuan.py of Baichuan2-7B and 13B. Their code is the same but for positions. z_loss_weight is a
// member of Baichuan 2.
func baichuanConfig(f *fields, c *Config) plan {
	delete(f.members, "head_dim") // the class reads neither
	delete(f.members, "rope_theta")
	rotated := f.has("max_position_embeddings")
	positions := f.size(maxPositions, "max_position_embeddings", "model_max_length")
	f.defaults(map[string]any{"max_position_embeddings": positions})
	llamaSizes(f, c, 0, 0)
	if rotated && c.Layers == baichuan13Depth {
		f.fault("num_hidden_layers", fmt.Sprint(c.Layers), "another number with a rotary embedding, which 13B does not have")
	}
	names := llamaNames()
	names.fused, names.inOrder = "self_attn.W_pack", true
	names.gate, names.up, names.down = "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"
	p := baichuanPlan{
		blockPlan:  blockPlan{names: names, rmsNorms: true, alibi: !rotated},
		normedHead: c.Vocab == baichuan2Vocab || f.has("z_loss_weight"),
	}
	if rotated {
		p.rotary = c.HeadDim
	}
	if p.normedHead && c.TieEmbeddings {
		f.fault("tie_word_embeddings", "true", "false, as the rows of the head are normalized")
	}
	return p
}

// baichuanTensors normalizes the rows of Baichuan 2's head, which its class does at each step. Rows that are normalized stay as they are.
func baichuanTensors(c *Config, w *weights.Checkpoint) error {
	const head = "lm_head.weight"
	t, ok := w.Describe(head)
	switch {
	case !ok || !c.plan.(baichuanPlan).normedHead:
		return nil
	case !t.DType.Floats():
		return &weights.FormatError{File: t.File, Name: head, Found: "type " + t.Type,
			Expected: "F32, F16 or BF16, as its rows are normalized"}
	}
	return w.NormalizeRows(head)
}
