package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// encode makes a file of a header and n bytes of data.
func encode(header string, n int) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	file = append(file, header...)
	for i := range n {
		file = append(file, byte(i))
	}
	return file
}

func entry(name, dtype, shape string, begin, end int) string {
	return fmt.Sprintf(`%q:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}

func TestHeaderTensorsAreSlicesOfTheFile(t *testing.T) {
	file := encode("{"+entry("b", "BF16", "[3]", 12, 18)+`,"__metadata__":{"format":"pt"},`+
		entry("a", "F32", "[1,3]", 0, 12)+","+entry("none", "F16", "[0,7]", 18, 18)+","+
		entry("scalar", "I8", "[]", 18, 19)+"}   ", 19)
	tensors, err := parseHeader(file)
	require.NoError(t, err)
	require.Len(t, tensors, 4)

	b := tensors["b"]
	require.Equal(t, BF16, b.DType)
	require.Equal(t, []int64{3}, b.Shape)
	require.Equal(t, []byte{12, 13, 14, 15, 16, 17}, b.Data)
	require.Same(t, &file[len(file)-7], &b.Data[0], "a copy")
	require.Equal(t, len(b.Data), cap(b.Data), "append would write into the next tensor")
	require.Empty(t, tensors["none"].Data)
	require.Equal(t, Other, tensors["scalar"].DType)
	require.Equal(t, "I8", tensors["scalar"].Type)
}

func TestHeaderUnknownTypeIsAnErrorOnlyInUse(t *testing.T) {
	tensors, err := parseHeader(encode("{"+entry("q", "F7_NEW", "[5,5]", 0, 3)+"}", 3))
	require.NoError(t, err)
	require.Equal(t, Other, tensors["q"].DType)
	require.Equal(t, "F7_NEW", tensors["q"].Type)
}

func TestHeaderFaultsNameTensorFoundAndExpected(t *testing.T) {
	a := entry("a", "F32", "[2]", 0, 8)
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	short := encode("{"+a+"}", 8)
	binary.LittleEndian.PutUint64(short, 1000)

	for _, c := range []struct {
		name string
		file []byte
		want []string
	}{
		{"empty", nil, []string{"found 0 bytes", "8 bytes of header length"}},
		{"seven bytes", make([]byte, 7), []string{"found 7 bytes"}},
		{"length above the limit", huge, []string{"9223372036854775808 bytes", "104857600"}},
		{"length above the file", short, []string{"header", "1000 bytes", "found 62 bytes in the file"}},
		{"no object", encode("[]", 0), []string{"header", "a JSON object"}},
		{"no header", encode("", 0), []string{"header", "a JSON object"}},
		{"truncated JSON", encode("{"+a, 8), []string{"header", "the end in the middle"}},
		{"truncated entry", encode(`{"a":{"dtype":"F32"`, 8), []string{"a", "the end in the middle"}},
		{"bad JSON", encode("{"+a+",,}", 8), []string{"header", "valid JSON"}},
		{"second object", encode("{"+a+"}{}", 8), []string{"one JSON object"}},
		{"entry no object", encode(`{"a":7}`, 0), []string{"a: found 7", "a JSON object"}},
		{"name twice", encode("{"+a+","+a+"}", 8), []string{"a: found the name twice"}},
		{"key twice", encode(`{"a":{"dtype":"F32","dtype":"F32"}}`, 0), []string{"a.dtype: found the name twice"}},
		{"no dtype", encode(`{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8), []string{"a: found dtype \"\""}},
		{"no shape", encode(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), []string{"a: found", "shape []"}},
		{"one offset", encode(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8]}}`, 8), []string{"data_offsets [8]"}},
		{"metadata no strings", encode(`{"__metadata__":{"n":1}}`, 0), []string{"__metadata__.n: found 1, expected a text"}},
		{"negative dimension", encode("{"+entry("a", "F32", "[-2]", 0, 8)+"}", 8), []string{"a: found shape [-2]"}},
		{"fraction", encode("{"+entry("a", "F32", "[1.5]", 0, 8)+"}", 8), []string{"a.shape: found 1.5, expected an integer"}},
		{"out of the file", encode("{"+entry("a", "F32", "[3]", 0, 12)+"}", 8),
			[]string{"found 8 bytes after the header", "expected 12, the end of the last tensor", "the file is cut"}},
		{"negative offset", encode("{"+entry("a", "F32", "[3]", -4, 8)+"}", 8), []string{"a: found data_offsets [-4 8]"}},
		{"end before begin", encode("{"+entry("a", "F32", "[1]", 8, 4)+"}", 8), []string{"a: found data_offsets [8 4]"}},
		{"size", encode("{"+entry("a", "BF16", "[2]", 0, 8)+"}", 8), []string{"a: found 8 bytes", "4 for BF16 [2]"}},
		{"overflow", encode("{"+entry("a", "F32", "[4294967296,4294967296]", 0, 8)+"}", 8), []string{"a: found shape"}},
		{"overflow to the right size", encode("{"+entry("a", "F32", "[4611686018427387904,4]", 0, 0)+"}", 0), []string{"a: found shape"}},
		{"overflow then zero", encode("{"+entry("a", "F32", "[9223372036854775807,9223372036854775807,0]", 0, 0)+"}", 0),
			[]string{"a: found shape"}},
		{"rank", encode("{"+entry("a", "F32", "[1,1,1,1,1,1,1,1,2]", 0, 8)+"}", 8), []string{"a.shape: found more than 8 numbers"}},
		{"gap", encode("{"+a+","+entry("b", "U8", "[1]", 9, 10)+"}", 10), []string{"b: found a gap", "begins at byte 9", "expected 8"}},
		{"overlap", encode("{"+a+","+entry("b", "U8", "[3]", 7, 10)+"}", 10), []string{"b: found an overlap", "expected 8"}},
		{"gap at the start", encode("{"+entry("b", "U8", "[3]", 1, 4)+"}", 4), []string{"b: found a gap"}},
		{"bytes at the end", encode("{"+a+"}", 9), []string{"found 9 bytes after the header", "expected 8"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parseHeader(c.file)
			var format *FormatError
			require.ErrorAs(t, err, &format)
			require.NotContains(t, err.Error(), "\n")
			for _, w := range c.want {
				require.Contains(t, err.Error(), w)
			}
		})
	}
}

// FuzzHeader: any bytes give an error or tensors that cover the data exactly.
func FuzzHeader(f *testing.F) {
	a, b := entry("a", "F32", "[2]", 0, 8), entry("b", "BF16", "[1,3]", 8, 14)
	for _, file := range [][]byte{
		nil,
		encode("{}", 0),
		encode("{"+a+","+b+"}", 14),
		encode("{"+b+`,"__metadata__":{"format":"pt"},`+a+"}  ", 14),
		encode("{"+a+","+a+"}", 8),
		encode("{"+entry("a", "F32", "[4611686018427387904,4]", 0, 0)+"}", 0),
		encode("{"+entry("a", "X", "[-1]", 5, 2)+"}", 3),
		encode(`{"a":{"a":{"a":{"a":[[[[[[[[]]]]]]]]}}}}`, 0),
	} {
		f.Add(file)
	}
	f.Fuzz(func(t *testing.T, file []byte) {
		tensors, err := parseHeader(file)
		if err != nil {
			var format *FormatError
			if !errors.As(err, &format) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("not a one-line FormatError: %q", err)
			}
			return
		}
		var sum int64
		for name, x := range tensors {
			if x.Name != name {
				t.Fatalf("tensor %q under the name %q", x.Name, name)
			}
			elements := int64(1)
			for _, d := range x.Shape {
				elements *= d
			}
			if x.DType != Other && x.DType.Bytes(elements) != int64(len(x.Data)) {
				t.Fatalf("%s %v has %d bytes", x.DType, x.Shape, len(x.Data))
			}
			sum += int64(len(x.Data))
		}
		if have := int64(len(file)) - 8 - int64(binary.LittleEndian.Uint64(file)); sum != have {
			t.Fatalf("tensors cover %d of %d bytes", sum, have)
		}
	})
}
