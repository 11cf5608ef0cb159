package family

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// cohereCompass is Command-R7B rotated by halves, with a rotary embedding by the type of the layer.
var cohereCompass = family{
	class: "CohereCompassForCausalLM", also: []string{"CohereCompassForConditionalGeneration"}, bare: "CohereCompassTextModel",
	kind: "cohere_compass_text", spell: cohereCompassSpell,
	config:  cohereCompassConfig,
	tensors: cohereNorm,

	models:   "North Micro, also the text of models with images",
	features: "as Command-R7B, rotary embedding by halves, `layer_types`, none in layers of a type whose `rope_parameters` are null",
}

// cohereCompassSpell takes text_config for the whole, and sets the defaults of CohereCompassTextConfig.
func cohereCompassSpell(f *fields) {
	f.liftText()
	f.sizes(256000, 8192, 22528, 40, 64)
	delete(f.members, "head_dim") // the class computes it
	f.defaults(map[string]any{"sliding_window": 4096, "logit_scale": 1})
	f.sameTypes("layer_types", full)
}

// cohereCompassConfig: source is transformers, modeling_cohere_compass.py.
func cohereCompassConfig(f *fields, c *Config) plan {
	types := f.texts("layer_types")
	unrotated := f.typesWithoutRope(types)
	p := coherePlan(f, c)
	p.pairs = false
	c.windows(f, 0, 0)
	for _, kind := range types {
		p.unrotated = append(p.unrotated, unrotated[kind])
	}
	return p
}

// typesWithoutRope are the types of layers whose rope_parameters are null. Those of the others, which must be equal, become those of all
// layers.
func (f *fields) typesWithoutRope(types []string) map[string]bool {
	s, without := f.object("rope_parameters"), map[string]bool{}
	var rotated json.RawMessage
	for _, kind := range types {
		raw, ok := s.members[kind]
		switch {
		case !ok:
		case string(raw) == "null":
			without[kind] = true
		case rotated != nil && !bytes.Equal(rotated, raw):
			s.fault(kind, excerpt(raw), fmt.Sprintf("the parameters of the other layers, %s", excerpt(rotated)))
		default:
			rotated = raw
		}
	}
	f.adopt(s)
	if rotated != nil {
		f.members["rope_parameters"] = rotated
	} else if len(without) > 0 {
		delete(f.members, "rope_parameters")
	}
	return without
}
