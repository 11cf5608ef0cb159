package family

import (
	"fmt"
	"math"
	"strings"

	"github.com/millrace/millrace/compute/weights"
)

// gemma3 is the text model of Gemma 3: norms before and after each block, an embedding times the root of its width, and two rotary
// embeddings, one for layers with a window.
var gemma3 = family{
	class: "Gemma3ForCausalLM", also: []string{"Gemma3TextForSequenceClassification", "Gemma3ForConditionalGeneration"},
	bare: "Gemma3TextModel", kind: "gemma3_text", spell: gemma3Spell,
	config:  gemma3Config,
	tensors: gemmaNorms,
	gguf: &ggufForm{
		name: "gemma3", also: []string{gemmaEmbedding},
		parts: sandwichParts,
		head:  map[string]string{"dense_2": "2_Dense/linear", "dense_3": "3_Dense/linear"},
		keys: map[string]string{
			"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": "sliding_window_pattern",
			"rope.freq_base_swa": "rope_local_base_freq", "final_logit_softcapping": "final_logit_softcapping",
			"attention.causal": ggufCausal,
			// their tensors say it too
			"dense_2_feat_in": "", "dense_2_feat_out": "", "dense_3_feat_in": "", "dense_3_feat_out": "",
		},
		spell: gemma3GGUF,
	},

	models:   "Gemma 3, the text of models with images too, EmbeddingGemma",
	features: "RMS norms before and after each block, RMS norm over each head of q and k, scaled embedding, gated GELU, sliding windows by `layer_types` or `sliding_window_pattern`, with a rotary base of their own; attention both ways (`use_bidirectional_attention`)",
}

// gemma3Spell takes text_config for the whole, and sets what checkpoints leave out: the defaults of Gemma3TextConfig.
func gemma3Spell(f *fields) {
	f.liftText()
	f.sizes(262208, 2304, 9216, 26, 8)
	f.defaults(map[string]any{
		"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072, "rope_theta": 1e6, "sliding_window": 4096,
		"tie_word_embeddings": true,
	})
	gemmaActivation(f)
	f.patternTypes(6, "sliding_window_pattern", "_sliding_window_pattern")
}

// gemmaActivation gives the activation the name that most classes have.
func gemmaActivation(f *fields) {
	f.defaults(map[string]any{"hidden_act": "gelu_pytorch_tanh"})
	f.prefer(map[string]string{"hidden_activation": "hidden_act"})
}

// gemma3Config: source is transformers, modeling_gemma3.py.
func gemma3Config(f *fields, c *Config) plan {
	decoderSizes(f, c, 0)
	c.QKNorm = true
	c.attentionBias(f, false)
	for _, name := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if _, raw := f.get(name); raw != nil {
			f.fault(name, excerpt(raw), "null")
		}
	}
	var head *classHead
	if f.flag(false, "use_bidirectional_attention") { // EmbeddingGemma: a row sees those up to half of the window away
		if c.encoder(f); len(c.Classifier.Labels) > 0 {
			f.fault("use_bidirectional_attention", "true", "false, with a head for classes")
		}
		head, c.NoHead = &classHead{}, false
		f.set("sliding_window", f.integer(4096, 1, maxPositions, "sliding_window")/2+1)
	}
	local := twoRopes(f, c, f.integer(0, 1, maxPositions, "max_position_embeddings"),
		f.number(10000, minTheta, maxTheta, "rope_local_base_freq"))
	c.windows(f, 0, 0)
	return llamaPlan{
		encoder: head,
		local:   &local,
		norms: layerNorms{
			attention: "input_layernorm", attended: "post_attention_layernorm", mlp: "pre_feedforward_layernorm",
			mlpDone: "post_feedforward_layernorm",
		},
		embedScale:        float32(math.Sqrt(float64(c.Hidden))), // Gemma3TextScaledWordEmbedding
		embedScaleRounded: true,
		attentionScale:    float32(1 / math.Sqrt(f.number(256, 1, maxWidth, "query_pre_attn_scalar"))),
	}
}

// twoRopes reads the rotary embedding into c, and returns that of layers with a window, in either spelling. theta is its base in the older
// one.
func twoRopes(f *fields, c *Config, positions int, theta float64) (local Rope) {
	local, partial := layerRopes(f, c, positions, theta)
	f.wholeHeads(partial)
	return local
}

// layerRopes is twoRopes with a rotary embedding of part of a head, which it returns.
func layerRopes(f *fields, c *Config, positions int, theta float64) (local Rope, partial float64) {
	local = Rope{Type: "default", Theta: theta}
	types := f.ropeObject()
	global := types
	if types.has(sliding) || types.has(full) {
		s := types.object(sliding)
		local.Theta = s.number(local.Theta, minTheta, maxTheta, "rope_theta")
		if kind := s.text("default", "rope_type", "type"); kind != "default" {
			s.fault("rope_type", fmt.Sprintf("%.40q", kind), "default")
		}
		types.adopt(s)
		global = types.object(full)
	}
	f.adopt(types)
	partial = c.readRope(f, global, positions)
	c.MaxPositions = positions // extended already
	return local, partial
}

// gemmaNorms adds one to the weights of the norms, as GemmaRMSNorm and Gemma3RMSNorm do. GGUF files have the sums.
func gemmaNorms(_ *Config, w *weights.Checkpoint) error {
	return onePlus(w, func(name string) bool {
		return strings.HasSuffix(name, "norm.weight") && !strings.Contains(name, "vision")
	})
}

// gemmaEmbedding is the architecture of GGUF files of EmbeddingGemma.
const gemmaEmbedding = "gemma-embedding"

// gemma3GGUF sets what llama.cpp knows by the architecture, and by the model's size.
func gemma3GGUF(f *fields) {
	scalar := f.integer(0, 1, maxHeadDim, "head_dim")
	encoder := f.kind == gemmaEmbedding
	if causal := f.flag(!encoder, ggufCausal); causal == encoder {
		f.fault(ggufCausal, fmt.Sprint(causal), fmt.Sprint(!encoder))
	}
	if encoder {
		f.set("use_bidirectional_attention", true)
	} else if layers := f.size(maxLayers, "num_hidden_layers"); layers == 62 { // 27B
		scalar = f.size(maxWidth, "hidden_size") / max(f.size(maxHeads, "num_attention_heads"), 1)
	}
	f.set("query_pre_attn_scalar", scalar)
}

// ggufDense takes the dense layers after the pooling from their matrices. Files without them give vectors without these layers.
func (c *Config) ggufDense(tensors describer) error {
	if !c.Encoder || c.Architecture != gemma3.class {
		return nil
	}
	width := c.Hidden
	for _, folder := range []string{"2_Dense", "3_Dense"} {
		d := Dense{Folder: folder, In: width}
		t, ok := tensors.Describe(d.linear() + ".weight")
		if !ok {
			continue
		}
		if len(t.Shape) != 2 || t.Shape[0] > maxWidth {
			return &weights.FormatError{File: c.File, Name: d.linear(), Found: fmt.Sprint(t.Shape), Expected: "a matrix"}
		}
		width = int(t.Shape[0])
		d.Out = width
		c.Pooling.Dense = append(c.Pooling.Dense, d)
	}
	if width != c.Hidden {
		return &weights.FormatError{File: c.File, Name: "dense_3.weight", Found: fmt.Sprintf("vectors of %d", width),
			Expected: fmt.Sprintf("%d, the width of a hidden state", c.Hidden)}
	}
	return nil
}
