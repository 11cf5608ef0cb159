package family

import (
	"encoding/json"
	"fmt"
	"slices"
)

// withoutNext leaves out the layers that predict tokens after the next one: they are the last of the file's, and no op runs them.
func (f *fields) withoutNext() {
	if next := f.integer(0, 0, maxLayers, "num_nextn_predict_layers"); next > 0 {
		f.set("num_hidden_layers", f.integer(0, next+1, maxLayers, "num_hidden_layers")-next)
	}
}

// uniform is the one number of a list with an entry for each layer, where layers without such a thing have 0. It takes the place of the
// list. The result is the list, nil if the member is a number.
func (f *fields) uniform(name string) []int {
	all := f.listed(name)
	if all == nil {
		return nil
	}
	layers := f.size(maxLayers, "num_hidden_layers")
	if len(all) < layers {
		f.fault(name, fmt.Sprintf("%d entries", len(all)), fmt.Sprintf("one for each of %d layers", layers))
	}
	if f.err != nil {
		return nil
	}
	all = all[:layers] // without those that predict tokens after the next one
	most := slices.Max(all)
	for _, n := range all {
		if n != 0 && n != most {
			_, raw := f.get(name)
			f.fault(name, excerpt(raw), "one number, or 0, for each layer")
		}
	}
	f.set(name, most)
	return all
}

// windowKeys are the keys of windows; which layers have them is left to ggufTypes.
var windowKeys = map[string]string{"attention.sliding_window": "sliding_window", "attention.sliding_window_pattern": ggufPattern}

// ggufPattern is the member of sliding_window_pattern, which no config.json has: a flag for each layer with a window, or a number, see
// ggufTypes.
const ggufPattern = "gguf.sliding_window_pattern"

// ggufTypes sets layer_types: the layers that have a flag have a window; of a number n, or missing, all but each n-th.
func (f *fields) ggufTypes(missing int) {
	var sliders []bool
	name, raw := f.get(ggufPattern)
	layers := f.size(maxLayers, "num_hidden_layers")
	if raw == nil || json.Unmarshal(raw, &sliders) != nil {
		f.patternTypes(missing, name)
		return
	}
	if len(sliders) < layers {
		f.fault(name, fmt.Sprintf("%d entries", len(sliders)), fmt.Sprintf("one for each of %d layers", layers))
		return
	}
	f.setWindows(sliders[:layers])
}

// setWindows sets layer_types: the layers that have a flag have a window.
func (f *fields) setWindows(sliders []bool) {
	types := make([]string, len(sliders))
	for i, slides := range sliders {
		types[i] = map[bool]string{false: full, true: sliding}[slides]
	}
	f.set("layer_types", types)
}

// listed is a member's list of integers, nil if it is one number.
func (f *fields) listed(name string) (all []int) {
	_, raw := f.get(name)
	if raw == nil || json.Unmarshal(raw, &all) != nil {
		return nil
	}
	return all
}

// flaggedTypes sets layer_types from the flag of each layer, which may be a number. llama.cpp has no pattern for these families without it.
func (f *fields) flaggedTypes() {
	name, raw := f.get(ggufPattern)
	layers := f.size(maxLayers, "num_hidden_layers")
	var flags []json.RawMessage
	if raw == nil || json.Unmarshal(raw, &flags) != nil || len(flags) < layers {
		f.fault(name, excerpt(raw), fmt.Sprintf("a flag for each of %d layers", layers))
		return
	}
	sliders := make([]bool, layers)
	for i := range sliders {
		switch string(flags[i]) {
		case "true", "1":
			sliders[i] = true
		case "false", "0":
		default:
			f.fault(name, string(flags[i]), "a flag")
		}
	}
	f.setWindows(sliders)
}

// mlpTypes sets mlp_layer_types: layers with a plain MLP have the tensor of its gate.
func (f *fields) mlpTypes() {
	types := make([]string, f.size(maxLayers, "num_hidden_layers"))
	for i := range types {
		types[i] = "sparse"
		if _, ok := f.describe(fmt.Sprintf("blk.%d.ffn_gate.weight", i)); ok {
			types[i] = "dense"
		}
	}
	f.set("mlp_layer_types", types)
}

// ggufLocalBase is the member of rope.freq_base_swa, the rotary base of layers with a window. config.json of these families has no such
// member: the base is in its rope_parameters.
const ggufLocalBase = "gguf.rope.freq_base_swa"
