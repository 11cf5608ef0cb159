package model

// mistralConfig reads Mistral: Llama with a sliding window in every layer.
func mistralConfig(f *fields, c *Config) {
	llamaSizes(f, c, 8, 4096*32)
	missing := 4096 // MistralConfig's default; a null in the file means none
	if _, present := f.members["sliding_window"]; present {
		missing = 0
	}
	c.windows(f, 0, missing)
}

// windows reads sliding_window for the layers from first on, unless
// layer_types says for each layer what it has.
func (c *Config) windows(f *fields, first, missing int) {
	window := f.integer(missing, 1, maxPositions, "sliding_window")
	types := f.texts("layer_types")
	if f.err != nil {
		return
	}
	windows := make([]int, c.Layers)
	for i := range windows {
		if i >= first {
			windows[i] = window
		}
	}
	if types != nil {
		windows = layerTypeWindows(f, types, window, c.Layers)
	}
	if window > 0 && f.err == nil {
		c.Windows = windows
	}
}
