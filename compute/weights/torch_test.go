package weights

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const torchFolderOfTests = "testdata/torch/" // made by scripts/fixtures/make_published.py

// TestTorchTensorsAreThoseThatTorchSaved, of every type and protocol, in views of shared storages, and in another order.
func TestTorchTensorsAreThoseThatTorchSaved(t *testing.T) {
	for name, twin := range map[string]string{
		"plain": "plain", "strided": "strided", "module": "module", "protocol4": "module", "protocol5": "module",
	} {
		t.Run(name, func(t *testing.T) {
			want, err := OpenFile(torchFolderOfTests + twin + ".safetensors")
			require.NoError(t, err)
			defer want.Close()
			got, err := OpenFile(torchFolderOfTests + name + ".bin")
			require.NoError(t, err)
			require.NotEmpty(t, want.Names())
			require.Equal(t, want.Names(), got.Names())
			for _, tensor := range want.Names() {
				a, _ := want.Tensor(tensor)
				b, ok := got.Tensor(tensor)
				require.True(t, ok)
				require.Equal(t, torchFolderOfTests+name+".bin", b.File)
				require.Equal(t, a.Shape, b.Shape, tensor)
				require.Equal(t, string(a.Data), string(b.Data), tensor)
				require.Equal(t, a.DType, b.DType, tensor)
				require.Equal(t, a.Type, b.Type, tensor)
			}
			require.NoError(t, got.Close())
		})
	}
}

// TestTorchTensorsAreSlicesOfTheFile where their elements lie in order: nothing is copied.
func TestTorchTensorsAreSlicesOfTheFile(t *testing.T) {
	file, err := os.ReadFile(torchFolderOfTests + "plain.bin")
	require.NoError(t, err)
	c := &Checkpoint{}
	tensors, err := c.torchTensors(file)
	require.NoError(t, err)
	require.Empty(t, c.memory)
	base, rows, tied := tensors["base"], tensors["rows"], tensors["tied"]
	require.Same(t, &base.Data[2*4*4], &rows.Data[0])
	require.Same(t, &base.Data[0], &tied.Data[0])
	at := bytes.Index(file, base.Data)
	require.Same(t, &file[at], &base.Data[0])
	require.Equal(t, len(rows.Data), cap(rows.Data), "append would write into what follows")
}

func TestTorchFilesOfOtherThanTensorsAreRefusedByName(t *testing.T) {
	for name, want := range map[string]string{
		"legacy":       "found the format of torch before 1.6, expected a zip archive, as torch.save writes since 1.6: save_pretrained",
		"whole-module": "data.pkl: found global torch.nn.modules.container.Sequential at byte 2, expected those of a state dict of tensors: collections.OrderedDict, ",
		"training":     `data.pkl: found a dict for "model" at byte `,
		"list":         "data.pkl: found opcode EMPTY_LIST at byte 2, expected those of a state dict of tensors",
		"numpy":        "data.pkl: found global numpy.",
		"untyped":      "data.pkl: found global torch._utils._rebuild_tensor_v3 at byte ",
		"sparse":       "data.pkl: found global torch._utils._rebuild_sparse_tensor at byte ",
		"quantized":    "data.pkl: found global torch._utils._rebuild_qtensor at byte ",
		"call":         "data.pkl: found global posix.system at byte ",
	} {
		t.Run(name, func(t *testing.T) {
			path := torchFolderOfTests + "refused-" + name + ".bin"
			_, err := OpenFile(path)
			require.ErrorContains(t, err, path+": "+want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
	refused, err := filepath.Glob(torchFolderOfTests + "refused-*.bin")
	require.NoError(t, err)
	require.Len(t, refused, 9, "all are in the table")
}

// program is a pickle of opcodes, without the last one.
func program(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case int:
			b = append(b, byte(p))
		case rune:
			b = append(b, byte(p))
		case string:
			b = append(b, p...)
		case []byte:
			b = append(b, p...)
		}
	}
	return b
}

func text(s string) []byte {
	return append(binary.LittleEndian.AppendUint32([]byte{opText4}, uint32(len(s))), s...)
}

func integer(n int64) []byte {
	return binary.LittleEndian.AppendUint64([]byte{opLong1, 8}, uint64(n))
}

func integersOf(list ...int64) []byte {
	b := []byte{opMark}
	for _, n := range list {
		b = append(b, integer(n)...)
	}
	return append(b, opTuple)
}

func globalOf(name string) []byte {
	at := strings.LastIndex(name, ".")
	return []byte("c" + name[:at] + "\n" + name[at+1:] + "\n")
}

// tensorOf is a program that leaves a tensor of a storage of that many floats, entry data/0.
func tensorOf(elements, offset int64, shape, stride []int64) []byte {
	return program(globalOf(rebuildTensor), opMark, opMark, text("storage"), globalOf("torch.FloatStorage"), text("0"), text("cpu"),
		integer(elements), opTuple, opPersistent, integer(offset), integersOf(shape...), integersOf(stride...), opFalse,
		globalOf(orderedDict),
		opEmptyTuple, opReduce, opTuple, opReduce)
}

// stateDict is a pickle of one tensor "a".
func stateDict(tensor []byte) []byte {
	return program(opProto, 2, opEmptyDict, text("a"), tensor, opSetItem, opStop)
}

// zipOf is an archive of stored entries, names and contents in turn.
func zipOf(parts ...any) []byte {
	var file, directory []byte
	for i := 0; i < len(parts); i += 2 {
		name, data := parts[i].(string), parts[i+1].([]byte)
		at := len(file)
		common := binary.LittleEndian.AppendUint32(make([]byte, 8), crc32.ChecksumIEEE(data)) // flags to time
		common = binary.LittleEndian.AppendUint32(common, uint32(len(data)))
		common = binary.LittleEndian.AppendUint32(common, uint32(len(data)))
		common = binary.LittleEndian.AppendUint16(common, uint16(len(name)))
		common = binary.LittleEndian.AppendUint16(common, 0)
		file = slices.Concat(file, []byte(zipLocal), []byte{20, 0}, common, []byte(name), data)
		directory = slices.Concat(directory, []byte(zipEntry), []byte{20, 0, 20, 0}, common, make([]byte, 10))
		directory = append(binary.LittleEndian.AppendUint32(directory, uint32(at)), name...)
	}
	end := append([]byte(zipEnd), 0, 0, 0, 0)
	end = binary.LittleEndian.AppendUint16(end, uint16(len(parts)/2))
	end = binary.LittleEndian.AppendUint16(end, uint16(len(parts)/2))
	end = binary.LittleEndian.AppendUint32(end, uint32(len(directory)))
	end = binary.LittleEndian.AppendUint32(end, uint32(len(file)))
	return slices.Concat(file, directory, end, []byte{0, 0})
}

// torchOf is a file of torch.save: a pickle and storage 0 of n bytes.
func torchOf(pickle []byte, n int) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i)
	}
	return zipOf("x/data.pkl", pickle, "x/byteorder", []byte("little"), "x/data/0", data)
}

func TestTorchFaultsNameFoundAndExpected(t *testing.T) {
	good := stateDict(tensorOf(6, 0, []int64{2, 3}, []int64{3, 1}))
	c := &Checkpoint{}
	tensors, err := c.torchTensors(torchOf(good, 24))
	require.NoError(t, err)
	require.Equal(t, []int64{2, 3}, tensors["a"].Shape)

	change := func(at int, b ...byte) []byte { // of the file's end
		file := torchOf(good, 24)
		copy(file[len(file)+at:], b)
		return file
	}
	twice := program(opProto, 2, opEmptyDict, opMark, text("a"), tensorOf(6, 0, nil, nil), text("a"), tensorOf(6, 0, nil, nil), opSetItems,
		opStop)
	for _, c := range []struct {
		name string
		file []byte
		want string
	}{
		{"empty", nil, `found "", expected a zip archive`},
		{"text", []byte("<!DOCTYPE html>"), `found "<!DOCTYP", expected a zip archive`},
		{"cut", torchOf(good, 24)[:100], "found none, expected the end record of a zip archive: the file is cut"},
		{"no pickle", zipOf("x/data/0", []byte("a")), "found an archive of 1 entries without it, expected FOLDER/data.pkl"},
		{"pickle in the root", zipOf("data.pkl", good), "found an archive of 1 entries without it"},
		{"byte order", zipOf("x/data.pkl", good, "x/byteorder", []byte("big")), `byteorder: found "big", expected little`},
		{"entry twice", zipOf("x/data.pkl", good, "x/data.pkl", good), "x/data.pkl: found the entry twice"},
		{"directory outside", change(-6, 0xff, 0xff, 0xff, 0x7f), "found a directory of "},
		{"too many entries", change(-12, 9), "in the archive's directory, expected an entry"},
		{"comment", change(-2, 7), "found 0 bytes after its end record, expected 7, the length"},
		{"deflated", func() []byte {
			file := torchOf(good, 24)
			file[bytes.Index(file, []byte(zipEntry))+10] = 8
			return file
		}(), "x/data.pkl: found compression method 8, expected 0, stored"},
		{"encrypted", func() []byte {
			file := torchOf(good, 24)
			file[bytes.Index(file, []byte(zipEntry))+8] = 1
			return file
		}(), "x/data.pkl: found an encrypted entry"},
		{"other local name", func() []byte {
			file := torchOf(good, 24)
			file[zipLocalBytes] = 'y'
			return file
		}(), `x/data.pkl: found the name "y/data.pkl" in the local header, expected the directory's`},
		{"storage missing", zipOf("x/data.pkl", good), "a: found no such entry, expected its storage, entry data/0"},
		{"storage too short", torchOf(good, 20), "a: found 20 bytes in entry data/0, expected 6 of F32, its storage's"},
		{"storage too long", torchOf(good, 28), "a: found 28 bytes in entry data/0"},
		{"beyond the storage", torchOf(stateDict(tensorOf(6, 1, []int64{2, 3}, []int64{3, 1})), 24),
			"a: found shape [2 3], strides [3 1], offset 1, expected elements within the 6 of its storage"},
		{"negative offset", torchOf(stateDict(tensorOf(6, -1, []int64{2}, []int64{1})), 24), "a: found shape [2], strides [1], offset -1"},
		{"negative stride", torchOf(stateDict(tensorOf(6, 5, []int64{2}, []int64{-1})), 24), "a: found shape [2], strides [-1]"},
		{"negative dimension", torchOf(stateDict(tensorOf(6, 0, []int64{-2}, []int64{1})), 24),
			"a: found shape [-2], expected dimensions >= 0"},
		{"overflow", torchOf(stateDict(tensorOf(6, 0, []int64{1 << 40, 1 << 40}, []int64{0, 0})), 24),
			"a: found shape [1099511627776 1099511627776]"},
		{"stride overflow", torchOf(stateDict(tensorOf(6, 0, []int64{3, 3}, []int64{1 << 62, 1 << 62})), 24),
			"a: found shape [3 3], strides"},
		{"repeated without end", torchOf(stateDict(tensorOf(6, 0, []int64{1 << 40}, []int64{0})), 24),
			"a: found 4398046511104 bytes of elements that do not lie in order, after 0, expected "},
		{"rank", torchOf(stateDict(tensorOf(6, 0, make([]int64, 9), make([]int64, 9))), 24), "a: found 9, expected 8 dimensions at most"},
		{"strides missing", torchOf(stateDict(tensorOf(6, 0, []int64{2, 3}, []int64{3})), 24), "found a tensor of other values at byte"},
		{"key twice", torchOf(twice, 24), `data.pkl: found the key "a" twice at byte`},
		{"end missing", torchOf(good[:len(good)-1], 24), "data.pkl: found the end of the pickle at byte"},
		{"more after the end", torchOf(append(slices.Clone(good), 'x'), 24), "data.pkl: found 1 bytes after the end at byte"},
		{"two values", torchOf(program(opNone, opEmptyDict, opStop), 24),
			"data.pkl: found another value at byte 2, expected one dict of tensors"},
		{"a value that is no tensor", torchOf(stateDict(integer(3)), 24), `data.pkl: found an integer for "a" at byte`},
		{"key of another kind", torchOf(program(opEmptyDict, integer(1), opNone, opSetItem, opStop), 24),
			"data.pkl: found an integer as a key at byte"},
		{"protocol", torchOf(program(opProto, 6), 24), "data.pkl: found protocol 6 at byte 0, expected 2 to 5"},
		{"text beyond the end", torchOf(program(opText4, "\xff\xff\xff\x7f"), 24),
			"data.pkl: found the end of the pickle at byte 0, expected 2147483647 more bytes"},
		{"long text beyond the end", torchOf(program(opText8, "\xff\xff\xff\xff\xff\xff\xff\xff"), 24),
			"expected 18446744073709551615 more bytes"},
		{"frame beyond the end", torchOf(program(opFrame, "\xff\xff\xff\xff\xff\xff\xff\xff"), 24),
			"data.pkl: found a frame of 18446744073709551615 bytes"},
		{"value number", torchOf(program(opNone, opPut4, "\xff\xff\xff\xff"), 24),
			"data.pkl: found value number 4294967295 at byte 1, expected 0 at most"},
		{"unknown value", torchOf(program(opGet1, 0), 24), "data.pkl: found value number 0 at byte 0, expected one below 0"},
		{"call of a text", torchOf(program(text("a"), opEmptyTuple, opReduce), 24), "data.pkl: found a call of a text at byte"},
		{"call with arguments", torchOf(program(globalOf(orderedDict), text("a"), opTuple1, opReduce), 24),
			"found a call of collections.OrderedDict with 1 arguments"},
		{"attributes of a tensor", torchOf(stateDict(program(tensorOf(6, 0, nil, nil), opEmptyDict, opBuild)), 24),
			"data.pkl: found attributes of a tensor at byte"},
		{"storage of another class", torchOf(program(opMark, text("storage"), globalOf(orderedDict), text("0"), text("cpu"), integer(1),
			opTuple, opPersistent), 24), "found another persistent id"},
		{"name of a module in a text", torchOf(program(text("os"), text("system"), opStackGlobal), 24),
			"data.pkl: found global os.system at byte 18"},
		{"empty stack", torchOf(program(opMark, opTuple1), 24), "data.pkl: found an empty stack at byte 1"},
		{"mark missing", torchOf(program(opTuple), 24), "data.pkl: found none at byte 0, expected a mark"},
		{"too many opcodes", torchOf(bytes.Repeat([]byte{opNone}, maxPickleSteps+1), 24),
			"data.pkl: found more opcodes, expected 524288 at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := new(Checkpoint).torchTensors(c.file)
			var format *FormatError
			require.ErrorAs(t, err, &format)
			require.NotContains(t, err.Error(), "\n")
			require.Contains(t, err.Error(), c.want)
		})
	}
}

// TestEveryOpcodeThatIsNoTensorsIsRefused by its name, before it reads anything.
func TestEveryOpcodeThatIsNoTensorsIsRefused(t *testing.T) {
	names := strings.Split(otherOps, " ")
	require.Zero(t, len(names)%2)
	known := []byte{
		opMark, opEmptyTuple, opStop, opInt4, opInt1, opInt2, opNone, opPersistent, opReduce, opText4, opBuild, opGlobal, opGet1, opGet4,
		opPut1, opPut4, opSetItem, opTuple, opSetItems, opEmptyDict, opProto, opTuple1, opTuple2, opTuple3, opTrue, opFalse, opLong1,
		opText1, opText8, opStackGlobal, opMemoize, opFrame,
	}
	require.Len(t, names, 2*(68-len(known)), "pickletools.opcodes has 68")
	for op := range 256 {
		_, err := readPickle([]byte{byte(op)})
		require.Error(t, err)
		refused := strings.Contains(err.Error(), "found opcode")
		require.Equal(t, !slices.Contains(known, byte(op)), refused, "%#x: %v", op, err)
		if at := slices.Index(names, string([]byte{byte(op)})); at >= 0 {
			require.ErrorContains(t, err, "found opcode "+names[at+1]+" at byte 0, expected those of a state dict of tensors")
		}
	}
}

// TestTorchFilesAllocateLittle: a pickle of the costliest opcodes, and a directory of empty entries, take no more than the file's size
// and 64 MiB.
func TestTorchFilesAllocateLittle(t *testing.T) {
	dicts := bytes.Repeat([]byte{opEmptyDict}, maxPickleSteps)
	memoized := bytes.Repeat([]byte{opEmptyDict, opMemoize}, maxPickleSteps/2)
	tuples := append([]byte{opNone}, bytes.Repeat([]byte{opTuple1}, maxPickleSteps)...)
	marks := bytes.Repeat([]byte{opMark}, maxPickleSteps)
	globals := bytes.Repeat(globalOf(orderedDict), maxPickleSteps)
	keys := []byte{opEmptyDict, opMark}
	for i := range maxPickleSteps / 2 {
		keys = append(keys, opText1, 6)
		keys = append(fmt.Appendf(keys, "%06x", i), opNone)
	}
	keys = append(keys[:len(keys)-9], opSetItems) // within the number of opcodes
	for name, file := range map[string][]byte{
		"dicts": torchOf(dicts, 0), "memoized": torchOf(memoized, 0), "tuples": torchOf(tuples, 0), "marks": torchOf(marks, 0),
		"globals": torchOf(globals, 0), "keys": torchOf(keys, 0),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := new(Checkpoint).torchTensors(file)
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		require.LessOrEqual(t, after.TotalAlloc-before.TotalAlloc, uint64(len(file)+64<<20), name)
	}
}

func TestOpenReadsTorchFilesWhereThereAreNoOthers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "pytorch_model.bin", torchOf(stateDict(tensorOf(6, 0, []int64{6}, []int64{1})), 24))
	require.True(t, Exist(dir))
	require.Equal(t, "pytorch", Format(dir))
	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, c.Names())
	require.EqualValues(t, 24, c.Bytes())
	require.Len(t, c.Stamps(), 1)
	require.NoError(t, c.Release())
	require.NoError(t, c.Close())

	write(t, dir, singleFile, encode("{"+entry("b", "U8", "[3]", 0, 3)+"}", 3))
	require.Equal(t, "safetensors", Format(dir))
	c, err = Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"b"}, c.Names())
	require.NoError(t, c.Close())

	shards := t.TempDir()
	write(t, shards, "one.bin", torchOf(stateDict(tensorOf(6, 0, []int64{6}, []int64{1})), 24))
	write(t, shards, torchIndexFile, []byte(`{"weight_map":{"a":"one.bin"}}`))
	require.Equal(t, "pytorch", Format(shards))
	c, err = Open(shards)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, c.Names())
	require.NoError(t, c.Close())
	write(t, shards, torchIndexFile, []byte(`{"weight_map":{"c":"one.bin"}}`))
	_, err = Open(shards)
	require.ErrorContains(t, err, "one.bin: c: found no such tensor, expected one, by pytorch_model.bin.index.json")
}

// FuzzTorch: any bytes give a one-line error, or tensors that can be read whole.
func FuzzTorch(f *testing.F) {
	files, err := filepath.Glob(torchFolderOfTests + "*.bin")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range files {
		file, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(file)
	}
	f.Add(torchOf(stateDict(tensorOf(6, 0, []int64{3, 2}, []int64{1, 3})), 24))
	f.Fuzz(func(t *testing.T, file []byte) {
		c := &Checkpoint{}
		defer c.Close() //nolint:errcheck // nothing was written
		tensors, err := c.torchTensors(file)
		checkFuzzed(t, tensors, err)
	})
}

// FuzzPickle is FuzzTorch for the pickle alone, since few changes of a file leave its archive whole.
func FuzzPickle(f *testing.F) {
	files, err := filepath.Glob(torchFolderOfTests + "*.bin")
	if err != nil || len(files) == 0 {
		f.Fatal("no seeds", err)
	}
	for _, path := range files {
		file, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if entries, err := zipEntries(file); err == nil {
			folder, _ := torchFolder(entries)
			f.Add(entries[folder+pickleEntry])
		}
	}
	f.Fuzz(func(t *testing.T, pickle []byte) {
		c := &Checkpoint{}
		defer c.Close() //nolint:errcheck // nothing was written
		tensors, err := c.torchTensors(torchOf(pickle, 96))
		checkFuzzed(t, tensors, err)
	})
}

func checkFuzzed(t *testing.T, tensors map[string]Tensor, err error) {
	if err != nil {
		var format *FormatError
		if !errors.As(err, &format) || strings.Contains(err.Error(), "\n") {
			t.Fatalf("not a one-line FormatError: %q", err)
		}
		return
	}
	for name, x := range tensors {
		if x.Name != name || checkSize(x, int64(len(x.Data))) != nil {
			t.Fatalf("%q: %d bytes of shape %v, type %s", name, len(x.Data), x.Shape, x.Type)
		}
		bytes.Count(x.Data, []byte{1}) // all of it is there
	}
}
