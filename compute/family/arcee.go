package family

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/weights"
)

// arcee is Llama whose MLP has no gate.
var arcee = family{
	class: "ArceeForCausalLM", bare: "ArceeModel", kind: "arcee",
	spell:  arceeSpell,
	config: arceeConfig,
	gguf:   &ggufForm{name: "arcee", interleaved: true},

	models:   "AFM 4.5B",
	features: "MLP without a gate, with the square of ReLU",
}

// apertus is Llama with norms over each head of q and k, and an MLP of xIELU without a gate.
var apertus = family{
	class: "ApertusForCausalLM", bare: "ApertusModel", kind: "apertus",
	spell:  apertusSpell,
	config: apertusConfig,
	gguf: &ggufForm{
		name:  "apertus",
		parts: map[string]string{"attn_norm": "attention_layernorm", "ffn_norm": "feedforward_layernorm"},
		keys: map[string]string{"xielu.alpha_p": "gguf.xielu.alpha_p", "xielu.alpha_n": "gguf.xielu.alpha_n",
			"xielu.beta": "gguf.xielu.beta", "xielu.eps": ""},
	},

	models:   "Apertus 8B, 70B",
	features: "RMS norm over each head of q and k, MLP without a gate, with xIELU",
}

// apertus15 is Apertus with more tokens than its head has rows: those of images and sound.
var apertus15 = family{
	class: "Apertus1p5TextForCausalLM", also: []string{"Apertus1p5ForConditionalGeneration"}, bare: "Apertus1p5TextModel",
	kind: "apertus1p5_text", spell: apertus15Spell,
	config:  apertusConfig,
	tensors: apertus15Tokens,

	models:   "Apertus 1.5 8B, also the text of models with images",
	features: "as Apertus; with `output_vocab_size` the tokens from there on, of images and sound, are left out",
}

// apertus15Spell takes text_config for the whole.
func apertus15Spell(f *fields) {
	f.liftText()
	apertusSpell(f)
	f.prefer(map[string]string{"output_vocab_size": "vocab_size"})
}

// apertus15Tokens leaves the rows of tokens that the head has out of the token table.
func apertus15Tokens(c *Config, w *weights.Checkpoint) error {
	shorten(w, "embed_tokens.weight", int64(c.Vocab))
	return nil
}

// arceeSpell sets the defaults of ArceeConfig.
func arceeSpell(f *fields) {
	f.defaults(map[string]any{"hidden_act": "relu2", "max_position_embeddings": 4096, "rms_norm_eps": 1e-5})
}

func arceeConfig(f *fields, c *Config) plan {
	p := llamaConfig(f, c).(llamaPlan)
	p.upOnly = true
	return p
}

// apertusSpell sets the defaults of ApertusConfig.
func apertusSpell(f *fields) {
	f.defaults(map[string]any{"hidden_act": "xielu", "max_position_embeddings": 65536, "rms_norm_eps": 1e-5})
	if !f.has("rope_parameters") && !f.has("rope_scaling") && !f.has("rope_theta") {
		f.set("rope_scaling", map[string]any{
			"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192,
		})
	}
	f.defaults(map[string]any{"rope_theta": 12e6})
}

// apertusConfig: source is transformers, modeling_apertus.py.
func apertusConfig(f *fields, c *Config) plan {
	xielu := f.text("", "hidden_act") == "xielu"
	if xielu {
		f.set("hidden_act", "silu")
	}
	p := llamaConfig(f, c).(llamaPlan)
	c.QKNorm, c.MLPBias = true, false
	p.upOnly, p.xielu = true, xielu
	p.xieluOf = f.xieluLists(c)
	p.norms = layerNorms{attention: "attention_layernorm", mlp: "feedforward_layernorm"}
	return p
}

func softplus(x float64) float64 { return math.Log1p(math.Exp(x)) }

// xielu makes the op end with xIELU, whose parameters the checkpoint has for each layer; own are those of a GGUF file, nil: there are
// tensors.
func (b *builder) xielu(op *model.Op, at string, own []float64) {
	const beta = 0.5
	if own != nil { // of a GGUF file
		op.Activation, op.ActA, op.ActB = model.ActXIELU, float32(softplus(own[0])), float32(beta+softplus(own[1]))
		return
	}
	number := func(name string) float64 { return softplus(b.number(at + name)) }
	op.Activation, op.ActA, op.ActB = model.ActXIELU, float32(number("alpha_p")), float32(beta+number("alpha_n"))
	if _, ok := b.find(b.name(at + "beta")); ok && b.number(at+"beta") != beta {
		b.fault(b.cfg.Path(), b.name(at+"beta"), "another number", "0.5")
	}
}

// xieluLists are alpha_p and alpha_n of each layer in a GGUF file; nil: the checkpoint has tensors.
func (f *fields) xieluLists(c *Config) (all [][]float64) {
	positive, negative := list[float64](f, "gguf.xielu.alpha_p", "a list of numbers"),
		list[float64](f, "gguf.xielu.alpha_n", "a list of numbers")
	if positive == nil && negative == nil {
		return nil
	}
	if f.err == nil && (len(positive) < c.Layers || len(negative) < c.Layers) {
		f.fault("gguf.xielu.alpha_p", fmt.Sprintf("%d and %d numbers", len(positive), len(negative)),
			fmt.Sprintf("two for each of %d layers", c.Layers))
		return nil
	}
	for i, beta := range list[float64](f, "gguf.xielu.beta", "a list of numbers") {
		if beta != 0.5 {
			f.fault("gguf.xielu.beta", fmt.Sprint(beta), fmt.Sprintf("0.5 in layer %d", i))
		}
	}
	for i := range min(len(positive), len(negative)) {
		all = append(all, []float64{positive[i], negative[i]})
	}
	return all
}
