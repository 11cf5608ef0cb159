package family

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// mamba2 is the mixer of Mamba-2 (arXiv:2405.21060): a convolution over x, B and C, then a state of each head that decays by one number.
type mamba2 struct {
	at               string // before the tensors' names: "mamba."
	heads, headDim   int
	groups, states   int // heads / groups heads in sequence share B and C, of `states` numbers
	kernel           int
	convBias, inBias bool
	outBias          bool
	least, most      float32 // of a step
	eps              float32 // of the norm over the heads of a group
	plain            bool    // the gate has no norm
	normFirst        bool    // the norm is before the gate
}

// mambaNames are the names of a mixer's sizes in config.json.
type mambaNames struct{ heads, headDim, groups, states, kernel, convBias, inBias string }

// readMamba reads a mixer; missing are the class's defaults of the sizes.
func readMamba(f *fields, n mambaNames, missing mamba2) *mamba2 {
	m := &missing
	m.heads = f.integer(m.heads, 1, maxHeads, n.heads)
	m.headDim = f.integer(m.headDim, 1, maxHeadDim, n.headDim)
	m.groups = f.integer(m.groups, 1, maxHeads, n.groups)
	m.states = f.integer(m.states, 1, maxHeadDim, n.states)
	m.kernel = f.integer(m.kernel, 2, maxKernel, n.kernel)
	m.convBias, m.inBias = f.flag(true, n.convBias), f.flag(false, n.inBias)
	f.divides(n.heads, m.heads, n.groups, m.groups)
	m.outBias = m.inBias
	m.least, m.most = f.stepLimit()
	return m
}

// stepUnlimited is the most of a step without a limit.
var stepUnlimited = float32(math.Inf(1))

// stepLimit is the least and the most of a step.
func (f *fields) stepLimit() (least, most float32) {
	most = stepUnlimited
	name, raw := f.get("time_step_limit")
	if raw == nil {
		return least, most
	}
	var limits []json.RawMessage
	if json.Unmarshal(raw, &limits) != nil || len(limits) != 2 {
		f.fault(name, excerpt(raw), "two numbers")
		return least, most
	}
	infinite := strings.Contains(string(limits[1]), `"Infinity"`)
	if json.Unmarshal(limits[0], &least) != nil || !infinite && json.Unmarshal(limits[1], &most) != nil || !(least >= 0 && least <= most) {
		f.fault(name, excerpt(raw), "two numbers, the first of 0 or more and at most the second")
	}
	return least, most
}

func (m *mamba2) open(b *builder) func(at string, in int) (out int, back model.Part) {
	inner, shared := m.heads*m.headDim, m.groups*m.states
	channels := inner + 2*shared
	xbc := b.slot("mamba.xbc", model.SlotF32, channels)
	mixed := b.slot("mamba.mixed", model.SlotF32, channels)
	gates := b.slot("mamba.gates", model.SlotF32, inner+m.heads)
	read := b.slot("mamba.read", model.SlotF32, inner)
	gated := b.slot("mamba.gated", model.SlotOperand, inner)
	return func(at string, in int) (int, model.Part) {
		at += m.at
		all := inner + channels + m.heads
		rows := func(offset, n int) model.Part {
			part := b.rowsOf(at+"in_proj", all, b.cfg.Hidden, offset, n, n, n)
			part.Bias = b.tensorIf(m.inBias, at+"in_proj.bias", all)
			return part
		}
		b.linear("mamba.xbc", in, xbc, model.ActNone, rows(inner, channels))
		b.linear("mamba.gates", in, gates, model.ActNone, rows(0, inner), rows(inner+channels, m.heads))
		b.conv("mamba.conv", at+"conv1d", xbc, mixed, channels, m.kernel, m.convBias).SiLU = true
		b.recur("mamba.recur", mixed, read, model.Recur{
			Rule: model.RecurSSM, Heads: m.heads, KeyHeads: m.groups, Keys: m.states, Values: m.headDim,
			V: 0, K: inner, Q: inner + shared, Gates: gates, Decay: inner, Rate: model.None,
			ALog: b.tensor(at+"A_log", m.heads), DtBias: b.tensor(at+"dt_bias", m.heads), Skip: b.tensor(at+"D", m.heads),
			LeastStep: m.least, MostStep: m.most,
		})
		gate := model.Gate{Gates: gates, Weight: model.None}
		if !m.plain {
			gate.Group, gate.Weight, gate.First, gate.Eps = inner/m.groups, b.tensor(at+"norm.weight", inner), !m.normFirst, m.eps
		}
		b.gate("mamba.gate", read, gated, gate)
		return gated, b.part(at+"out_proj", m.outBias, b.cfg.Hidden, inner)
	}
}

// bamba is Bamba, whose other layers are those of Mamba-2.
var bamba = family{
	class: "BambaForCausalLM", bare: "BambaModel", kind: "bamba",
	config: bambaConfig,
	gguf: &ggufForm{ // the architecture of Granite's hybrids, without their factors
		name: "granitehybrid", interleaved: true,
		only:  func(k ggufKeys) bool { return k.of("logit_scale") == nil },
		names: map[string]string{"output_norm": "final_layernorm"},
		parts: merged(ssmParts("mamba."), map[string]string{
			"ffn_norm.weight": "pre_ff_layernorm.weight", "ffn_norm": "pre_ff_layernorm.weight", "ffn_gate": "feed_forward.gate_proj",
			"ffn_up": "feed_forward.up_proj", "ffn_down": "feed_forward.down_proj",
		}),
		keys:    merged(ssmKeys(bambaNames), map[string]string{"rope.dimension_count": ""}), // half of a head
		spell:   bambaGGUF,
		tensors: func(_ *Config, w *weights.Checkpoint) error { return stateTensors(w) },
	},

	models:   "Bamba",
	features: "Mamba-2 layers, attention with half of a head rotated in the layers of `attn_layer_indices`",
}

// bambaNames are the names of the mixer's sizes in the configurations of Bamba, Granite and Falcon-H1.
var bambaNames = mambaNames{
	heads: "mamba_n_heads", headDim: "mamba_d_head", groups: "mamba_n_groups", states: "mamba_d_state", kernel: "mamba_d_conv",
	convBias: "mamba_conv_bias", inBias: "mamba_proj_bias",
}

// mambaOf reads the mixer of Bamba, the Granite hybrids and Falcon-H1, whose size of a head may be "auto". Its heads make mamba_expand
// times hidden_size together, or what the class reads as own, if that is there.
func mambaOf(f *fields, c *Config, own ...string) *mamba2 {
	inner, made := f.integer(2, 1, 64, "mamba_expand")*c.Hidden, "mamba_expand times hidden_size"
	for _, name := range own {
		inner, made = f.integer(inner, 1, maxWidth, name), name+" or "+made
	}
	heads := f.integer(128, 1, maxHeads, "mamba_n_heads")
	if _, raw := f.get("mamba_d_head"); string(raw) == `"auto"` || raw == nil {
		f.set("mamba_d_head", max(inner/max(heads, 1), 1))
	}
	m := readMamba(f, bambaNames, mamba2{at: "mamba.", heads: 128, headDim: 64, groups: 1, states: 256, kernel: 4, eps: c.Eps})
	if f.err == nil && m.heads*m.headDim != inner {
		f.fault("mamba_d_head", fmt.Sprint(m.headDim), fmt.Sprintf("heads that make %d together, %s", inner, made))
	}
	return m
}

// bambaPlan has the names of Bamba's tensors, which are those of Falcon-H1 too.
func bambaPlan() llamaPlan {
	return llamaPlan{
		norms: layerNorms{attention: "input_layernorm", mlp: "pre_ff_layernorm"},
		names: strings.NewReplacer("mlp.gate_proj", "feed_forward.gate_proj", "mlp.up_proj", "feed_forward.up_proj", "mlp.down_proj",
			"feed_forward.down_proj"),
		final: "final_layernorm",
	}
}

// bambaConfig: source is transformers, modeling_bamba.py.
func bambaConfig(f *fields, c *Config) plan {
	f.defaults(map[string]any{"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "intermediate_size": 14336})
	decoderSizes(f, c, 0)
	f.set("partial_rotary_factor", 0.5)
	p := bambaPlan()
	p.rotary = partialRope(f, c, 262144, 0.5)
	c.attentionBias(f, false)
	c.MLPBias = f.flag(false, "mlp_bias")
	p.mixer = mambaOf(f, c)
	attention := f.integers("attn_layer_indices")
	p.recurrent = make([]bool, c.Layers)
	for i := range p.recurrent {
		p.recurrent[i] = !slices.Contains(attention, i)
	}
	return p
}

// bambaGGUF: layers with KV heads have attention.
func bambaGGUF(f *fields) {
	f.mixer(bambaNames)
	f.set("mamba_expand", f.expandedBy())
	attention := []int{}
	for i, heads := range f.uniform("num_key_value_heads") {
		if heads > 0 {
			attention = append(attention, i)
		}
	}
	f.set("attn_layer_indices", attention)
}
