package family

import (
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// ssmParts are the names of the tensors of a mixer of Mamba-2; at is before those of its checkpoint.
func ssmParts(at string) map[string]string {
	return map[string]string{
		"ssm_in": at + "in_proj", "ssm_conv1d": at + "conv1d", "ssm_dt.bias": at + "dt_bias", "ssm_a": at + "A_log", "ssm_d": at + "D",
		"ssm_norm": at + "norm", "ssm_out": at + "out_proj",
	}
}

// ssmKeys are the keys of a mixer to its sizes in config.json, and of what its heads make together to ggufInner.
func ssmKeys(n mambaNames) map[string]string {
	return map[string]string{
		"ssm.conv_kernel": n.kernel, "ssm.state_size": n.states, "ssm.group_count": n.groups, "ssm.time_step_rank": n.heads,
		"ssm.inner_size": ggufInner,
	}
}

// ggufInner is the member of ssm.inner_size.
const ggufInner = "gguf.ssm.inner_size"

// mixer sets what a mixer of Mamba-2 has no keys for.
func (f *fields) mixer(n mambaNames) {
	inner, heads := f.size(maxWidth, ggufInner), f.size(maxHeads, n.heads)
	f.divides(ggufInner, inner, n.heads, heads)
	if f.err == nil {
		f.set(n.headDim, inner/heads)
	}
	f.set(n.convBias, f.inLayers("ssm_conv1d.bias"))
	f.set(n.inBias, f.inLayers("ssm_in.bias"))
}

// stateTensors brings the tensors of states into the form of checkpoints: GGUF files have -exp(A_log), and matrices in place of some
// vectors.
func stateTensors(w *weights.Checkpoint) error {
	ends := func(suffixes ...string) func(string) bool {
		return func(name string) bool {
			for _, suffix := range suffixes {
				if strings.HasSuffix(name, suffix) {
					return true
				}
			}
			return false
		}
	}
	w.Squeeze(named(w, ends(".A_log", "conv1d.weight")))
	w.Flatten(named(w, ends(".D", ".mamba.norm.weight", ".mixer.norm.weight")))
	return w.Replace(named(w, ends(".A_log")), func(a float32) float32 { return float32(math.Log(-float64(a))) })
}

// hybridKinds are the kinds of layers by their KV heads: one without has the other kind.
func (f *fields) hybridKinds(other string) {
	heads := f.uniform("num_key_value_heads")
	kinds := make([]string, len(heads))
	for i, n := range heads {
		kinds[i] = map[bool]string{false: full, true: other}[n == 0]
	}
	if heads != nil {
		f.set("layer_types", kinds)
	}
	if f.err == nil && f.integer(0, 0, maxHeads, "num_key_value_heads") == 0 { // no layer has attention
		f.members["num_key_value_heads"] = f.members["num_attention_heads"]
	}
}

// expandedBy is how many times hidden_size what a mixer's heads make together is.
func (f *fields) expandedBy() int {
	hidden, inner := f.size(maxWidth, "hidden_size"), f.size(maxWidth, ggufInner)
	f.divides(ggufInner, inner, "embedding_length", hidden)
	return inner / max(hidden, 1)
}

// tiledRows are the rows of a delta net's convolution in the order in which the op reads them, where GGUF files have the heads of values in
// tiles: those that share no key, in the order of their keys, before the next of each. Each value has a key of its own then.
func (d *deltaNet) tiledRows() (rows []int64) {
	keys := int64(d.keyHeads * d.keys)
	for first := range int64(2) { // of q, and of k
		for range d.heads / d.keyHeads {
			for i := range keys {
				rows = append(rows, first*keys+i)
			}
		}
	}
	for i := range int64(d.heads * d.values) {
		rows = append(rows, 2*keys+i)
	}
	return rows
}

// deltaNetTensors is stateTensors for delta nets.
func deltaNetTensors(c *Config, w *weights.Checkpoint) error {
	d, ok := c.plan.(llamaPlan).mixer.(*deltaNet)
	if !ok {
		return fmt.Errorf("%s: no delta net", c.File)
	}
	if d.tiled {
		convolutions := named(w, func(name string) bool { return strings.HasSuffix(name, ".conv1d.weight") })
		if err := w.Gather(convolutions, d.tiledRows()); err != nil {
			return err
		}
	}
	return stateTensors(w)
}

// deltaNetForm is that of the families with delta nets.
func deltaNetForm(name string, more map[string]string) *ggufForm {
	g := &ggufForm{
		name: name, partial: true,
		parts: merged(qwenSharedParts, map[string]string{
			"post_attention_norm": "post_attention_layernorm", "attn_qkv": "linear_attn.in_proj_qkv", "attn_gate": "linear_attn.in_proj_z",
			"ssm_beta": "linear_attn.in_proj_b", "ssm_alpha": "linear_attn.in_proj_a", "ssm_ba": "linear_attn.in_proj_ba",
			"ssm_in": "linear_attn.in_proj_qkvz", "ssm_conv1d": "linear_attn.conv1d", "ssm_dt.bias": "linear_attn.dt_bias",
			"ssm_a": "linear_attn.A_log", "ssm_norm": "linear_attn.norm", "ssm_out": "linear_attn.out_proj",
			"ffn_gate_up_exps.weight": "mlp.experts.gate_up_proj",
		}),
		keys: merged(more, map[string]string{
			"ssm.conv_kernel": "linear_conv_kernel_dim", "ssm.state_size": "linear_key_head_dim", "ssm.group_count": "linear_num_key_heads",
			"ssm.time_step_rank": "linear_num_value_heads", "ssm.inner_size": ggufInner,
			"full_attention_interval": "full_attention_interval", "attention.recurrent_layers": "gguf.recurrent_layers",
		}),
		tensors: deltaNetTensors,
	}
	g.spell = func(f *fields) {
		f.set("norm_topk_prob", true) // as llama.cpp has it
		inner, heads := f.size(maxWidth, ggufInner), f.size(maxHeads, "linear_num_value_heads")
		f.divides(ggufInner, inner, "ssm.time_step_rank", heads)
		f.set("linear_value_head_dim", inner/max(heads, 1))
		plain := []int{} // layers without experts
		for i := range f.size(maxLayers, "num_hidden_layers") {
			if _, ok := f.tensors.Describe(fmt.Sprintf("model.layers.%d.mlp.gate_proj.weight", i)); ok {
				plain = append(plain, i)
			}
		}
		f.set("mlp_only_layers", plain)
		if recurrent := list[bool](f, "gguf.recurrent_layers", "a list of flags"); recurrent != nil {
			types := make([]string, min(len(recurrent), f.size(maxLayers, "num_hidden_layers")))
			for i := range types {
				types[i] = map[bool]string{false: full, true: linearAttention}[recurrent[i]]
			}
			f.set("layer_types", types)
		}
	}
	return g
}
