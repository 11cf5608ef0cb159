package family

import (
	"fmt"
	"slices"
)

// Types of layers, in layer_types.
const (
	full    = "full_attention"
	sliding = "sliding_attention"
	chunks  = "chunked_attention"
)

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

// fullLayers says which layers have no window; nil: none has one.
func (c *Config) fullLayers() (without []bool) {
	for _, window := range c.Windows {
		without = append(without, window == 0)
	}
	return without
}

// patternTypes sets layer_types where there is none: each layer whose number is a multiple of the pattern's is full.
func (f *fields) patternTypes(missing int, names ...string) {
	layers := f.integer(1, 1, maxLayers, "num_hidden_layers")
	pattern := missing
	if len(names) > 0 {
		pattern = f.integer(missing, 1, maxLayers, names...)
	}
	types := make([]string, layers)
	for i := range types {
		types[i] = sliding
		if (i+1)%pattern == 0 {
			types[i] = full
		}
	}
	f.defaults(map[string]any{"layer_types": types})
}

// firstTypes sets layer_types where there is none: of every n layers the first one is full.
func (f *fields) firstTypes(n int) {
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = sliding
		if i%n == 0 {
			types[i] = full
		}
	}
	f.defaults(map[string]any{"layer_types": types})
}

// sameTypes sets the types of layers where there are none: all are of one type.
func (f *fields) sameTypes(name, kind string) {
	f.defaults(map[string]any{name: slices.Repeat([]string{kind}, f.size(maxLayers, "num_hidden_layers"))})
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
		case full:
		case sliding:
			windows[i] = window
		default:
			f.fault("layer_types", fmt.Sprintf("%.40q", t), "full_attention or sliding_attention")
		}
	}
	return windows
}
