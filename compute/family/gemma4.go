package family

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// gemma4 is the text model of Gemma 4: dense, with inputs of each layer by the token, or with experts beside each MLP.
var gemma4 = family{
	class: "Gemma4ForCausalLM", also: []string{"Gemma4ForConditionalGeneration"}, bare: "Gemma4TextModel", kind: "gemma4_text",
	spell:   gemma4Spell,
	config:  gemma4Config,
	tensors: gemma4Tensors,
	gguf: &ggufForm{
		name:  "gemma4",
		names: gemmaTables,
		parts: merged(gemmaParts, map[string]string{
			"layer_output_scale.weight": "layer_scalar", "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
			"post_ffw_norm_1": "post_feedforward_layernorm_1", "post_ffw_norm_2": "post_feedforward_layernorm_2",
			"ffn_gate_inp": "router.proj", "ffn_gate_inp.scale": "router.scale", "ffn_down_exps.scale": "router.per_expert_scale",
			"ffn_gate_up_exps.weight": "experts.gate_up_proj", "ffn_gate_exps": "experts.gate_proj", "ffn_up_exps": "experts.up_proj",
			"ffn_down_exps": "experts.down_proj",
		}),
		keys: merged(gemmaKeys, map[string]string{
			"attention.key_length": "global_head_dim", "attention.key_length_swa": "head_dim", "rope.dimension_count_swa": "gguf.rotated",
			"attention.value_length": "gguf.values", "attention.value_length_swa": "gguf.window_values",
			"rope.dimension_count": "gguf.full_rotated", "expert_count": "num_experts", "expert_used_count": "top_k_experts",
			"expert_feed_forward_length": "moe_intermediate_size",
		}),
		spell:   gemma4GGUF,
		tensors: gemma4Tensors,
	},

	models: "the text of Gemma 4 (E2B, E4B, 26B A4B, 31B)",
	features: "as Gemma 3, heads and KV heads of full layers of their own (`global_head_dim`, `num_global_key_value_heads`), values that are keys (`attention_k_eq_v`), " +
		"norms of values, proportional rotary embedding, layers that share keys and values (`num_kv_shared_layers`), wider MLPs there (`use_double_wide_mlp`), inputs of " +
		"each layer by the token (`hidden_size_per_layer_input`), factors of layers, experts beside the MLP (`enable_moe_block`), `final_logit_softcapping`",
}

type gemma4Plan struct {
	gemmaLayers
	experts *experts // beside each MLP; nil: none
}

// gemma4Spell takes text_config for the whole, and sets the defaults of Gemma4TextConfig.
func gemma4Spell(f *fields) {
	f.liftText()
	f.sizes(262144, 2304, 9216, 30, 8)
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "sliding_window": 512, "tie_word_embeddings": true,
		"vocab_size_per_layer_input": 262144,
		"rope_parameters": map[string]any{
			sliding: map[string]any{"rope_type": "default", "rope_theta": 10000},
			full:    map[string]any{"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000},
		},
	})
	gemmaActivation(f)
	f.patternTypes(6)
	f.lastFull()
}

// gemma4Config: source is transformers, modeling_gemma4.py.
func gemma4Config(f *fields, c *Config) plan {
	if mode := f.text("vision", "use_bidirectional_attention"); mode != "vision" { // of images alone
		f.fault("use_bidirectional_attention", fmt.Sprintf("%.40q", mode), "vision or null")
	}
	p := gemma4Plan{gemmaLayers: gemmaLayersConfig(f, c)}
	if p.perLayer > 0 && f.err == nil && p.perVocab < c.Vocab {
		f.fault("vocab_size_per_layer_input", fmt.Sprint(p.perVocab), fmt.Sprintf("at least vocab_size, %d", c.Vocab))
	}
	p.shapes(f, c)
	wide := f.flag(false, "use_double_wide_mlp")
	for i := range p.layers {
		if l := &p.layers[i]; wide && l.source != i {
			l.intermediate *= 2
		}
	}
	if f.flag(false, "enable_moe_block") {
		e := readExperts(f, []string{"num_experts"}, []string{"top_k_experts"}, []string{"moe_intermediate_size"})
		e.routing.Normalize = true
		e.names = expertNames{router: "router.proj", factors: "router.per_expert_scale", gate: "gate_proj", up: "up_proj",
			down: "down_proj"}
		p.experts = e
	}
	return p
}

// shapes reads the heads of full layers: of each layer, or of all of them, as older configurations have it.
func (p gemma4Plan) shapes(f *fields, c *Config) {
	dim := f.integer(512, 1, maxHeadDim, "global_head_dim")
	same := f.flag(false, "attention_k_eq_v")
	heads := c.KVHeads
	if same {
		heads = f.integer(heads, 1, maxHeads, "num_global_key_value_heads")
	}
	listed := f.has("per_layer_config")
	each := f.object("per_layer_config")
	for i := range p.layers {
		l := &p.layers[i]
		global := len(c.Windows) == 0 || c.Windows[i] == 0
		if global && !listed {
			l.headDim, l.kvHeads = dim, heads
		}
		if listed {
			own := each.object(strconv.Itoa(i))
			l.headDim = own.integer(l.headDim, 1, maxHeadDim, "head_dim")
			l.kvHeads = own.integer(l.kvHeads, 1, maxHeads, "num_key_value_heads")
			each.adopt(own)
		}
		l.keysOnly = same && global
		if f.err == nil && (l.headDim%2 != 0 || c.Heads%l.kvHeads != 0) {
			f.fault("num_hidden_layers", fmt.Sprintf("%d KV heads of %d elements in layer %d", l.kvHeads, l.headDim, i),
				fmt.Sprintf("a divisor of the %d attention heads, of an even number", c.Heads))
		}
	}
	f.adopt(each)
}

func (p gemma4Plan) build(b *builder) {
	c := b.cfg
	b.findText("embed_tokens", "model.")
	x := b.slot("residual", model.SlotF32, c.Hidden)
	normed := b.slot("normed", model.SlotOperand, c.Hidden)
	branch := b.slot("branch", model.SlotF32, c.Hidden)
	mid := newSlots("mid", model.SlotOperand)
	b.layer = model.None
	table := p.scaledTable(b, x)
	var inputs perLayerInputs
	if p.perLayer > 0 {
		inputs = p.openInputs(b, x)
	}
	var mixture expertSlots
	mixed := model.None
	if p.experts != nil {
		mixture, mixed = p.experts.makeSlots(b), b.slot("mixed", model.SlotF32, c.Hidden)
	}
	attend := p.attention(b)
	for i := range c.Layers {
		b.layer = i
		l := p.layers[i]
		at := fmt.Sprintf("layers.%d.", i)
		scale := p.layerScale(b, at)
		b.rmsNorm("attn.norm", at+"input_layernorm", x, normed)
		out := attend(at+"self_attn.", normed)
		if p.perLayer > 0 {
			b.selectInLast(&x, &out, &inputs.all)
		} else {
			b.selectInLast(&x, &out)
		}
		b.linear("attn.out", out, branch, model.ActNone, p.outPart(b, at+"self_attn."))
		b.addNorm("attn.post_norm", at+"post_attention_layernorm", branch, x)
		b.rmsNorm("mlp.norm", at+"pre_feedforward_layernorm", x, normed)
		hidden := mid.of(b, l.intermediate)
		b.gatedLinear("mlp.gate_up", normed, hidden, c.Activation,
			b.part(at+"mlp.gate_proj", false, l.intermediate, c.Hidden), b.part(at+"mlp.up_proj", false, l.intermediate, c.Hidden))
		b.linear("mlp.down", hidden, branch, model.ActNone, b.part(at+"mlp.down_proj", false, c.Hidden, l.intermediate))
		if p.experts != nil {
			p.mix(b, mixture, at, x, normed, mixed, branch)
		}
		b.addNorm("mlp.post_norm", at+"post_feedforward_layernorm", branch, x)
		if p.perLayer > 0 {
			p.applyInput(b, inputs, at, x, branch)
			b.addNorm("input.post_norm", at+"post_per_layer_input_norm", branch, x)
		}
		b.last().NormScale = scale
	}
	b.layer = model.None
	b.rmsNorm("final.norm", "norm", x, normed)
	b.cappedLogits(normed, table, false, p.softcap)
}

// mix appends branch = norm(branch) + norm(what the experts make of a norm of x). The router has another norm of x.
func (p gemma4Plan) mix(b *builder, s expertSlots, at string, x, normed, mixed, branch int) {
	b.rmsNorm("mlp.dense_norm", at+"post_feedforward_layernorm_1", branch, branch)
	op := newOp(model.OpNorm, "mlp.router_norm", x, normed)
	op.Norm, op.Eps, op.Weight = model.NormRMS, b.cfg.Eps, b.tensor(at+"router.scale", b.cfg.Hidden)
	b.op(op)
	p.experts.choose(b, s, at, normed)
	b.rmsNorm("mlp.experts_norm", at+"pre_feedforward_layernorm_2", x, normed)
	p.experts.run(b, s, at, normed, mixed, false)
	b.addNorm("mlp.mixed_norm", at+"post_feedforward_layernorm_2", mixed, branch)
}

// layerScale is the factor of what a layer gives; 0: 1.
func (p gemma4Plan) layerScale(b *builder, at string) float32 {
	if scale := float32(b.number(at + "layer_scalar")); scale != 1 {
		return scale
	}
	return 0
}

// gemma4Tensors divides the factors of what routers read by the root of its width, as Gemma4TextRouter does.
func gemma4Tensors(c *Config, w *weights.Checkpoint) error {
	root := float32(1 / math.Sqrt(float64(c.Hidden)))
	return w.Replace(named(w, func(name string) bool { return strings.HasSuffix(name, "router.scale") }),
		func(x float32) float32 { return x * root })
}

// gemma4GGUF: numbers that differ by the layer are lists; which pairs of a head turn is a tensor of divisors, and no values in a layer
// means that they are the keys.
func gemma4GGUF(f *fields) {
	f.gemmaGGUF()
	for name, size := range map[string]string{"gguf.rotated": "head_dim", "gguf.window_values": "head_dim",
		"gguf.values": "global_head_dim", "gguf.full_rotated": "global_head_dim"} {
		if own := f.integer(0, 1, maxHeadDim, size); f.integer(own, 0, maxHeadDim, name) != own {
			f.fault(name, excerpt(f.members[name]), fmt.Sprintf("the size of a head, %d", own))
		}
	}
	layers, dim := f.size(maxLayers, "num_hidden_layers"), f.size(maxHeadDim, "global_head_dim")
	widths, heads, types := f.listed("intermediate_size"), f.listed("num_key_value_heads"), f.texts("layer_types")
	if f.err != nil || len(types) != layers {
		return
	}
	if len(widths) >= layers {
		f.set("intermediate_size", widths[0])
		f.set("use_double_wide_mlp", widths[layers-1] != widths[0])
		for i, width := range widths[:layers] {
			if shared := i >= layers-f.integer(0, 0, layers, "num_kv_shared_layers"); width != widths[0] &&
				(!shared || width != 2*widths[0]) {
				f.fault("intermediate_size", fmt.Sprint(width),
					fmt.Sprintf("%d, or twice that in layers that share keys and values", widths[0]))
			}
		}
	}
	each, same := map[string]any{}, false
	for i, kind := range types {
		own := map[string]any{}
		if kind == full {
			own["head_dim"] = dim
			_, has := f.tensors.Describe(fmt.Sprintf("model.layers.%d.self_attn.v_proj.weight", i))
			_, keys := f.tensors.Describe(fmt.Sprintf("model.layers.%d.self_attn.k_proj.weight", i))
			same = same || keys && !has
		}
		if len(heads) >= layers {
			own["num_key_value_heads"] = heads[i]
		}
		each[strconv.Itoa(i)] = own
	}
	if len(heads) > 0 {
		f.set("num_key_value_heads", heads[0])
	}
	f.set("per_layer_config", each)
	f.set("attention_k_eq_v", same)
	f.set("enable_moe_block", f.integer(0, 0, maxExperts, "num_experts") > 0)
	turning := dim / 8 // as published
	if t, ok := f.tensors.Describe("rope_freqs.weight"); ok {
		divisors := ggufFactors(f.tensors, "rope_freqs.weight")
		if len(divisors) != dim/2 {
			f.fault("rope_freqs.weight", fmt.Sprintf("%s %v", t.Type, t.Shape), fmt.Sprintf("F32 [%d]", dim/2))
		}
		turning = 0
		for turning < len(divisors) && divisors[turning] == 1 {
			turning++
		}
		for _, d := range divisors[turning:] {
			if d < 1e20 {
				f.fault("rope_freqs.weight", fmt.Sprint(d), "ones, and divisors of 1e30 after them")
			}
		}
	}
	f.set("rope_parameters", map[string]any{
		sliding: map[string]any{"rope_type": "default", "rope_theta": f.number(10000, minTheta, maxTheta, "rope_local_base_freq")},
		full: map[string]any{
			"rope_type": "proportional", "rope_theta": f.number(1e6, minTheta, maxTheta, "rope_theta"),
			"partial_rotary_factor": 2 * float64(turning) / float64(dim),
		},
	})
}
