package family

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// mamba is the mixer of Mamba (arXiv:2312.00752): a convolution over x, then a state of each channel, whose decay, input and output are
// made of x.
type mamba struct {
	at                string // before the tensors' names: "mixer."
	inner             int    // channels
	states            int    // of a channel
	rank              int    // of the projection that makes steps
	kernel            int
	convBias, outBias bool
	norms             mambaNorms
	eps               float32
}

// mambaNorms are the RMS norms of what steps, inputs and outputs are made of.
type mambaNorms int

const (
	noNorms mambaNorms = iota
	plainNorms
	weightedNorms // dt_layernorm, b_layernorm and c_layernorm
)

// mambaLM is Mamba alone.
var mambaLM = family{
	class: "MambaForCausalLM", bare: "MambaModel", kind: "mamba",
	config: mambaConfig,
	gguf:   mambaForm(func(k ggufKeys) bool { return k.of("ssm.dt_b_c_rms") != true }),

	models:   "Mamba 130M to 2.8B",
	features: "Mamba layers alone",
}

// falconMamba is Mamba with norms.
var falconMamba = family{
	class: "FalconMambaForCausalLM", bare: "FalconMambaModel", kind: "falcon_mamba",
	config: falconMambaConfig,
	gguf:   mambaForm(func(k ggufKeys) bool { return k.of("ssm.dt_b_c_rms") == true }),

	models:   "Falcon Mamba 7B",
	features: "Mamba layers alone, with norms of what steps, inputs and outputs are made of",
}

// jamba has Mamba in most layers, and experts in some.
var jamba = family{
	class: "JambaForCausalLM", bare: "JambaModel", kind: "jamba",
	config: jambaConfig,
	gguf: &ggufForm{
		name: "jamba", names: map[string]string{"output_norm": "final_layernorm"},
		parts: merged(mambaParts("mamba."), map[string]string{
			"ffn_norm": "pre_ff_layernorm", "ffn_gate": "feed_forward.gate_proj", "ffn_up": "feed_forward.up_proj",
			"ffn_down": "feed_forward.down_proj", "ffn_gate_inp": "feed_forward.router", "ffn_gate_exps": "feed_forward.experts.gate_proj",
			"ffn_up_exps": "feed_forward.experts.up_proj", "ffn_down_exps": "feed_forward.experts.down_proj",
		}),
		keys: merged(mambaKeys("mamba_d_conv", "mamba_d_state", "mamba_dt_rank"), map[string]string{
			"expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
		}),
		spell:   jambaGGUF,
		tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
	},

	models:   "Jamba 1.5 to 1.7, Jamba Reasoning 3B, Jamba2",
	features: "Mamba layers, attention without a rotary embedding by `attn_layer_period`, experts by `expert_layer_period`: softmax",
}

// readMambaMixer reads the sizes of a mixer by their names; the class's defaults are set.
func readMambaMixer(f *fields, c *Config, states, kernel, expand, rank, convBias, bias string) *mamba {
	m := &mamba{
		inner: f.integer(2, 1, 64, expand) * c.Hidden, states: f.integer(16, 1, maxHeadDim, states),
		kernel: f.integer(4, 2, maxKernel, kernel), rank: (c.Hidden + 15) / 16, convBias: f.flag(true, convBias),
		outBias: f.flag(false, bias), eps: c.Eps,
	}
	if _, raw := f.get(rank); string(raw) != `"auto"` {
		m.rank = f.integer(m.rank, 1, maxWidth, rank)
	}
	return m
}

// mambaConfig: source is transformers, modeling_mamba.py.
func mambaConfig(f *fields, c *Config) plan { return mambaAlone(f, c, true) }

func mambaAlone(f *fields, c *Config, tied bool) singlePlan {
	c.Hidden = f.size(maxWidth, "hidden_size")
	c.Layers = f.size(maxLayers, "num_hidden_layers")
	c.Eps = float32(f.number(1e-5, 1e-12, 0.1, "layer_norm_epsilon"))
	c.TieEmbeddings = f.flag(tied, "tie_word_embeddings")
	c.stateOnly(f)
	m := readMambaMixer(f, c, "state_size", "conv_kernel", "expand", "time_step_rank", "use_conv_bias", "use_bias")
	m.at = "mixer."
	c.Intermediate = m.inner
	return singlePlan{llamaPlan: llamaPlan{mixer: m}, kinds: slices.Repeat([]string{linearAttention}, c.Layers)}
}

// falconMambaConfig: source is transformers, modeling_falcon_mamba.py.
func falconMambaConfig(f *fields, c *Config) plan {
	p := mambaAlone(f, c, true)
	m := p.mixer.(*mamba) //nolint:forcetypeassert // made above
	m.norms, m.eps = plainNorms, float32(f.number(1e-6, 1e-12, 0.1, "mixer_rms_eps"))
	return p
}

// jambaConfig: source is transformers, modeling_jamba.py.
func jambaConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"num_key_value_heads": 8, "max_position_embeddings": 262144, "num_experts": 16, "num_experts_per_tok": 2})
	llamaSizes(f, c, 0, 0)
	p := bambaPlan()
	p.unrotated = slices.Repeat([]bool{true}, c.Layers)
	m := readMambaMixer(f, c, "mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias")
	m.at, m.norms = "mamba.", weightedNorms
	p.mixer = m
	if types := f.texts("layer_types"); types != nil { // of a GGUF file
		p.recurrent = f.layersOf(c, types, linearAttention)
	} else {
		p.recurrent = f.periodic(c, "attn_layer", 8, 4)
	}
	p.experts = readExperts(f, []string{"num_experts", "num_local_experts"}, []string{"num_experts_per_tok"}, []string{"intermediate_size"})
	p.experts.names.layer, p.experts.names.router = "feed_forward.", "router"
	if p.experts.dense = f.integers("mlp_only_layers"); p.experts.dense != nil { // of a GGUF file
		return p
	}
	for i, dense := range f.periodic(c, "expert_layer", 2, 1) {
		if dense || p.experts.routing.Experts == 1 {
			p.experts.dense = append(p.experts.dense, i)
		}
	}
	return p
}

// periodic is false for every n-th layer from an offset on, by NAME_period and NAME_offset.
func (f *fields) periodic(c *Config, name string, period, offset int) []bool {
	period = f.integer(period, 1, maxLayers, name+"_period")
	offset = f.integer(offset, 0, period-1, name+"_offset")
	layers := make([]bool, c.Layers)
	for i := range layers {
		layers[i] = i%period != offset
	}
	return layers
}

func (m *mamba) open(b *builder) func(at string, in int) (out int, back model.Part) {
	xz := b.slot("mamba.xz", model.SlotF32, 2*m.inner)
	mixed := b.slot("mamba.mixed", model.SlotF32, m.inner)
	operand := b.slot("mamba.operand", model.SlotOperand, m.inner)
	shared := b.slot("mamba.shared", model.SlotF32, 2*m.states)
	rank := b.slot("mamba.rank", model.SlotOperand, m.rank)
	ranked := rank
	if m.norms != noNorms {
		ranked = b.slot("mamba.ranked", model.SlotF32, m.rank)
	}
	steps := b.slot("mamba.steps", model.SlotF32, m.inner)
	read := b.slot("mamba.read", model.SlotF32, m.inner)
	gated := b.slot("mamba.gated", model.SlotOperand, m.inner)
	heads := m.heads()
	return func(at string, in int) (int, model.Part) {
		at += m.at
		b.linear("mamba.xz", in, xz, model.ActNone, b.part(at+"in_proj", m.outBias, 2*m.inner, b.cfg.Hidden))
		b.conv("mamba.conv", at+"conv1d", xz, mixed, m.inner, m.kernel, m.convBias).SiLU = true
		b.copyRows("mamba.operand", mixed, operand)
		rows := func(offset, n int) model.Part {
			return b.rowsOf(at+"x_proj", m.rank+2*m.states, m.inner, offset, n, n, n)
		}
		b.linear("mamba.rank", operand, ranked, model.ActNone, rows(0, m.rank))
		b.linear("mamba.shared", operand, shared, model.ActNone, rows(m.rank, 2*m.states))
		m.norm(b, at, ranked, rank, shared)
		b.linear("mamba.steps", rank, steps, model.ActNone, b.part(at+"dt_proj", false, m.inner, m.rank))
		b.recur("mamba.recur", mixed, read, model.Recur{
			Rule: model.RecurScan, Heads: heads, KeyHeads: 1, Keys: m.states, Values: m.inner / heads,
			V: 0, K: 0, Q: m.states, Gates: steps, Decay: 0, Rates: shared, Rate: model.None,
			ALog: b.tensor(at+"A_log", m.inner, m.states), DtBias: b.tensor(at+"dt_proj.bias", m.inner), Skip: b.tensor(at+"D", m.inner),
		})
		b.gate("mamba.gate", read, gated, model.Gate{Gates: xz, Offset: m.inner, Weight: model.None})
		return gated, b.part(at+"out_proj", m.outBias, b.cfg.Hidden, m.inner)
	}
}

// norm appends the norms: of what steps are made of to the slot rank, of B and C in place.
func (m *mamba) norm(b *builder, at string, ranked, rank, shared int) {
	weight := func(name string, n int) int { return b.tensorIf(m.norms == weightedNorms, at+name+".weight", n) }
	if m.norms == noNorms {
		return
	}
	op := newOp(model.OpNorm, "mamba.rank_norm", ranked, rank)
	op.Norm, op.Eps, op.Weight, op.Bias = model.NormRMS, m.eps, weight("dt_layernorm", m.rank), model.None
	b.op(op)
	for i, name := range []string{"b_layernorm", "c_layernorm"} {
		b.partNorm(model.NormRMS, "mamba."+name, shared, i*m.states, m.states, 1, weight(name, m.states), model.None)
		b.last().Eps = m.eps
	}
}

// heads is a number of parts of the channels that can be computed at the same time, of at most mostChannels.
func (m *mamba) heads() int {
	const mostChannels = 128
	n := (m.inner + mostChannels - 1) / mostChannels
	for m.inner%n != 0 {
		n++
	}
	return n
}

// mambaParts are the names of the tensors of a mixer; at is before those of its checkpoint.
func mambaParts(at string) map[string]string {
	return merged(ssmParts(at), map[string]string{
		"ssm_x": at + "x_proj", "ssm_dt": at + "dt_proj", "ssm_dt.bias": at + "dt_proj.bias", "ssm_dt_norm": at + "dt_layernorm",
		"ssm_b_norm": at + "b_layernorm", "ssm_c_norm": at + "c_layernorm",
	})
}

// mambaKeys are the keys of a mixer to its sizes in config.json.
func mambaKeys(kernel, states, rank string) map[string]string {
	return map[string]string{"ssm.conv_kernel": kernel, "ssm.state_size": states, "ssm.time_step_rank": rank, "ssm.inner_size": ggufInner}
}

// mambaForm is that of Mamba alone. The norms of what steps are made of have an epsilon of their own, which the files do not have.
func mambaForm(only func(ggufKeys) bool) *ggufForm {
	return &ggufForm{
		name: "mamba", only: only, decoder: "backbone.", names: backboneNames,
		parts: merged(mambaParts("mixer."), map[string]string{"attn_norm": "norm"}),
		keys: merged(mambaKeys("conv_kernel", "state_size", "time_step_rank"), map[string]string{
			"attention.head_count": "", "feed_forward_length": "", "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
			"ssm.dt_b_c_rms": "",
		}),
		spell: func(f *fields) {
			f.set("expand", f.expandedBy())
			f.set("use_conv_bias", f.inLayers("ssm_conv1d.bias"))
			f.set("use_bias", f.inLayers("ssm_in.bias"))
		},
		tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
	}
}

// jambaGGUF: layers with KV heads have attention, those with a router experts.
func jambaGGUF(f *fields) {
	f.set("mamba_expand", f.expandedBy())
	f.set("mamba_conv_bias", f.inLayers("ssm_conv1d.bias"))
	f.set("mamba_proj_bias", f.inLayers("ssm_in.bias"))
	f.hybridKinds(linearAttention)
	plain := []int{}
	for i := range f.size(maxLayers, "num_hidden_layers") {
		if _, ok := f.describe(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", i)); !ok {
			plain = append(plain, i)
		}
	}
	f.set("mlp_only_layers", plain)
}
