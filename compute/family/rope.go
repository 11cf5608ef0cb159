package family

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
)

// Rope is the rotary embedding of a configuration, in either spelling:
// transformers 4 has rope_theta and rope_scaling, transformers 5 has
// rope_parameters.
type Rope struct {
	Type   string // "default", "dynamic", "linear", "llama3", "yarn", "longrope", "proportional"
	Theta  float64
	Factor float64

	OriginalPositions    int     // llama3, yarn, longrope
	LowFreqFactor        float64 // llama3
	HighFreqFactor       float64
	AttentionFactor      float64 // yarn, longrope; 0: by the formula
	BetaFast, BetaSlow   float64 // yarn
	MScale, MScaleAllDim float64 // yarn
	Truncate             bool    // yarn
	Partial              float64 // proportional: of the pairs of a head, those that turn

	Divisors []float32 // [dim/2] of the frequencies: longrope, or default of a GGUF file; nil: none
}

const (
	minTheta  = 2 // its logarithm is a divisor
	maxTheta  = 1e12
	minFactor = 1e-3 // of a frequency's divisor
	maxFactor = 1e4
)

// ropeConfig reads the rotary embedding and sets c.MaxPositions, which
// scaling extends. positions is max_position_embeddings. partial is the rotated
// part of a head.
func ropeConfig(f *fields, c *Config, positions int) (partial float64) {
	s := f.ropeObject()
	s.ropeOfLayers(f)
	return c.readRope(f, s, positions)
}

// partialRope is ropeConfig of a class that rotates part of a head. It returns the elements of a head that are rotated. positions and
// partial are the class's defaults.
func partialRope(f *fields, c *Config, positions int, partial float64) (rotary int) {
	f.defaults(map[string]any{"partial_rotary_factor": partial})
	partial = ropeConfig(f, c, f.integer(positions, 1, maxPositions, "max_position_embeddings"))
	return c.rotated(f, partial)
}

// rotated is the number of elements of a head that a rotary embedding of part of it turns.
func (c *Config) rotated(f *fields, partial float64) int {
	n := int(float64(c.HeadDim) * partial)
	if f.err == nil && (n == 0 || n%2 != 0) {
		f.fault("partial_rotary_factor", fmt.Sprint(partial),
			fmt.Sprintf("one that rotates an even number of the %d elements of a head", c.HeadDim))
	}
	return n
}

// ropeObject is the object that has the rotary embedding's members: rope_scaling, or without it rope_parameters, as in transformers.
func (f *fields) ropeObject() *fields {
	if f.has("rope_scaling") {
		return f.object("rope_scaling")
	}
	return f.object("rope_parameters")
}

// readRope is ropeConfig for the members in s.
func (c *Config) readRope(f, s *fields, positions int) (partial float64) {
	r := Rope{Type: s.text("default", "rope_type", "type")}
	switch r.Type {
	case "su": // as old configurations have it
		r.Type = "longrope"
	case "mrope": // the three positions of a token of text are the same
		r.Type = "default"
	case "xdrope": // likewise
		r.Type = "dynamic"
	}
	// A member of the object goes before one beside it.
	r.Theta = s.number(f.number(10000, minTheta, maxTheta, "rope_theta"), minTheta, maxTheta, "rope_theta")
	partial = s.number(f.number(1, 0, 1, "partial_rotary_factor"), 0, 1, "partial_rotary_factor")
	r.OriginalPositions = f.integer(s.integer(positions, 1, maxPositions, "original_max_position_embeddings"),
		1, maxPositions, "original_max_position_embeddings")

	c.MaxPositions = positions
	switch r.Type {
	case "default":
	case "dynamic": // sequences of up to max_position_embeddings have the plain rotation
		if !s.has("alpha") { // Hunyuan's
			s.factor("factor", 1)
		}
	case "linear":
		r.Factor = s.factor("factor", 1)
		c.MaxPositions = extended(positions, r.Factor)
	case "llama3":
		r.Factor = s.factor("factor", 1)
		r.LowFreqFactor = s.factor("low_freq_factor", 1e-3)
		r.HighFreqFactor = s.factor("high_freq_factor", 1e-3)
		if r.HighFreqFactor <= r.LowFreqFactor {
			s.fault("high_freq_factor", fmt.Sprint(r.HighFreqFactor), fmt.Sprintf("more than low_freq_factor %g", r.LowFreqFactor))
		}
	case "yarn":
		r.Factor = s.number(float64(positions)/float64(max(r.OriginalPositions, 1)), 1, maxFactor, "factor")
		r.AttentionFactor = s.number(0, 1e-6, 100, "attention_factor")
		r.BetaFast = nonZero(s.number(32, 0, 1e6, "beta_fast"), 32)
		r.BetaSlow = nonZero(s.number(1, 0, 1e6, "beta_slow"), 1)
		r.MScale = s.number(0, 0, 100, "mscale")
		r.MScaleAllDim = s.number(0, 0, 100, "mscale_all_dim")
		r.Truncate = s.flag(true, "truncate")
		c.MaxPositions = max(positions, extended(r.OriginalPositions, r.Factor))
	case "longrope":
		r.Factor = s.number(max(float64(positions)/float64(max(r.OriginalPositions, 1)), 1), 1, maxFactor, "factor")
		r.AttentionFactor = s.number(0, 1e-6, 100, "attention_factor")
		if r.OriginalPositions < 2 { // its logarithm is a divisor
			f.fault("original_max_position_embeddings", fmt.Sprint(r.OriginalPositions), "2 or more, for longrope")
		}
		r.Divisors = s.longropeDivisors(positions > r.OriginalPositions, int(float64(c.HeadDim)*partial)/2)
	case "proportional": // all pairs of a head are of the table, and the last ones do not turn
		r.Factor = s.number(1, minFactor, maxFactor, "factor")
		r.Partial, partial = partial, 1
	default:
		s.fault("rope_type", fmt.Sprintf("%.40q", r.Type), "default, dynamic, linear, llama3, longrope, proportional or yarn")
	}
	c.Rope = r
	f.adopt(s)
	return partial
}

// longropeDivisors are the long or the short factors of a model. The longest sequence chooses, not the current one: keys in
// the cache keep their rotation.
func (f *fields) longropeDivisors(long bool, pairs int) []float32 {
	short, extended := f.factors("short_factor", pairs), f.factors("long_factor", pairs)
	if long {
		return extended
	}
	return short
}

// factors is a required list of n factors.
func (f *fields) factors(name string, n int) []float32 {
	_, raw := f.get(name)
	var list []float32
	if raw == nil || json.Unmarshal(raw, &list) != nil || len(list) != n ||
		slices.ContainsFunc(list, func(v float32) bool { return !(v >= minFactor && v <= maxFactor) }) {
		f.fault(name, cmp.Or(excerpt(raw), "nothing"), fmt.Sprintf("%d numbers in %g..%g", n, minFactor, maxFactor))
		return nil
	}
	return list
}

// ropeOfLayers takes the parameters of a layer's type where rope_parameters has an object for each type, as transformers 5 writes
// it. The types of the model's layers must have the same ones.
func (f *fields) ropeOfLayers(config *fields) {
	types := config.texts("layer_types")
	if len(types) == 0 {
		types = []string{full}
	}
	nested := slices.ContainsFunc([]string{full, sliding}, f.has)
	var first map[string]any
	var members map[string]json.RawMessage
	for i, kind := range types {
		if !nested || f.err != nil {
			return
		}
		var values map[string]any
		_, raw := f.get(kind)
		if raw == nil || json.Unmarshal(raw, &values) != nil || json.Unmarshal(raw, &members) != nil {
			f.fault(kind, cmp.Or(excerpt(raw), "nothing"), "an object, since the model has layers of that type")
		}
		if i > 0 && !reflect.DeepEqual(first, values) {
			f.fault(kind, excerpt(raw), "the parameters of "+types[0])
		}
		first = values
	}
	f.members = members
}

// factor is a required number of low or more.
func (f *fields) factor(name string, low float64) float64 {
	if !f.has(name) {
		f.fault(name, "nothing", fmt.Sprintf("a number in %g..%g", low, maxFactor))
	}
	return f.number(low, low, maxFactor, name)
}

func nonZero(v, missing float64) float64 {
	if v == 0 {
		return missing
	}
	return v
}

func extended(positions int, factor float64) int {
	return int(min(float64(positions)*factor, maxPositions))
}

// Table returns inv_freq [dim/2] and the factor on cos and sin. The arithmetic
// is float32 wherever torch's is; source: transformers,
// modeling_rope_utils.py and LlamaRotaryEmbedding.
func (r Rope) Table(dim int) (invFreq []float32, scale float32) {
	invFreq = make([]float32, dim/2)
	for i := range invFreq {
		invFreq[i] = 1 / r.period(i, dim)
	}
	switch r.Type {
	case "default":
		for i, d := range r.Divisors {
			invFreq[i] /= d
		}
	case "linear":
		for i := range invFreq {
			invFreq[i] /= float32(r.Factor)
		}
	case "llama3":
		for i, f := range invFreq {
			invFreq[i] = r.llama3(f)
		}
	case "yarn":
		r.yarn(invFreq, dim)
		return invFreq, float32(r.yarnScale())
	case "longrope":
		for i, d := range r.Divisors {
			invFreq[i] = 1 / (d * r.period(i, dim))
		}
		return invFreq, float32(r.longropeScale())
	case "proportional":
		for i := range invFreq {
			invFreq[i] /= float32(r.Factor)
		}
		clear(invFreq[min(int(r.Partial*float64(dim)/2), len(invFreq)):])
	}
	return invFreq, 1
}

// period is theta^(2i/dim), the wavelength of pair i over 2 pi.
func (r Rope) period(i, dim int) float32 {
	exponent := float32(2*i) / float32(dim)
	return float32(math.Pow(float64(float32(r.Theta)), float64(exponent)))
}

// llama3 keeps high frequencies, divides low ones by the factor and blends
// those between.
func (r Rope) llama3(f float32) float32 {
	original := float64(r.OriginalPositions)
	wavelength := float32(2*math.Pi) / f
	switch {
	case wavelength > float32(original/r.LowFreqFactor):
		return f / float32(r.Factor)
	case wavelength < float32(original/r.HighFreqFactor):
		return f
	}
	smooth := (float32(original)/wavelength - float32(r.LowFreqFactor)) / float32(r.HighFreqFactor-r.LowFreqFactor)
	interpolated := (1 - smooth) * f / float32(r.Factor)
	return interpolated + float32(smooth*f)
}

// yarn blends each frequency with its interpolation (frequency / factor) by a
// ramp over the dimensions. Peng et al. 2023, section 3.2.
func (r Rope) yarn(invFreq []float32, dim int) {
	low, high := r.correction(r.BetaFast, dim), r.correction(r.BetaSlow, dim)
	if r.Truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(dim-1))
	if low == high {
		high += 0.001
	}
	for i, f := range invFreq {
		ramp := min(max((float32(i)-float32(low))/float32(high-low), 0), 1)
		extrapolate := 1 - ramp
		interpolation := 1 / (float32(r.Factor) * r.period(i, dim))
		invFreq[i] = float32(interpolation*(1-extrapolate)) + float32(f*extrapolate)
	}
}

// correction is the dimension whose pair turns `rotations` times over the
// original context.
func (r Rope) correction(rotations float64, dim int) float64 {
	return float64(dim) * math.Log(float64(r.OriginalPositions)/(rotations*2*math.Pi)) / (2 * math.Log(r.Theta))
}

// yarnScale is the attention factor: given, or 0.1 ln(factor) + 1.
func (r Rope) yarnScale() float64 {
	switch {
	case r.AttentionFactor != 0:
		return r.AttentionFactor
	case r.MScale != 0 && r.MScaleAllDim != 0:
		return r.mscale(r.MScale) / r.mscale(r.MScaleAllDim)
	}
	return r.mscale(1)
}

// mscale is 0.1 m ln(factor) + 1.
func (r Rope) mscale(m float64) float64 {
	if r.Factor <= 1 {
		return 1
	}
	return 0.1*m*math.Log(r.Factor) + 1
}

// longropeScale is the attention factor: given, or sqrt(1 + ln(factor) / ln(original)). Ding et al. 2024.
func (r Rope) longropeScale() float64 {
	if r.AttentionFactor != 0 || r.Factor <= 1 {
		return cmp.Or(r.AttentionFactor, 1)
	}
	return math.Sqrt(1 + math.Log(r.Factor)/math.Log(float64(r.OriginalPositions)))
}
