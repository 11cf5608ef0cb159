package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ggufBuilder writes GGUF files, sound or not.
type ggufBuilder struct{ b []byte }

func newGGUF(version uint32, tensors, keys uint64) *ggufBuilder {
	g := &ggufBuilder{[]byte(ggufMagic)}
	return g.u32(version).u64(tensors).u64(keys)
}

func (g *ggufBuilder) u32(v uint32) *ggufBuilder {
	g.b = binary.LittleEndian.AppendUint32(g.b, v)
	return g
}

func (g *ggufBuilder) u64(v uint64) *ggufBuilder {
	g.b = binary.LittleEndian.AppendUint64(g.b, v)
	return g
}

func (g *ggufBuilder) text(s string) *ggufBuilder {
	g.u64(uint64(len(s)))
	g.b = append(g.b, s...)
	return g
}

func (g *ggufBuilder) string(key, value string) *ggufBuilder {
	return g.text(key).u32(ggufString).text(value)
}

func (g *ggufBuilder) integer(key string, value uint32) *ggufBuilder {
	return g.text(key).u32(ggufUint32).u32(value)
}

// tensor adds an entry of the table; dims as the file has them, fastest first.
func (g *ggufBuilder) tensor(name string, kind uint32, offset uint64, dims ...uint64) *ggufBuilder {
	g.text(name).u32(uint32(len(dims)))
	for _, d := range dims {
		g.u64(d)
	}
	return g.u32(kind).u64(offset)
}

// file pads the header and adds n bytes of data.
func (g *ggufBuilder) file(n int) []byte {
	for len(g.b)%ggufAlignment != 0 {
		g.b = append(g.b, 0)
	}
	return append(g.b, make([]byte, n)...)
}

// named is a layout with other names for some tensors. In the tensors of q the rows of each head are interleaved: "heads" says how many
// heads there are.
func named(m Metadata) (Layout, error) {
	heads, _ := m["heads"].(int64)
	if heads < 0 {
		return Layout{}, fault("heads", "an integer of at least 1", "%d", heads)
	}
	return Layout{
		Name: func(tensor string) string {
			if tensor == "output.weight" {
				return "lm_head.weight"
			}
			return strings.Replace(tensor, "blk.", "model.layers.", 1)
		},
		Interleaved: func(tensor string) int64 {
			if strings.HasSuffix(tensor, "attn_q.weight") {
				return heads
			}
			return 0
		},
	}, nil
}

func openBytes(t testing.TB, file []byte) (*GGUF, error) {
	dir := t.TempDir()
	path := dir + "/model.gguf"
	require.NoError(t, os.WriteFile(path, file, 0o600))
	g, err := OpenGGUF(path, named)
	if format, ok := errors.AsType[*FormatError](err); ok && format.File != path {
		t.Fatalf("the fault names the file %q", format.File)
	}
	return g, err
}

func TestGGUFReadsMetadataAndTensors(t *testing.T) {
	b := newGGUF(3, 2, 6).
		string("general.architecture", "qwen2").integer("a", 7).
		text("b").u32(ggufFloat32).u32(math.Float32bits(1.5)).
		text("c").u32(ggufArray).u32(ggufString).u64(2).text("x").text("yz").
		text("d").u32(ggufArray).u32(ggufInt32).u64(2).u32(math.MaxUint32).u32(5).
		text("e").u32(ggufUint64).u64(math.MaxUint64).
		tensor("output_norm.weight", 0, 32, 3).tensor("blk.3.ffn_up.weight", 8, 64, 32, 2)
	file := b.file(64 + 68)
	data := file[len(file)-64-68:]
	binary.LittleEndian.PutUint32(data[32:], math.Float32bits(-2))
	for row := range 2 {
		block := data[64+34*row:]
		binary.LittleEndian.PutUint16(block, floatToHalf(0.5))
		for i := range 32 {
			block[2+i] = byte(i - 20*row)
		}
	}
	g, err := openBytes(t, file)
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.Equal(t, Metadata{
		"general.architecture": "qwen2", "a": int64(7), "b": 1.5, "c": []string{"x", "yz"},
		"d": List{ggufInt32, []byte{255, 255, 255, 255, 5, 0, 0, 0}}, "e": uint64(math.MaxUint64),
	}, g.Metadata)
	require.Equal(t, []any{int64(-1), int64(5)}, g.Metadata["d"].(List).Values())
	require.Equal(t, []string{"model.layers.3.ffn_up.weight", "output_norm.weight"}, g.Names())
	norm, ok := g.Tensor("output_norm.weight")
	require.True(t, ok)
	require.Equal(t, []int64{3}, norm.Shape)
	require.InDelta(t, -2, readFloat(norm.Data), 0)
	up, ok := g.Tensor("model.layers.3.ffn_up.weight")
	require.True(t, ok)
	require.Equal(t, "Q8_0", up.Type)
	require.Equal(t, []int64{2, 32}, up.Shape)
	require.Equal(t, "Q8_0", up.DType.String())
	require.True(t, up.DType.Blocks())
	require.Equal(t, data[64:], up.Data, "blocks stay as they lie in the file")
	require.Zero(t, up.Heads)
}

func TestGGUFSaysWhoseRowsAreInterleaved(t *testing.T) {
	g, err := openBytes(t, newGGUF(3, 2, 1).integer("heads", 2).tensor("blk.0.attn_q.weight", 0, 0, 2, 8).tensor("blk.0.attn_v.weight", 0,
		64, 2, 8).file(128))
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	q, _ := g.Tensor("model.layers.0.attn_q.weight")
	v, _ := g.Tensor("model.layers.0.attn_v.weight")
	require.Equal(t, []int64{2, 0}, []int64{q.Heads, v.Heads})
}

func TestGGUFFaultsNameTensorFoundAndExpected(t *testing.T) {
	one := func(kind uint32, offset uint64, dims ...uint64) *ggufBuilder {
		return newGGUF(3, 1, 0).tensor("a", kind, offset, dims...)
	}
	whole := one(0, 0, 2).file(8)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, "found 0 bytes, expected 24 bytes"},
		{"magic", append([]byte("GGML"), whole[4:]...), `header: found "GGML", expected "GGUF"`},
		{"version 1", newGGUF(1, 0, 0).file(0), "version: found 1, expected 2 or 3"},
		{"big-endian", newGGUF(3<<24, 0, 0).file(0), "version: found 50331648, expected 2 or 3, little-endian"},
		{"too many tensors", newGGUF(3, 1<<60, 0).file(0), "tensor count: found 1152921504606846976 entries, expected 0 at most"},
		{"too many keys", newGGUF(3, 0, 1<<60).file(0), "metadata count: found 1152921504606846976 entries"},
		{"long key", newGGUF(3, 0, 1).u64(1 << 40).file(64), "metadata: found"},
		{"key without a name", newGGUF(3, 0, 1).integer("", 1).file(0), "metadata: found a key of 0 bytes"},
		{"key twice", newGGUF(3, 0, 2).integer("k", 1).integer("k", 2).file(0), "k: found the key twice"},
		{"value type", newGGUF(3, 0, 1).text("k").u32(13).u64(0).file(0), "k: found value type 13"},
		{"array of arrays", newGGUF(3, 0, 1).text("k").u32(ggufArray).u32(ggufArray).u64(1).file(32), "k: found array of value type 9"},
		{"long array", newGGUF(3, 0, 1).text("k").u32(ggufArray).u32(ggufInt32).u64(1 << 50).file(0), "k: found 1125899906842624 entries"},
		{"string after the end", newGGUF(3, 0, 1).text("k").u32(ggufString).u64(1000).file(0), "k: found"},
		{"alignment", newGGUF(3, 0, 1).integer("general.alignment", 24).file(0), "general.alignment: found 24, expected a power of two"},
		{"tensor without a name", newGGUF(3, 1, 0).tensor("", 0, 0, 2).file(8), "tensor table: found a name of 0 bytes"},
		{"no dimension", one(0, 0).file(8), "a: found 0 dimensions, expected 1 to 4"},
		{"five dimensions", one(0, 0, 1, 1, 1, 1, 1).file(8), "a: found 5 dimensions"},
		{"dimension 0", one(0, 0, 0, 3).file(8), "a: found 0, expected dimensions of 1"},
		{"dimension 2^63", one(0, 0, 1<<63).file(8), "a: found 9223372036854775808, expected dimensions"},
		{"unread type", one(15, 0, 256).file(292), "a: found type Q8_K, expected F32, F16, Q4_0, Q4_1, Q5_0, "},
		{"unknown type", one(999, 0, 256).file(176), "a: found type number 999"},
		{"part of a block", one(12, 0, 128, 2).file(144), "a: found shape [2 128], expected rows of a multiple of 256 elements for Q4_K"},
		{"quantized vector", one(8, 0, 32).file(34), "a: found a vector of type Q8_0, expected a matrix"},
		{"overflow", one(0, 0, 1<<40, 1<<40).file(8),
			"a: found shape [1099511627776 1099511627776], expected a size of 2^60 bytes at most"},
		{"misplaced", one(0, 8, 2).file(64), "a: found offset 8, expected a multiple of 32"},
		{"truncated data", whole[:len(whole)-1], "a: found 8 bytes at offset 0, expected an end within the 7 bytes of data"},
		{"after the end", one(0, 1<<40, 2).file(8), "a: found 8 bytes at offset 1099511627776"},
		{"name twice", newGGUF(3, 2, 0).tensor("a", 0, 0, 2).tensor("a", 0, 32, 2).file(64), "a: found the name twice"},
		{"two names of one", newGGUF(3, 2, 0).tensor("output.weight", 0, 0, 2).tensor("lm_head.weight", 0, 32, 2).file(64),
			"lm_head.weight: found a second tensor for lm_head.weight"},
		{"overlap", newGGUF(3, 2, 0).tensor("a", 0, 0, 16).tensor("b", 0, 32, 2).file(64),
			"b: found an overlap: it begins at byte 32 of the data, expected 64 or more, the end of a"},
		{"heads that do not divide", newGGUF(3, 1, 1).integer("heads", 2).tensor("blk.0.attn_q.weight", 0, 0, 2, 6).file(48),
			"blk.0.attn_q.weight: found 6 rows, expected a multiple of 2 x 2 heads"},
		{"a layout that is not made", newGGUF(3, 0, 1).text("heads").u32(ggufInt32).u32(math.MaxUint32).file(0),
			"heads: found -1, expected an integer"},
		{"part of a model", newGGUF(3, 0, 1).integer("split.count", 3).file(0),
			"split.count: found 3 files, and the name model.gguf, expected a name that ends with -00001-of-00003.gguf"},
		{"a later part", newGGUF(3, 0, 2).integer("split.count", 3).integer("split.no", 1).file(0),
			"split.no: found 1 of 3 files, expected 0: the first file of a model names the others"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := openBytes(t, c.file)
			require.ErrorContains(t, err, c.want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

// TestGGUFInParts: the first file has the metadata, and all of them tensors.
func TestGGUFInParts(t *testing.T) {
	dir := t.TempDir()
	put := func(i int, b *ggufBuilder) {
		file := b.file(32)
		file[len(file)-32] = byte(i)
		require.NoError(t, os.WriteFile(fmt.Sprintf("%s/m-0000%d-of-00003.gguf", dir, i), file, 0o600))
	}
	first := dir + "/m-00001-of-00003.gguf"
	part := func(no uint32, tensor string) *ggufBuilder {
		return newGGUF(3, 1, 3).integer("split.count", 3).integer("split.no", no).integer("split.tensors.count", 3).tensor(tensor, 0, 0, 2)
	}
	fails := func(want string) {
		t.Helper()
		_, err := OpenGGUF(first, named)
		require.ErrorContains(t, err, want)
	}
	put(1, part(0, "a"))
	put(2, part(1, "b"))
	fails("m-00001-of-00003.gguf: split.count: found no file m-00003-of-00003.gguf, expected all 3 files in one folder")
	put(3, part(2, "b"))
	fails("m-00003-of-00003.gguf: b: found a second tensor for b")
	put(3, part(1, "output.weight"))
	fails("m-00003-of-00003.gguf: split.no: found 1 of 3 files, expected 2")
	put(3, newGGUF(3, 1, 0).tensor("c", 0, 0, 2))
	fails("m-00003-of-00003.gguf: split.no: found 0 of 1 files, expected 2")
	put(3, part(2, "output.weight"))
	g, err := OpenGGUF(first, named)
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.Equal(t, []string{"a", "b", "lm_head.weight"}, g.Names())
	for i, name := range g.Names() {
		tensor, ok := g.Tensor(name)
		require.True(t, ok)
		require.Equal(t, byte(i+1), tensor.Data[0])
		require.Equal(t, fmt.Sprintf("%s/m-0000%d-of-00003.gguf", dir, i+1), tensor.File)
	}
	put(2, newGGUF(3, 0, 2).integer("split.count", 3).integer("split.no", 1))
	fails("m-00001-of-00003.gguf: split.tensors.count: found 3, expected 2, the tensors of all files")
}

// TestGGUFCutShortAnywhereIsAFault: no prefix of a sound file is one.
func TestGGUFCutShortAnywhereIsAFault(t *testing.T) {
	file, err := os.ReadFile(quantized + "gguf/llama-gqa.gguf")
	require.NoError(t, err)
	for n := 0; n < len(file); n += 1 + n/50 {
		var format *FormatError
		_, err := openBytes(t, file[:n])
		require.ErrorAs(t, err, &format, "%d bytes", n)
	}
}

// FuzzGGUF: any bytes give a one-line error, or tensors that can be read whole.
func FuzzGGUF(f *testing.F) {
	for _, file := range [][]byte{
		nil,
		newGGUF(3, 0, 0).file(0),
		newGGUF(2, 2, 1).string("general.architecture", "qwen3").tensor("a", 0, 0, 2).tensor("blk.0.attn_k.weight", 12, 32, 256,
			2).file(32 + 288),
		newGGUF(3, 1, 3).string("general.architecture", "llama").integer("heads", 1).
			integer("general.alignment", 8).tensor("blk.0.attn_q.weight", 14, 0, 256, 2).file(420),
		newGGUF(3, 1, 1).text("k").u32(ggufArray).u32(ggufString).u64(2).text("x").text("y").tensor("a", 2, 0, 32, 1, 2).file(36),
		newGGUF(3, 1, 0).tensor("a", 0, 0, 1<<62, 4).file(8),
	} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		c := &Checkpoint{tensors: map[string]Tensor{}}
		g := &GGUF{Checkpoint: c}
		_, err := g.part("", file, 0, named, map[string]bool{})
		defer c.Close() //nolint:errcheck // the fault of a fuzzed file is looked at below
		if err != nil {
			var format *FormatError
			if !errors.As(err, &format) && !strings.Contains(err.Error(), "map") || strings.Contains(err.Error(), "\n") {
				t.Fatalf("not a one-line FormatError: %q", err)
			}
			return
		}
		for _, name := range c.Names() {
			x, ok := c.Tensor(name)
			elements := int64(1)
			for _, d := range x.Shape {
				elements *= d
			}
			if !ok || x.DType == Other || x.DType.Bytes(elements) != int64(len(x.Data)) {
				t.Fatalf("%s %s %v has %d bytes", name, x.DType, x.Shape, len(x.Data))
			}
		}
	})
}
