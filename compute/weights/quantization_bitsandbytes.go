package weights

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// bitsandbytesLayer reads a layer of LLM.int8() (.SCB: the largest magnitude of each row) or of 4 bits, whose blocks run over the end of
// rows. Layouts: Linear8bitLt and QuantState.from_dict of bitsandbytes.
func (c *Checkpoint) bitsandbytesLayer(_ *Quantization, name string) (*derived, error) {
	codes := c.tensors[name+".weight"]
	if largest, ok := c.tensors[name+".SCB"]; ok {
		if codes.Type != "I8" || len(codes.Shape) != 2 || largest.DType != F32 || !slices.Equal(largest.Shape, codes.Shape[:1]) {
			return nil, fault(name+".weight", "I8, and F32 .SCB of a number a row", "%s and %s", kindOf(codes), kindOf(largest))
		}
		out, in := int(codes.Shape[0]), int(codes.Shape[1])
		s := &scaled{
			out: out, in: in, rows: 1, columns: in, across: 1, low: math.MinInt8, high: math.MaxInt8,
			scale: func(i int) float32 { return number(largest, i) / 127 },
		}
		s.values = func(to []float32, row int) { tableValues(to, codes.Data[row*in:], &int8s) }
		return s.derive(name, "INT8", codes.File), nil
	}
	b, err := c.fourBits(name, codes)
	if err != nil {
		return nil, err
	}
	d := &derived{
		Tensor: Tensor{Name: name + ".weight", DType: derivedType, Type: b.state.Type, Shape: b.state.Shape, File: codes.File},
		fill:   b.fill,
	}
	if b.blocks() {
		d.DType, d.Type, d.fill, d.floats = ownType("NF4"), "NF4", b.fillBlocks, b.fill
	}
	return d, nil
}

// quantState is what bitsandbytes writes as text beside a weight of 4 bits.
type quantState struct {
	Type         string  `json:"quant_type"`
	Block        int     `json:"blocksize"`
	Shape        []int64 `json:"shape"`
	NestedBlock  int     `json:"nested_blocksize"`
	NestedOffset float32 `json:"nested_offset"`
}

type fourBits struct {
	state   quantState
	codes   []byte
	levels  [16]float32
	largest func(i int) float32 // of block i
}

func (c *Checkpoint) fourBits(name string, codes Tensor) (*fourBits, error) {
	weight := name + ".weight"
	var text Tensor
	for _, kind := range []string{"nf4", "fp4"} {
		if t, ok := c.tensors[weight+".quant_state.bitsandbytes__"+kind]; ok {
			text = t
		}
	}
	b := &fourBits{codes: codes.Data}
	if text.Type != "U8" || json.Unmarshal(text.Data, &b.state) != nil || b.state.Block < 1 || len(b.state.Shape) != 2 ||
		b.state.Shape[0] < 1 || b.state.Shape[1] < 1 || b.state.Shape[0] > maxElements/b.state.Shape[1] {
		return nil, fault(weight+".quant_state.bitsandbytes__nf4", "the state of a matrix of 4 bits, as text", "%s", kindOf(text))
	}
	n := b.state.Shape[0] * b.state.Shape[1]
	if codes.Type != "U8" || int64(len(codes.Data)) != (n+1)/2 {
		return nil, fault(weight, fmt.Sprintf("U8, %d bytes for %v", (n+1)/2, b.state.Shape), "%s", kindOf(codes))
	}
	levels := c.tensors[weight+".quant_map"]
	if levels.DType != F32 || len(levels.Data) != 4*len(b.levels) {
		return nil, fault(weight+".quant_map", "F32 [16]", "%s", kindOf(levels))
	}
	for i := range b.levels {
		b.levels[i] = number(levels, i)
	}
	blocks := int((n + int64(b.state.Block) - 1) / int64(b.state.Block))
	largest := c.tensors[weight+".absmax"]
	if largest.DType == F32 && len(largest.Data) == 4*blocks {
		b.largest = func(i int) float32 { return number(largest, i) }
		return b, nil
	}
	nested, table := c.tensors[weight+".nested_absmax"], c.tensors[weight+".nested_quant_map"]
	if largest.Type != "U8" || len(largest.Data) != blocks || b.state.NestedBlock < 1 || table.DType != F32 || len(table.Data) != 4*256 ||
		nested.DType != F32 || len(nested.Data) != 4*((blocks+b.state.NestedBlock-1)/b.state.NestedBlock) {
		return nil, fault(weight+".absmax", fmt.Sprintf("%d numbers of F32, or of U8 with .nested_absmax and .nested_quant_map", blocks),
			"%s", kindOf(largest))
	}
	b.largest = func(i int) float32 {
		return float32(number(table, int(largest.Data[i]))*number(nested, i/b.state.NestedBlock)) + b.state.NestedOffset
	}
	return b, nil
}

// maxElements bounds the product of two sizes of a file.
const maxElements = 1 << 48

// nf4 are the levels that bitsandbytes writes: those of kernels/exec/quantize.hpp.
var nf4 = [16]float32{
	-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
	0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
	0.7229568362236023, 1,
}

const nf4Elements = 64 // of a block

// blocks says whether blocks of NF4 have the layer's own codes and scales.
func (b *fourBits) blocks() bool {
	return b.levels == nf4 && b.state.Block%nf4Elements == 0 && b.state.Shape[1]%nf4Elements == 0
}

// fillBlocks writes rows as blocks: a scale in F32, and the codes.
func (b *fourBits) fillBlocks(dst []byte, first, last int64) {
	in := b.state.Shape[1]
	for at := first * in; at < last*in; at += nf4Elements {
		binary.LittleEndian.PutUint32(dst, math.Float32bits(b.largest(int(at)/b.state.Block)))
		dst = dst[4+copy(dst[4:], b.codes[at/2:][:nf4Elements/2]):]
	}
}

// fill decodes rows: the high nibble of a byte comes first. x = largest level.
func (b *fourBits) fill(dst []byte, first, last int64) {
	in := int(b.state.Shape[1])
	block, largest := -1, float32(0)
	for i := range int(last-first) * in {
		at := int(first)*in + i
		if at/b.state.Block != block {
			block = at / b.state.Block
			largest = b.largest(block)
		}
		putHalf(dst, i, largest*b.levels[b.codes[at/2]>>(4-at%2*4)&15])
	}
}
