package weights

import "slices"

// mxfp4Layer reads the matrices of all experts of a projection: blocks of 32 elements of E2M1, two neighbors in a byte, with an exponent
// E8M0. They become the blocks of GGUF. Layout: integrations/mxfp4.py of transformers.
func (c *Checkpoint) mxfp4Layer(_ *Quantization, name string) (*derived, error) {
	const elements, half = 32, 16
	codes, scales := c.tensors[name+"_blocks"], c.tensors[name+"_scales"]
	if codes.Type != "U8" || len(codes.Shape) != 4 || codes.Shape[3] != half || scales.Type != "U8" ||
		!slices.Equal(scales.Shape, codes.Shape[:3]) {
		return nil, fault(name+"_blocks", "U8 [experts, rows, blocks, 16], and U8 _scales of a number a block", "%s and %s", kindOf(codes),
			kindOf(scales))
	}
	kind := BlockTypes()["MXFP4"]
	blocks := codes.Shape[1] * codes.Shape[2] // of an expert
	return &derived{
		Tensor: Tensor{Name: name, DType: kind, Type: kind.String(),
			Shape: []int64{codes.Shape[0], codes.Shape[1], elements * codes.Shape[2]}, File: codes.File},
		fill: func(dst []byte, first, last int64) {
			for b := first * blocks; b < last*blocks; b++ {
				mxfp4Block(dst, scales.Data[b], codes.Data[b*half:(b+1)*half])
				dst = dst[1+half:]
			}
		},
	}, nil
}
