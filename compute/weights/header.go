package weights

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

const (
	lengthBytes = 8         // the header's length, little-endian uint64
	maxHeader   = 100 << 20 // as the safetensors library has it
	maxRank     = 8         // no layer of a language model has more
)

// typeBytes holds the element sizes of the format's types. FP4 and FP6, which
// are smaller than a byte, are not here and are not read.
func typeBytes(name string) int64 {
	switch name {
	case "BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0":
		return 1
	case "I16", "U16", "F16", "BF16":
		return 2
	case "I32", "U32", "F32":
		return 4
	case "I64", "U64", "F64", "C64":
		return 8
	}
	return 0
}

func dtypeOf(name string) DType {
	switch name {
	case "F32":
		return F32
	case "F16":
		return F16
	case "BF16":
		return BF16
	}
	return Other
}

// parseHeader reads the header of a whole safetensors file and returns its
// tensors, their Data slices of file. Rules of the format: the tensors cover
// the bytes after the header without a gap and without an overlap, and each
// name appears once. Source: github.com/huggingface/safetensors, README
// "Format" and SafeTensors::read_metadata.
func parseHeader(file []byte) (map[string]Tensor, error) {
	if len(file) < lengthBytes {
		return nil, fault("", "8 bytes of header length or more", "%d bytes", len(file))
	}
	length := binary.LittleEndian.Uint64(file)
	if text := file[:lengthBytes]; length > maxHeader && isText(text) {
		return nil, fault("header", fmt.Sprintf("a length of %d bytes at most", maxHeader), "the text %q", text)
	}
	if length > maxHeader {
		return nil, fault("header", fmt.Sprintf("%d bytes at most", maxHeader), "a length of %d bytes", length)
	}
	if rest := uint64(len(file) - lengthBytes); length > rest {
		return nil, fault("header", fmt.Sprintf("%d bytes, the length it states", length)+cut, "%d bytes in the file", rest)
	}
	header, data := file[lengthBytes:lengthBytes+length], file[lengthBytes+length:]
	if len(header) == 0 || header[0] != '{' {
		return nil, fault("header", "a JSON object", "%.20q", header)
	}

	tensors := map[string]Tensor{}
	var order []extent
	r := newJSON(header)
	err := r.object(maxTensors, func(name string) error {
		if name == "__metadata__" {
			return within(name, r.object(maxTensors, func(key string) error {
				_, err := r.text()
				return within(key, err)
			}))
		}
		t, at, err := parseEntry(r, name)
		if err != nil {
			return err
		}
		tensors[name] = t
		order = append(order, at)
		return nil
	})
	if err == nil {
		err = r.ends()
	}
	if err != nil {
		return nil, headerFault(err)
	}
	if err := checkLayout(order, int64(len(data))); err != nil {
		return nil, err
	}
	for _, at := range order {
		t := tensors[at.name]
		t.Data = data[at.begin:at.end:at.end]
		tensors[at.name] = t
	}
	return tensors, nil
}

// isText says whether bytes are printable ASCII or white space.
func isText(b []byte) bool {
	return !bytes.ContainsFunc(b, func(r rune) bool { return r > '~' || r < ' ' && r != '\n' && r != '\r' && r != '\t' })
}

// extent is the place of a tensor in the bytes after the header.
type extent struct {
	name       string
	begin, end int64
}

// parseEntry reads {"dtype":..,"shape":[..],"data_offsets":[begin,end]}, but no data.
func parseEntry(r jsonReader, name string) (Tensor, extent, error) {
	t := Tensor{Name: name}
	at := extent{name: name}
	var offsets []int64
	err := r.object(maxTensors, func(key string) (err error) {
		switch key {
		case "dtype":
			t.Type, err = r.text()
		case "shape":
			t.Shape, err = r.integers(maxRank)
		case "data_offsets":
			offsets, err = r.integers(2)
		default:
			err = r.skip()
		}
		return within(key, err)
	})
	if err != nil {
		return t, at, within(name, err)
	}
	if t.Type == "" || t.Shape == nil || len(offsets) != 2 {
		return t, at, fault(name, "dtype, shape and two data_offsets",
			"dtype %q, shape %v, data_offsets %v", t.Type, t.Shape, offsets)
	}
	at.begin, at.end = offsets[0], offsets[1]
	if at.begin < 0 || at.end < at.begin {
		return t, at, fault(name, "0 <= begin <= end", "data_offsets %v", offsets)
	}
	t.DType = dtypeOf(t.Type)
	if err := checkSize(t, at.end-at.begin); err != nil {
		return t, at, err
	}
	return t, at, nil
}

// checkSize holds the tensor's bytes against shape x element size. The size
// of an unknown type is not known, so that only its shape is checked.
func checkSize(t Tensor, have int64) error {
	if len(t.Shape) > maxRank {
		return fault(t.Name, fmt.Sprintf("%d dimensions at most", maxRank), "%d", len(t.Shape))
	}
	elements := uint64(1)
	overflow := uint64(0)
	for _, d := range t.Shape {
		if d < 0 {
			return fault(t.Name, "dimensions >= 0", "shape %v", t.Shape)
		}
		var hi uint64
		hi, elements = bits.Mul64(elements, uint64(d))
		overflow |= hi
	}
	hi, size := bits.Mul64(elements, uint64(typeBytes(t.Type)))
	if overflow|hi != 0 {
		return fault(t.Name, "a size below 2^64 bytes", "shape %v", t.Shape)
	}
	if typeBytes(t.Type) != 0 && size != uint64(have) {
		return fault(t.Name, fmt.Sprintf("%d for %s %v", size, t.Type, t.Shape), "%d bytes", have)
	}
	return nil
}

// checkLayout holds the extents against the format's rule: no gap, no overlap,
// nothing after the last one.
func checkLayout(order []extent, size int64) error {
	slices.SortFunc(order, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), strings.Compare(a.name, b.name))
	})
	end := int64(0)
	for _, at := range order {
		if at.begin != end {
			what := "a gap"
			if at.begin < end {
				what = "an overlap"
			}
			return fault(at.name, fmt.Sprintf("%d, the end of the tensor before", end),
				"%s: it begins at byte %d", what, at.begin)
		}
		end = at.end
	}
	if end > size {
		return fault("", fmt.Sprintf("%d, the end of the last tensor", end)+cut, "%d bytes after the header", size)
	}
	if end < size {
		return fault("", fmt.Sprintf("%d, the end of the last tensor", end), "%d bytes after the header", size)
	}
	return nil
}
