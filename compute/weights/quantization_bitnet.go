package weights

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"
)

// Classes of linear layers of BitNet: the scale of a layer divides its three values, or multiplies them.
const (
	bitLinear     = "bitlinear"
	autoBitLinear = "autobitlinear"
)

func checkBitNet(q *Quantization, bad badField) error {
	switch {
	case !slices.Contains([]string{"", bitLinear, autoBitLinear}, q.Linear):
		return bad("linear_class", bitLinear+" or "+autoBitLinear, "%.40q", q.Linear)
	case !slices.Contains([]string{"", "offline", "online"}, q.Mode):
		return bad("quantization_mode", "offline or online", "%.40q", q.Mode)
	case q.InnerNorms:
		return bad("use_rms_norm", "false: layers whose rows are normed once more are not read", "true")
	}
	return nil
}

// roundsAtLoad says that layers have the weights that training rounds to three values in each step.
func (q *Quantization) roundsAtLoad() bool {
	return q.Method == "bitnet" && q.Linear == autoBitLinear && q.Mode == "online"
}

// rounding is the method of such checkpoints: layers have no mark but their name.
var rounding = quantMethod{mark: []string{"_proj.weight"}, layer: (*Checkpoint).roundedLayer}

// leaves says that a tensor is of a module that is not rounded.
func (q *Quantization) leaves(tensor string) bool {
	return q.roundsAtLoad() && slices.ContainsFunc(q.Plain, func(module string) bool {
		return strings.Contains("."+tensor, "."+module+".")
	})
}

// bitNetLayer reads a layer of three values, of which a byte has four: those of as many rows, a quarter of all rows apart. Layout:
// unpack_weights, BitLinear and AutoBitLinear of transformers (integrations/bitnet.py).
func (c *Checkpoint) bitNetLayer(q *Quantization, name string) (*derived, error) {
	const perByte, bits = 4, 2
	codes, scale := c.tensors[name+".weight"], c.tensors[name+".weight_scale"]
	if codes.Type != "U8" || len(codes.Shape) != 2 || codes.elements() == 0 {
		return nil, fault(name+".weight", "U8 of two dimensions", "%s", kindOf(codes))
	}
	if !scale.DType.Floats() || scale.elements() != 1 {
		return nil, fault(name+".weight_scale", "one number of F16, BF16 or F32", "%s", kindOf(scale))
	}
	by := number(scale, 0)
	if q.Linear != autoBitLinear {
		by = 1 / by
	}
	if size := math.Abs(float64(by)); !(size > 0 && size <= math.MaxFloat32) {
		return nil, fault(name+".weight_scale", "a finite number other than 0", "%g", number(scale, 0))
	}
	quarter, in := int(codes.Shape[0]), int(codes.Shape[1])
	s := threeValues(perByte*quarter, in, func() float32 { return by })
	s.values = func(to []float32, row int) {
		from, shift := codes.Data[row%quarter*in:], row/quarter*bits
		for k := range to {
			to[k] = float32(from[k]>>shift&3) - 1
		}
	}
	return s.derive(name, "BITNET", codes.File), nil
}

// roundedLayer rounds a layer to -1, 0 and 1 times the mean of its magnitudes. Formula: WeightQuant of transformers
// (integrations/bitnet.py).
func (c *Checkpoint) roundedLayer(_ *Quantization, name string) (*derived, error) {
	t := c.tensors[name+"_proj.weight"]
	if !t.DType.Floats() || len(t.Shape) != 2 || t.elements() == 0 {
		return nil, fault(name+"_proj.weight", "F16, BF16 or F32 of two dimensions", "%s", kindOf(t))
	}
	in := int(t.Shape[1])
	inverse := sync.OnceValue(func() float32 {
		const least = 1e-5
		sum := 0.0
		for i := range int(t.elements()) {
			sum += math.Abs(float64(number(t, i)))
		}
		return 1 / max(float32(sum/float64(t.elements())), least)
	})
	s := threeValues(int(t.Shape[0]), in, func() float32 { return 1 / inverse() })
	s.values = func(to []float32, row int) {
		by := inverse()
		for k := range to {
			to[k] = min(max(float32(math.RoundToEven(float64(number(t, row*in+k)*by))), -1), 1)
		}
	}
	return s.derive(name+"_proj", "BITNET", t.File), nil
}

// threeValues is a layer of -1, 0 and 1 with one scale.
func threeValues(out, in int, scale func() float32) *scaled {
	return &scaled{out: out, in: in, rows: out, columns: in, across: 1, low: -1, high: 1, scale: func(int) float32 { return scale() }}
}

const ternaryElements = 256 // of a block of TQ2_0

// ternary says that blocks of TQ2_0 keep a layer as it is.
func (s *scaled) ternary() bool {
	return s.zero == nil && s.low == -1 && s.high == 1 && s.in%ternaryElements == 0 && s.columns%ternaryElements == 0 && s.hasHalves()
}

// fillTernary writes rows as blocks of TQ2_0: bytes of four elements that are 32 apart, and a scale in F16. Formula:
// dequantize_row_tq2_0 of ggml-quants.c.
func (s *scaled) fillTernary(dst []byte, first, last int64) {
	const apart, perByte = 32, 4
	values := make([]float32, s.in)
	for n := int(first); n < int(last); n++ {
		s.values(values, n)
		for k := 0; k < s.in; k += ternaryElements {
			block := dst[:ternaryElements/perByte+2]
			dst = dst[len(block):]
			clear(block)
			for i, v := range values[k:][:ternaryElements] {
				at, part := i/(apart*perByte)*apart+i%apart, i/apart%perByte
				block[at] |= byte(v+1) << (2 * part)
			}
			binary.LittleEndian.PutUint16(block[ternaryElements/perByte:], floatToHalf(s.scale(n/s.rows*s.across+k/s.columns)))
		}
	}
}
