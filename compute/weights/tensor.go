// Package weights maps a checkpoint in the format of safetensors, of torch.save
// or of GGUF into memory, from one file or from several. Tensors are slices of
// the mapping: nothing is copied to the Go heap.
//
// It must not know architectures or ops.
package weights

import (
	"fmt"
	"math"
	"strings"
	"unicode"
)

// DType is the type of a tensor's elements; the values are those of mr_dtype
// in the C ABI.
type DType int32

// Types of elements.
const (
	F32   DType = 0
	F16   DType = 1
	BF16  DType = 2
	Other DType = -1 // a type that no op reads: Tensor.Type has its name
)

// blocks plus a number of blockTypes or ownTypes is the type of a matrix whose rows lie in blocks.
const blocks = 256

// Blocks says whether rows lie in blocks.
func (d DType) Blocks() bool { return d >= blocks }

// Floats says whether each element is a float of its own.
func (d DType) Floats() bool { return d != Other && !d.Blocks() }

// BlockSize is the number of elements of a block; 0: the type has none.
func (d DType) BlockSize() int {
	if !d.Blocks() {
		return 0
	}
	return int(blockTypes[uint32(d-blocks)].elements)
}

func (d DType) String() string {
	if d.Blocks() {
		return typeOf(d).name
	}
	switch d {
	case F32:
		return "F32"
	case F16:
		return "F16"
	case BF16:
		return "BF16"
	case Other:
	}
	return "other"
}

// Bytes is the size of elements, of blocks of whole ones; 0 for Other.
func (d DType) Bytes(elements int64) int64 {
	if d.Blocks() {
		b := typeOf(d)
		return elements / b.elements * b.bytes
	}
	switch d {
	case F32:
		return 4 * elements
	case F16, BF16:
		return 2 * elements
	case Other:
	}
	return 0
}

// Round rounds to the nearest value of the type, ties to even.
func (d DType) Round(f float32) float32 {
	switch d {
	case F16:
		return halfToFloat(floatToHalf(f))
	case BF16:
		b := math.Float32bits(f)
		return math.Float32frombits((b + 0x7fff + b>>16&1) &^ 0xffff)
	case F32, Other:
	}
	return f
}

// Tensor is one tensor of a checkpoint, row-major, little-endian.
type Tensor struct {
	Name  string
	DType DType
	Type  string // as the file spells it: "BF16", "I64"
	Shape []int64
	Data  []byte // a slice of the mapping, valid until Close; the format promises no alignment
	File  string // path of the file it lies in

	// Order has an int32 for each element of a row of blocks: the column that it is of. Empty: they are in order.
	Order []byte

	// Heads is the number of heads whose rows are not in order: those of a head's halves alternate. 0: all are in order.
	Heads int64
}

// FormatError is a fault in a model directory: one line with the file, the
// tensor or field, what was found and what was expected.
type FormatError struct {
	File     string
	Name     string // tensor or field, "" for the file itself
	Found    string
	Expected string
}

func (e *FormatError) Error() string {
	s := e.File + ": "
	if e.Name != "" {
		s += e.Name + ": "
	}
	s += "found " + e.Found
	if e.Expected != "" {
		s += ", expected " + e.Expected
	}
	return strings.Map(printable, s)
}

// printable keeps a message on one line whatever names a file holds.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// fault makes a FormatError whose file is filled in by whoever knows it.
func fault(name, expected, found string, args ...any) *FormatError {
	return &FormatError{Name: name, Found: fmt.Sprintf(found, args...), Expected: expected}
}
