package model

import "fmt"

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

// layerTypeWindows is the window of each layer by its name in layer_types.
func layerTypeWindows(f *fields, types []string, window, layers int) []int {
	if len(types) != layers {
		f.fault("layer_types", fmt.Sprintf("%d entries", len(types)), fmt.Sprintf("one for each of %d layers", layers))
		return nil
	}
	windows := make([]int, layers)
	for i, t := range types {
		switch t {
		case "full_attention":
		case "sliding_attention":
			windows[i] = window
		default:
			f.fault("layer_types", fmt.Sprintf("%.40q", t), "full_attention or sliding_attention")
		}
	}
	return windows
}
