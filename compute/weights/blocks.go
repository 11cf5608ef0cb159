package weights

import (
	"maps"
	"slices"
	"strings"
)

// blockType is how the elements of a row are stored: in blocks of a fixed
// number of elements.
type blockType struct {
	name     string
	elements int64 // per block
	bytes    int64
}

// blockTypes are the types that GGUF files have, by ggml's numbers (ggml_type in
// ggml.h). What the blocks mean is in kernels/exec/blocks.cpp.
var blockTypes = map[uint32]blockType{
	0:  {"F32", 1, 4},
	1:  {"F16", 1, 2},
	30: {"BF16", 1, 2},
	2:  {"Q4_0", 32, 18},
	3:  {"Q4_1", 32, 20},
	6:  {"Q5_0", 32, 22},
	7:  {"Q5_1", 32, 24},
	8:  {"Q8_0", 32, 34},
	10: {"Q2_K", 256, 84},
	11: {"Q3_K", 256, 110},
	12: {"Q4_K", 256, 144},
	13: {"Q5_K", 256, 176},
	14: {"Q6_K", 256, 210},
	16: {"IQ2_XXS", 256, 66},
	17: {"IQ2_XS", 256, 74},
	18: {"IQ3_XXS", 256, 98},
	19: {"IQ1_S", 256, 50},
	20: {"IQ4_NL", 32, 18},
	21: {"IQ3_S", 256, 110},
	22: {"IQ2_S", 256, 82},
	23: {"IQ4_XS", 256, 136},
	29: {"IQ1_M", 256, 56},
	34: {"TQ1_0", 256, 54},
	35: {"TQ2_0", 256, 66},
	39: {"MXFP4", 32, 17},
}

// ownTypes are those that layers of other formats become, by numbers that ggml does not use.
var ownTypes = map[uint32]blockType{
	128: {"FP8", 128, 132},
	129: {"FP8_32", 32, 36},
	130: {"NF4", 64, 36},
	131: {"NVFP4", 64, 40},
	132: {"Q4_Z", 128, 67},
	133: {"Q4_Z32", 32, 19},
}

// ownType is one of ownTypes, by its name.
func ownType(name string) DType {
	for kind, b := range ownTypes {
		if b.name == name {
			return b.dtype(kind)
		}
	}
	return Other
}

// typeOf is the type of blocks of a DType.
func typeOf(d DType) blockType {
	kind := uint32(d - blocks)
	if b, ok := blockTypes[kind]; ok {
		return b
	}
	return ownTypes[kind]
}

// BlockTypes are the types of blocks that GGUF files have, by their names.
func BlockTypes() map[string]DType {
	types := map[string]DType{}
	for kind, b := range blockTypes {
		if t := b.dtype(kind); t.Blocks() {
			types[b.name] = t
		}
	}
	return types
}

// blockNames lists the types that are read, in the order of ggml's numbers.
func blockNames() string {
	var names []string
	for _, kind := range slices.Sorted(maps.Keys(blockTypes)) {
		names = append(names, blockTypes[kind].name)
	}
	return strings.Join(names, ", ")
}

// otherTypes names what is not read, for messages.
func otherTypes(kind uint32) string {
	names := map[uint32]string{9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4"}
	return names[kind]
}

// dtype is the type of tensors of a number of ggml's.
func (b blockType) dtype(kind uint32) DType {
	if t := dtypeOf(b.name); t != Other {
		return t
	}
	return blocks + DType(kind)
}
