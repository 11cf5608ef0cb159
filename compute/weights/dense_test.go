package weights

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// repeated is n parts with the numbers from 0 in hexadecimal, one after the other.
func repeated(n int, part string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(part, "#", fmt.Sprintf("%06x", i)))
	}
	return b.String()
}

// TestAFileOfTheSmallestPartsTakesLittleMoreMemoryThanItsSize, be it read or refused.
func TestAFileOfTheSmallestPartsTakesLittleMoreMemoryThanItsSize(t *testing.T) {
	const n = 1 << 20
	dir := t.TempDir()
	gguf, single, index := filepath.Join(dir, "model.gguf"), filepath.Join(dir, singleFile), filepath.Join(dir, indexFile)
	list := func(kind uint32, n, size int) []byte {
		return newGGUF(3, 0, 1).text("k").u32(ggufArray).u32(kind).u64(uint64(n)).file(size)
	}
	many := func(tensors, keys int, part []byte) []byte {
		n := tensors + keys
		b := newGGUF(3, uint64(tensors), uint64(keys))
		begin := len(b.b)
		b.b = append(b.b, bytes.Repeat(part, n)...)
		for i := range n {
			copy(b.b[begin+i*len(part)+8:], fmt.Sprintf("%06x", i))
			if tensors > 0 { // its offset is last
				binary.LittleEndian.PutUint64(b.b[begin+(i+1)*len(part)-8:], uint64(32*i))
			}
		}
		return b.file(32 * tensors)
	}
	key := append(binary.LittleEndian.AppendUint64(nil, 6), "......\x07\x00\x00\x00\x01"...)
	tensor := new(ggufBuilder).tensor("......", 0, 0, 1).b
	header := func(parts string) []byte {
		return encode("{"+parts+`"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, 0)
	}
	for _, c := range []struct {
		name, path string
		file       []byte
		want       string // the fault; "": none
	}{
		{"bytes", gguf, list(ggufInt8, 16*n, 16*n), ""},
		{"bools", gguf, list(ggufBool, 16*n, 16*n), ""},
		{"pairs of bytes", gguf, list(ggufInt16, 8*n, 16*n), ""},
		{"empty texts", gguf, list(ggufString, 4*n, 32*n), ""},
		{"more empty texts", gguf, list(ggufString, 4*n+1, 33*n), "k: found 4194305 entries, expected 4194304 at most"},
		{"keys", gguf, many(0, ggufMaxKeys, key), ""},
		{"more keys", gguf, many(0, n/8, key), "metadata count: found 131072 entries, expected 32768 at most"},
		{"tensors", gguf, many(maxTensors, 0, tensor), ""},
		{"more tensors", gguf, many(2*maxTensors, 0, tensor), "tensor count: found 262144 entries, expected 131072 at most"},
		{"tensors of safetensors", single, header(repeated(maxTensors-1, `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`)), ""},
		{"more tensors of safetensors", single, header(repeated(maxTensors, `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`)),
			"found more names than 131072"},
		{"metadata", single, header(`"__metadata__":{` + repeated(2*maxTensors, `"#":"",`) + `"":""},`),
			"__metadata__.020000: found more names than 131072"},
		{"dimensions", single, header(`"a":{"shape":[` + strings.Repeat("0,", n) + `0]},`), "a.shape: found more than 8 numbers"},
		{"values of no meaning", single, header(`"a":{"b":[` + strings.Repeat("0,",
			n) + `0],"dtype":"U8","shape":[0],"data_offsets":[0,0]},`), ""},
		{"depth", single, header(`"a":{"b":` + strings.Repeat("[", n)), "a.b: found a depth of 65"},
		{"long text", single, header(`"a":{"b":"` + strings.Repeat("x", 16*n)),
			"found a text or number of more, expected 4194304 bytes at most"},
		{"long number", single, header(`"a":{"b":` + strings.Repeat("1", 16*n)), "found a text or number of more"},
		{"tensors of an index", index, []byte(`{"weight_map":{` + repeated(maxIndex, `"#":"x",`) + `"":"x"}}`),
			"weight_map: found more names than 524288"},
	} {
		require.NoError(t, os.RemoveAll(single))
		require.NoError(t, os.WriteFile(c.path, c.file, 0o600))
		before := memory()
		var held io.Closer
		var err error
		if c.path == gguf {
			held, err = OpenGGUF(gguf, nil)
		} else {
			held, err = Open(dir)
		}
		after := memory()
		if c.want == "" {
			require.NoError(t, err, c.name)
			require.NoError(t, held.Close())
		} else {
			require.ErrorContains(t, err, c.want, c.name)
		}
		kept, passed, size := int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(after.TotalAlloc-before.TotalAlloc), int64(len(c.file))
		if kept > size+64<<20 || passed > size+320<<20 {
			t.Errorf("%s: %d bytes kept of %d allocated for a file of %d", c.name, kept, passed, size)
		}
		t.Logf("%s: %d MB kept of %d allocated for a file of %d", c.name, kept>>20, passed>>20, size>>20)
	}
}

func memory() (m runtime.MemStats) {
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}
