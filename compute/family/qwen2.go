package family

// qwen2Config reads Qwen2 and 2.5: Llama with biases on q, k and v only.
func qwen2Config(f *fields, c *Config) {
	llamaSizes(f, c, 32, 32768)
	c.QKVBias = true
	qwenWindows(f, c)
}

// qwenWindows reads the sliding window of the layers from max_window_layers
// on, which counts only with use_sliding_window.
func qwenWindows(f *fields, c *Config) {
	if f.flag(false, "use_sliding_window") {
		c.windows(f, f.integer(28, 0, maxLayers, "max_window_layers"), 4096)
	}
}
