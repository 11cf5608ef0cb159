package family

// qwen2 is Qwen2 and 2.5: Llama with biases on q, k and v only.
var qwen2 = family{
	class: "Qwen2ForCausalLM", bare: "Qwen2Model", kind: "qwen2",
	config: qwen2Config,
	gguf:   &ggufForm{name: "qwen2"},

	models:   "Qwen2, Qwen2.5",
	features: "+ biases on q, k, v; sliding window from layer `max_window_layers` on, with `use_sliding_window`",
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
