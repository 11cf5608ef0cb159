package weights

import (
	"encoding/json"
	"fmt"
	"slices"
)

// bitsandbytesLayer reads a layer of LLM.int8() (.SCB: the largest magnitude of each row) or of 4 bits, whose blocks run over the end of
// rows. Layouts: Linear8bitLt and QuantState.from_dict of bitsandbytes.
func (c *Checkpoint) bitsandbytesLayer(_ *Quantization, name string) (*derived, error) {
	codes := c.tensors[name+".weight"]
	d := &derived{Tensor: Tensor{Name: name + ".weight", DType: derivedType, File: codes.File}}
	if largest, ok := c.tensors[name+".SCB"]; ok {
		if codes.Type != "I8" || len(codes.Shape) != 2 || largest.DType != F32 || !slices.Equal(largest.Shape, codes.Shape[:1]) {
			return nil, fault(name+".weight", "I8, and F32 .SCB of a number a row", "%s and %s", kindOf(codes), kindOf(largest))
		}
		out, in := int(codes.Shape[0]), int(codes.Shape[1])
		s := &scaled{out: out, in: in, rows: 1, columns: in, across: 1, scale: func(i int) float32 { return number(largest, i) / 127 }}
		s.values = func(to []float32, row int) { tableValues(to, codes.Data[row*in:], &int8s) }
		d.Type, d.Shape, d.fill = "INT8", codes.Shape, s.fill
		return d, nil
	}
	b, err := c.fourBits(name, codes)
	if err != nil {
		return nil, err
	}
	d.Type, d.Shape, d.fill = b.state.Type, b.state.Shape, b.fill
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
		return nil, fault(weight+".absmax", fmt.Sprintf("%d numbers of F32, or of U8 with .nested_absmax and .nested_quant_map", blocks), "%s", kindOf(largest))
	}
	b.largest = func(i int) float32 {
		return float32(number(table, int(largest.Data[i]))*number(nested, i/b.state.NestedBlock)) + b.state.NestedOffset
	}
	return b, nil
}

// maxElements bounds the product of two sizes of a file.
const maxElements = 1 << 48

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
