package family

// qwen2 is Qwen2 and 2.5: Llama with biases on q, k and v only.
var qwen2 = family{
	class: "Qwen2ForCausalLM",
	also:  []string{"Qwen2ForSequenceClassification", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"},
	bare:  "Qwen2Model", kind: "qwen2", spell: qwenVisionSpell(1e6, 1e-5), config: qwen2Config,
	gguf: &ggufForm{name: "qwen2", also: []string{"qwen2vl"}},

	models:   "Qwen2, Qwen2.5, the text of Qwen2-VL and Qwen2.5-VL",
	features: "+ biases on q, k, v; sliding window from layer `max_window_layers` on, with `use_sliding_window`",
}

// qwenVisionSpell takes text_config of a model with images for the whole, and sets the defaults of the text model's class.
func qwenVisionSpell(theta, eps float64) func(*fields) {
	return func(f *fields) {
		if f.has("vision_config") {
			f.liftText()
			f.defaults(map[string]any{"rope_theta": theta, "rms_norm_eps": eps})
		}
	}
}

func qwen2Config(f *fields, c *Config) plan {
	llamaSizes(f, c, 32, 32768)
	c.QKVBias = true
	qwenWindows(f, c)
	return llamaPlan{}
}

// qwenWindows reads the sliding window of the layers from max_window_layers
// on, which counts only with use_sliding_window.
func qwenWindows(f *fields, c *Config) {
	if f.flag(false, "use_sliding_window") {
		c.windows(f, f.integer(28, 0, maxLayers, "max_window_layers"), 4096)
	}
}
