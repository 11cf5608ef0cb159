package compute_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/weights"
	"github.com/millrace/millrace/tokenizer"
)

// fewHostile are the files that the tests below take in short mode: of them are mixtures, lists by layer, tensors of factors, two kinds of
// tokenizers and of four of safetensors.
var fewHostile = []string{
	"quantized/tiny-q4_k_m.gguf", "gguf/deepseek-v2.gguf", "gguf/nemotron-h.gguf", "gguf/phi3-longrope.gguf",
	"quantized/tokenizers/llama.gguf", "quantized/tokenizers/qwen2.gguf", "quantized/tiny", "quantized/gptq-4-act", "quantized/bnb-nf4",
	"quantized/ct-int3-zeros",
}

// hostileFiles are the paths of a pattern in testdata.
func hostileFiles(t *testing.T, patterns ...string) (paths []string) {
	for _, pattern := range patterns {
		all, err := filepath.Glob("../testdata/" + pattern)
		require.NoError(t, err)
		for _, path := range all {
			if !testing.Short() || slices.Contains(fewHostile, strings.TrimPrefix(filepath.Dir(path), "../testdata/")) ||
				slices.Contains(fewHostile, strings.TrimPrefix(path, "../testdata/")) {
				paths = append(paths, path)
			}
		}
	}
	require.NotEmpty(t, paths)
	return paths
}

// hostile is a file of which a test writes other versions, and the model or tokenizer that has it.
type hostile struct {
	path, model string
	open        func(path string) error
	now         []byte // what the file has
}

// write makes the file another version. Most differ from the one before in a few bytes.
func (h *hostile) write(t *testing.T, version []byte) {
	t.Helper()
	begin := 0
	for begin < min(len(h.now), len(version)) && h.now[begin] == version[begin] {
		begin++
	}
	end := len(version)
	for len(h.now) == len(version) && end > begin && h.now[end-1] == version[end-1] {
		end--
	}
	f, err := os.OpenFile(h.path, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	_, err = f.WriteAt(version[begin:end], int64(begin))
	require.NoError(t, errors.Join(err, f.Truncate(int64(len(version))), f.Close()))
	h.now = version
}

// openModel does what a server does with a model up to its mapped weights, and reads all of these.
func openModel(path string) error {
	_, _, w, err := compute.Read(path)
	if err != nil {
		return err
	}
	for _, name := range w.Names() {
		t, _ := w.Tensor(name)
		for _, b := range t.Data {
			_ = b
		}
	}
	return w.Close()
}

func openTokenizer(path string) error {
	tok, err := tokenizer.LoadOrBare(path, 0)
	if err != nil || tok.VocabSize() == 0 {
		return err
	}
	if _, err := tok.Encode("a b 12", true); err != nil {
		return err
	}
	return tok.Close()
}

// try writes a version and opens the model. An error is one line with the path, and memory stays in proportion to the file.
func (h *hostile) try(t *testing.T, version []byte, what string) (err error) {
	t.Helper()
	h.write(t, version)
	defer func() {
		if found := recover(); found != nil {
			t.Fatalf("%s: panic: %v", what, found)
		}
	}()
	before := allocated()
	err = h.open(h.model)
	if n := allocated() - before; n > uint64(len(version))+64<<20 {
		t.Errorf("%s: %d bytes allocated for a file of %d", what, n, len(version))
	}
	if err != nil && (!strings.Contains(err.Error(), filepath.Base(h.path)) || strings.Contains(err.Error(), "\n")) {
		t.Errorf("%s: found %q, expected one line with the path %s", what, err, h.path)
	}
	return err
}

// allocated is what the program ever took of Go's memory, in bytes.
func allocated() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// field is a number in the header of a GGUF file.
type field struct {
	name      string // what a fault of it names
	at, width int
	bounded   bool // by the size of the file: a length, a count, a dimension or an offset
}

// ggufWalk notes the fields of a GGUF file. Format: ggml/docs/gguf.md of llama.cpp.
type ggufWalk struct {
	file    []byte
	at      int
	fields  []field
	key     int   // the end of the keys
	tensors []int // the begin of each entry of the table, and its end
}

func (w *ggufWalk) number(width int, name string, bounded bool) uint64 {
	var wide [8]byte
	copy(wide[:], w.file[w.at:w.at+width])
	w.fields = append(w.fields, field{name, w.at, width, bounded})
	w.at += width
	return binary.LittleEndian.Uint64(wide[:])
}

func (w *ggufWalk) text(name string) string {
	n := int(w.number(8, name, true))
	w.at += n
	return string(w.file[w.at-n : w.at])
}

func (w *ggufWalk) value(key string, kind uint64) {
	widths := []int{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}
	switch kind {
	case 8:
		w.text(key)
	case 9:
		kind, n := w.number(4, key, false), int(w.number(8, key, true))
		for i := range n {
			noted := len(w.fields)
			w.value(key, kind)
			if i != 0 && i != n/2 && i != n-1 { // all are alike
				w.fields = w.fields[:noted]
			}
		}
	default:
		w.number(widths[kind], key, false)
	}
}

func walkGGUF(file []byte) *ggufWalk {
	w := &ggufWalk{file: file}
	w.number(4, "header", false)
	w.number(4, "version", false)
	tensors, keys := w.number(8, "tensor count", true), w.number(8, "metadata count", true)
	for range keys {
		key := w.text("metadata")
		w.value(key, w.number(4, key, false))
	}
	w.key = w.at
	for range tensors {
		w.tensors = append(w.tensors, w.at)
		name := w.text("tensor table")
		for range w.number(4, name, false) {
			w.number(8, name, true)
		}
		w.number(4, name, false)
		w.number(8, name, true)
	}
	w.tensors = append(w.tensors, w.at)
	return w
}

// extremes are values of a field that fit its width, without its own.
func extremes(own uint64, width, size int) []uint64 {
	most := ^uint64(0) >> (64 - 8*width)
	all := []uint64{
		0, 1, most, most - 1, most / 2, most/2 + 1, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63,
		uint64(size - 1), uint64(size), uint64(size + 1), own - 1, own + 1,
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(v uint64) bool { return v == own || v > most })
}

// tryFields writes each extreme to each of the fields.
func (h *hostile) tryFields(t *testing.T, file []byte, fields []field) {
	for _, f := range fields {
		var wide [8]byte
		copy(wide[:], file[f.at:f.at+f.width])
		for _, v := range extremes(binary.LittleEndian.Uint64(wide[:]), f.width, len(file)) {
			version := slices.Clone(file)
			copy(version[f.at:f.at+f.width], binary.LittleEndian.AppendUint64(nil, v))
			err := h.try(t, version, fmt.Sprintf("%s: %d bytes at %d: %d", f.name, f.width, f.at, v))
			if f.bounded && v > 1<<31 {
				require.ErrorContains(t, err, f.name, "%d bytes at %d: %d", f.width, f.at, v)
			}
			if format, ok := errors.AsType[*weights.FormatError](err); ok && format.Name == "" &&
				!strings.Contains(format.Error(), f.name) {
				t.Errorf("%s: %d bytes at %d: %d: found %q, expected a name in it", f.name, f.width, f.at, v, err)
			}
		}
	}
}

// tryCuts truncates a file to the multiples of 64 bytes, in short mode to those of 4096 too where there are many.
func (h *hostile) tryCuts(t *testing.T, file []byte) {
	for n := (len(file) - 1) &^ 63; n >= 0; n -= 64 {
		if testing.Short() && n > 4096 && n%4096 != 0 {
			continue
		}
		require.Error(t, h.try(t, file[:n], fmt.Sprintf("%d of %d bytes", n, len(file))))
	}
}

// TestEachFieldOfGGUFAtItsExtremes: the file loads, or an error names the field and the file.
func TestEachFieldOfGGUFAtItsExtremes(t *testing.T) {
	for _, path := range hostileFiles(t, "gguf/*.gguf", "gguf/encoders/*.gguf", "quantized/*.gguf", "quantized/gguf/*.gguf",
		"quantized/tokenizers/*.gguf") {
		t.Run(strings.TrimPrefix(path, "../testdata/"), func(t *testing.T) {
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			h := &hostile{path: filepath.Join(t.TempDir(), "model.gguf"), open: openModel}
			if strings.Contains(path, "tokenizers") {
				h.open = openTokenizer
			}
			h.model = h.path
			require.NoError(t, h.try(t, file, "as it is"))
			h.tryFields(t, file, walkGGUF(file).fields)
			h.tryCuts(t, file)
		})
	}
}

// TestEachFieldOfSplitGGUFAtItsExtremes changes the split keys of each of two parts, and truncates each. The data of the second part begins
// with a copy of the first part's, since the offsets in its header count from there.
func TestEachFieldOfSplitGGUFAtItsExtremes(t *testing.T) {
	file, err := os.ReadFile("../testdata/quantized/gguf/qwen2.gguf")
	require.NoError(t, err)
	w := walkGGUF(file)
	data := file[(w.at+31)/32*32:]
	last := len(w.tensors) - 1
	middle := binary.LittleEndian.Uint64(file[w.tensors[6]-8:]) // the offset of the second part's first tensor
	part := func(no, first, end int, data []byte) []byte {
		keys := slices.Clone(file[24:w.key])
		for i, key := range []string{"split.no", "split.count", "split.tensors.count"} {
			keys = append(binary.LittleEndian.AppendUint64(keys, uint64(len(key))), key...)
			keys = binary.LittleEndian.AppendUint32(keys, 5)
			keys = binary.LittleEndian.AppendUint32(keys, uint32([]int{no, 2, last}[i]))
		}
		out := binary.LittleEndian.AppendUint64(slices.Clone(file[:8]), uint64(end-first))
		out = binary.LittleEndian.AppendUint64(out, binary.LittleEndian.Uint64(file[16:])+3)
		out = append(append(out, keys...), file[w.tensors[first]:w.tensors[end]]...)
		return append(append(out, make([]byte, -len(out)&31)...), data...)
	}
	parts, dir := [][]byte{part(0, 0, 5, data[:middle]), part(1, 5, last, data)}, t.TempDir()
	path := func(i int) string { return fmt.Sprintf("%s/m-%05d-of-00002.gguf", dir, i+1) }
	for i, other := range []int{1, 0} {
		h := &hostile{path: path(i), model: path(0), open: openModel}
		require.NoError(t, os.WriteFile(path(other), parts[other], 0o600))
		require.NoError(t, h.try(t, parts[i], "as it is"))
		split := slices.DeleteFunc(walkGGUF(parts[i]).fields, func(f field) bool { return !strings.HasPrefix(f.name, "split.") })
		require.Len(t, split, 6)
		h.tryFields(t, parts[i], split)
		h.tryCuts(t, parts[i])
	}
}

var (
	headerEntry = regexp.MustCompile(`"([^"]+)":\{"dtype":("[^"]+"),"shape":\[([\d,]*)\],"data_offsets":\[(\d+,\d+)\]\}`)
	wholeNumber = regexp.MustCompile(`\d+`)
)

// place is a value in a text of JSON.
type place struct {
	name       string
	begin, end int
	others     []string // what it is replaced by
}

// headerPlaces are the values of the header of a safetensors file.
func headerPlaces(header string, size int) (places []place) {
	numbers := []string{"0", "1", "-1", "null", "1.5", "1e3", "[]", `"1"`, "99999999999999999999999"}
	for _, v := range extremes(0, 8, size) {
		numbers = append(numbers, fmt.Sprint(v))
	}
	types := []string{`"F64"`, `"F32"`, `"F16"`, `"BF16"`, `"U8"`, `"I64"`, `"X"`, `""`, "0", "null", "[]"}
	for _, m := range headerEntry.FindAllStringSubmatchIndex(header, -1) {
		name := header[m[2]:m[3]]
		places = append(places, place{name, m[4], m[5], types})
		for _, list := range [][]int{m[6:8], m[8:10]} {
			for _, at := range wholeNumber.FindAllStringIndex(header[list[0]:list[1]], -1) {
				places = append(places, place{name, list[0] + at[0], list[0] + at[1], numbers})
			}
			places = append(places, place{name, list[0], list[1], []string{"", "1", "0,0,0", "1,1,1,1,1,1,1,1,1,1"}})
		}
	}
	return places
}

// copyConfig copies a model's config.json.
func copyConfig(t *testing.T, from, dir string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(from, "config.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
}

// TestEachFieldOfSafetensorsAtItsExtremes: the file loads, or an error names the tensor, or another of its layer, and the file.
func TestEachFieldOfSafetensorsAtItsExtremes(t *testing.T) {
	for _, path := range hostileFiles(t, "quantized/*/model.safetensors") {
		t.Run(filepath.Base(filepath.Dir(path)), func(t *testing.T) {
			dir := t.TempDir()
			file, err := os.ReadFile(path)
			require.NoError(t, err)
			copyConfig(t, filepath.Dir(path), dir)
			h := &hostile{path: filepath.Join(dir, "model.safetensors"), model: dir, open: openModel}
			require.NoError(t, h.try(t, file, "as it is"))
			h.tryFields(t, file, []field{{"header", 0, 8, true}})
			h.tryCuts(t, file)
			end := 8 + int(binary.LittleEndian.Uint64(file))
			header := string(file[8:end])
			places := headerPlaces(header, len(file))
			require.Greater(t, len(places), 50)
			for i, p := range places {
				layer := p.name[:strings.LastIndexByte(p.name, '.')]
				for _, other := range p.others {
					if testing.Short() && i%5 != 0 {
						continue
					}
					changed := header[:p.begin] + other + header[p.end:]
					version := binary.LittleEndian.AppendUint64(nil, uint64(len(changed)))
					what := fmt.Sprintf("%s at %d: %s", p.name, p.begin, other)
					err := h.try(t, slices.Concat(version, []byte(changed), file[end:]), what)
					if err != nil && !strings.Contains(err.Error(), layer) {
						t.Errorf("%s: found %q, expected %s in it", what, err, layer)
					}
				}
			}
		})
	}
}

// TestEachValueOfAnIndexAtItsExtremes: an error names the tensor, and the index or a shard.
func TestEachValueOfAnIndexAtItsExtremes(t *testing.T) {
	const from = "../testdata/quantized/tiny"
	dir := t.TempDir()
	copyConfig(t, from, dir)
	file, err := os.ReadFile(from + "/model.safetensors")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/model.safetensors-1", file, 0o600))
	shards := map[string]string{}
	for _, m := range headerEntry.FindAllStringSubmatch(string(file), -1) {
		shards[m[1]] = "model.safetensors-1"
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": len(file)}, "weight_map": shards})
	require.NoError(t, err)
	h := &hostile{path: filepath.Join(dir, "model.safetensors.index.json"), model: dir, open: openModel}
	require.NoError(t, h.try(t, index, "as it is"))
	for n := range index {
		if testing.Short() && n%7 != 0 {
			continue
		}
		require.Error(t, h.try(t, index[:n], fmt.Sprintf("%d of %d bytes", n, len(index))))
	}
	others := []string{`""`, `"."`, `".."`, `"../x"`, `"/etc/passwd"`, `"` + strings.Repeat("x", 5000) + `"`, `"a\u0000b"`, `"a\nb"`, `"x"`,
		"1", "-1", "1e999", "null", "[]", "{}"}
	for _, m := range regexp.MustCompile(`"([^"]+)":("model.safetensors-1")`).FindAllSubmatchIndex(index, -1) {
		name := string(index[m[2]:m[3]])
		for _, other := range others {
			require.ErrorContains(t, h.try(t, slices.Concat(index[:m[4]], []byte(other), index[m[5]:]), name+": "+other), name)
		}
	}
	for _, other := range append(others, "0", "18446744073709551616") { // total_size, which nothing reads
		require.NoError(t, h.try(t, []byte(strings.Replace(string(index), fmt.Sprint(len(file)), other, 1)), "total_size: "+other))
	}
}
