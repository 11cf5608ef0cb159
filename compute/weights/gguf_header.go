package weights

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Metadata are the keys and values of a GGUF file. Integers are int64 or, of
// type UINT64, uint64; the rest is float64, bool, string, []string and List.
type Metadata map[string]any

// List is an array of numbers or bools. It has them as the file has: as values they are up to 24 times as large.
type List struct {
	kind uint32
	data []byte
}

// Len is the number of values.
func (l List) Len() int { return len(l.data) / int(max(1, valueBytes(l.kind))) }

// At is value i, as Metadata has them.
func (l List) At(i int) any {
	size := int(valueBytes(l.kind))
	return valueOf(l.kind, l.data[i*size:][:size])
}

// String writes a short list.
func (l List) String() string {
	if l.Len() > 64 {
		return fmt.Sprintf("a list of %d", l.Len())
	}
	return fmt.Sprint(l.Values())
}

// Values are all values, as Metadata has them.
func (l List) Values() []any {
	values := make([]any, l.Len())
	for i := range values {
		values[i] = l.At(i)
	}
	return values
}

// ggufTensor is an entry of the tensor table.
type ggufTensor struct {
	name   string
	shape  []int64 // rows first: the file has the fastest dimension first
	kind   uint32  // ggml's number
	offset uint64  // from the begin of the data
}

type ggufHeader struct {
	metadata Metadata
	tensors  []ggufTensor
	data     uint64 // offset in the file
}

const (
	ggufMagic     = "GGUF"
	ggufAlignment = 32      // where general.alignment is absent
	ggufMaxRank   = 4       // GGML_MAX_DIMS
	ggufMaxName   = 1 << 16 // as llama.cpp has it for keys

	// Bounds of what becomes larger in memory than it is in the file: many times what any model has.
	ggufMaxKeys  = 1 << 15
	ggufMaxTexts = 1 << 22 // of a list: the largest vocabularies have 2^18 tokens and 2^19 merges
)

// Value types of the metadata (gguf_metadata_value_type).
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ggufReader reads a file from its begin and keeps the first fault.
type ggufReader struct {
	file []byte
	at   uint64
	err  error
}

func (r *ggufReader) fault(name, expected, found string, args ...any) {
	if r.err == nil {
		r.err = fault(name, expected, found, args...)
	}
}

// take returns the next n bytes, nil after a fault.
func (r *ggufReader) take(n uint64, what string) []byte {
	if rest := uint64(len(r.file)) - r.at; r.err == nil && n > rest {
		r.fault(what, fmt.Sprintf("%d more", n)+cut, "%d bytes before the end of the file", rest)
	}
	if r.err != nil {
		return nil
	}
	b := r.file[r.at : r.at+n]
	r.at += n
	return b
}

func (r *ggufReader) uint32(what string) uint32 {
	if b := r.take(4, what); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *ggufReader) uint64(what string) uint64 {
	if b := r.take(8, what); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *ggufReader) text(what string) string { return string(r.take(r.uint64(what), what)) }

// count reads a number of entries of at least size bytes each: more than the
// file can hold, or than bound, are a fault before anything is allocated for them.
func (r *ggufReader) count(what string, size, bound uint64) uint64 {
	n := r.uint64(what)
	if most := (uint64(len(r.file)) - r.at) / size; r.err == nil && n > most {
		r.fault(what, fmt.Sprintf("%d at most, by the size of the file", most), "%d entries", n)
	}
	if n > bound {
		r.fault(what, fmt.Sprintf("%d at most", bound), "%d entries", n)
	}
	if r.err != nil {
		return 0
	}
	return n
}

// parseGGUF reads metadata and tensor table. Format: ggml/docs/gguf.md of
// github.com/ggml-org/llama.cpp, versions 2 and 3, little-endian.
func parseGGUF(file []byte) (*ggufHeader, error) {
	r := &ggufReader{file: file}
	if magic := r.take(4, "header"); r.err == nil && string(magic) != ggufMagic {
		r.fault("header", `"`+ggufMagic+`"`, "%q", magic)
	}
	if version := r.uint32("version"); r.err == nil && version != 2 && version != 3 {
		r.fault("version", "2 or 3, little-endian", "%d", version)
	}
	tensors := r.count("tensor count", 24, maxTensors)
	keys := r.count("metadata count", 13, ggufMaxKeys)
	h := &ggufHeader{metadata: Metadata{}}
	for range keys {
		r.entry(h.metadata)
	}
	names := map[string]bool{}
	for range tensors {
		t := r.tensor()
		if r.err == nil && names[t.name] {
			r.fault(t.name, "each name once", "the name twice")
		}
		if r.err != nil {
			return nil, r.err
		}
		names[t.name] = true
		h.tensors = append(h.tensors, t)
	}
	if r.err != nil {
		return nil, r.err
	}
	alignment := uint64(ggufAlignment)
	if v, ok := h.metadata["general.alignment"]; ok {
		a, isInt := v.(int64)
		if !isInt || a < 1 || a > 1<<20 || a&(a-1) != 0 {
			return nil, fault("general.alignment", "a power of two up to 1048576", "%v", v)
		}
		alignment = uint64(a)
	}
	h.data = (r.at + alignment - 1) / alignment * alignment
	for _, t := range h.tensors {
		if t.offset%alignment != 0 {
			return nil, fault(t.name, fmt.Sprintf("a multiple of %d", alignment), "offset %d", t.offset)
		}
	}
	return h, nil
}

// entry reads a key and its value.
func (r *ggufReader) entry(to Metadata) {
	key := r.text("metadata")
	if r.err == nil && (key == "" || len(key) >= ggufMaxName) {
		r.fault("metadata", fmt.Sprintf("1 to %d", ggufMaxName-1), "a key of %d bytes", len(key))
	}
	if _, twice := to[key]; r.err == nil && twice {
		r.fault(key, "each key once", "the key twice")
	}
	kind := r.uint32(key)
	var value any
	if kind == ggufArray {
		value = r.array(key)
	} else {
		value = r.value(key, kind)
	}
	if r.err == nil {
		to[key] = value
	}
}

// valueBytes is the size of a value, of a string its least; 0: no such type.
func valueBytes(kind uint32) uint64 {
	switch kind {
	case ggufUint8, ggufInt8, ggufBool:
		return 1
	case ggufUint16, ggufInt16:
		return 2
	case ggufUint32, ggufInt32, ggufFloat32:
		return 4
	case ggufUint64, ggufInt64, ggufFloat64, ggufString:
		return 8
	}
	return 0
}

func (r *ggufReader) value(key string, kind uint32) any {
	if kind == ggufString {
		return r.text(key)
	}
	size := valueBytes(kind)
	if size == 0 {
		r.fault(key, "a type of 0 to 12, arrays not in arrays", "value type %d", kind)
		return nil
	}
	b := r.take(size, key)
	if b == nil {
		return nil
	}
	return valueOf(kind, b)
}

// valueOf is a value of its bytes.
func valueOf(kind uint32, b []byte) any {
	var wide [8]byte
	copy(wide[:], b)
	u := binary.LittleEndian.Uint64(wide[:])
	switch kind {
	case ggufInt8:
		return int64(int8(u))
	case ggufInt16:
		return int64(int16(u))
	case ggufInt32:
		return int64(int32(u))
	case ggufInt64:
		return int64(u)
	case ggufUint64:
		return u
	case ggufFloat32:
		return float64(math.Float32frombits(uint32(u)))
	case ggufFloat64:
		return math.Float64frombits(u)
	case ggufBool:
		return u != 0
	}
	return int64(u)
}

// array reads []string or a List.
func (r *ggufReader) array(key string) any {
	kind := r.uint32(key)
	size := valueBytes(kind)
	if r.err == nil && size == 0 {
		r.fault(key, "a type of 0 to 12, arrays not in arrays", "array of value type %d", kind)
	}
	if r.err != nil {
		return nil
	}
	if kind != ggufString {
		n := r.count(key, size, math.MaxUint64)
		return List{kind, slices.Clone(r.take(n*size, key))}
	}
	list := make([]string, 0, r.count(key, size, ggufMaxTexts))
	for range cap(list) {
		list = append(list, r.text(key))
		if r.err != nil {
			return nil
		}
	}
	return list
}

func (r *ggufReader) tensor() ggufTensor {
	t := ggufTensor{name: r.text("tensor table")}
	if r.err == nil && t.name == "" {
		r.fault("tensor table", "1 byte or more", "a name of 0 bytes")
	}
	rank := r.uint32(t.name)
	if r.err == nil && (rank < 1 || rank > ggufMaxRank) {
		r.fault(t.name, fmt.Sprintf("1 to %d", ggufMaxRank), "%d dimensions", rank)
	}
	if r.err != nil {
		return t
	}
	t.shape = make([]int64, rank)
	for i := range t.shape {
		d := r.uint64(t.name)
		if r.err == nil && (d < 1 || d > math.MaxInt64) {
			r.fault(t.name, "dimensions of 1 to 2^63 - 1", "%d", d)
		}
		t.shape[int(rank)-1-i] = int64(d)
	}
	t.kind = r.uint32(t.name)
	t.offset = r.uint64(t.name)
	return t
}

// size is the number of bytes of a tensor: whole blocks along its last
// dimension.
func (t *ggufTensor) size() (blockType, uint64, error) {
	b, ok := blockTypes[t.kind]
	if !ok {
		name := otherTypes(t.kind)
		if name == "" {
			name = fmt.Sprintf("number %d", t.kind)
		}
		return b, 0, fault(t.name, blockNames()+": take another file of the model, such as its Q8_0 or Q4_K_M", "type %s", name)
	}
	width := t.shape[len(t.shape)-1]
	if width%b.elements != 0 {
		return b, 0, fault(t.name, fmt.Sprintf("rows of a multiple of %d elements for %s", b.elements, b.name), "shape %v", t.shape)
	}
	overflow, n := bits.Mul64(uint64(width/b.elements), uint64(b.bytes))
	for _, d := range t.shape[:len(t.shape)-1] {
		var hi uint64
		hi, n = bits.Mul64(n, uint64(d))
		overflow |= hi
	}
	if overflow != 0 || n > 1<<60 {
		return b, 0, fault(t.name, "a size of 2^60 bytes at most", "shape %v", t.shape)
	}
	return b, n, nil
}
