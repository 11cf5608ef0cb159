package weights

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, dir, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
}

func TestOpenReadsTheDemoModel(t *testing.T) {
	c, err := Open("../../models/tiny-chat")
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	embed, ok := c.Tensor("model.embed_tokens.weight")
	require.True(t, ok)
	require.Equal(t, BF16, embed.DType)
	require.Equal(t, []int64{4096, 256}, embed.Shape)
	require.Len(t, embed.Data, 4096*256*2)
	require.EqualValues(t, 7344384*2, c.Bytes(), "7,344,384 parameters in bf16")

	before := string(embed.Data[:64])
	require.NoError(t, c.Release())
	require.Equal(t, before, string(embed.Data[:64]), "the pages come back from the file")
}

func TestOpenReadsShardsByTheirIndex(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "one.safetensors", encode("{"+entry("a", "U8", "[3]", 0, 3)+"}", 3))
	write(t, dir, "two.safetensors", encode("{"+entry("b", "F32", "[1]", 0, 4)+","+entry("c", "F16", "[1]", 4, 6)+"}", 6))
	write(t, dir, indexFile, []byte(`{"metadata":{"total_size":9},
		"weight_map":{"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"}}`))

	c, err := Open(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "c"}, c.Names())
	require.EqualValues(t, 9, c.Bytes())
	tensor, ok := c.Tensor("c")
	require.True(t, ok)
	require.Equal(t, []byte{4, 5}, tensor.Data)
	require.Equal(t, filepath.Join(dir, "two.safetensors"), tensor.File)
	_, ok = c.Tensor("d")
	require.False(t, ok)
	require.NoError(t, c.Close())
	require.NoError(t, c.Close(), "closing twice is harmless")
}

// lfsPointer is what git leaves of a large file without its LFS extension.
const lfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4665f2d7\nsize 2336927755\n"

func TestOpenFaultsNameTheFile(t *testing.T) {
	index := func(body string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			write(t, dir, "one.safetensors", encode("{"+entry("a", "U8", "[3]", 0, 3)+"}", 3))
			write(t, dir, indexFile, []byte(body))
		}
	}
	for _, c := range []struct {
		name string
		make func(*testing.T, string)
		want string // %[1]s is the directory
	}{
		{"no weights", func(*testing.T, string) {},
			"%[1]s: found no weights, expected model.safetensors, model.safetensors.index.json, pytorch_model.bin or pytorch_model.bin.index.json"},
		{"GGUF in a folder", func(t *testing.T, dir string) { write(t, dir, "a.gguf", nil) },
			"%[1]s: found no weights but a.gguf: the path of a GGUF file is a model by itself, expected model.safetensors,"},
		{"checkpoint of Llama's own format", func(t *testing.T, dir string) { write(t, dir, "consolidated.00.pth", nil) },
			"%[1]s: found no weights but consolidated.00.pth: save_pretrained of transformers writes safetensors, expected"},
		{"empty file of torch", func(t *testing.T, dir string) { write(t, dir, torchFile, nil) },
			"%[1]s/pytorch_model.bin: found 0 bytes, expected 8 bytes of header length or more"},
		{"Git LFS pointer as file of torch", func(t *testing.T, dir string) { write(t, dir, torchFile, []byte(lfsPointer)) },
			"%[1]s/pytorch_model.bin: found a Git LFS pointer"},
		{"parent directory in torch's index", func(t *testing.T, dir string) {
			write(t, dir, torchIndexFile, []byte(`{"weight_map":{"a":"../one.bin"}}`))
		}, `%[1]s/pytorch_model.bin.index.json: a: found shard "../one.bin"`},
		{"page of a proxy", func(t *testing.T, dir string) { write(t, dir, singleFile, []byte("<!DOCTYPE html><html>")) },
			`%[1]s/model.safetensors: header: found the text "<!DOCTYP", expected a length of 104857600 bytes at most`},
		{"empty file", func(t *testing.T, dir string) { write(t, dir, singleFile, nil) },
			"%[1]s/model.safetensors: found 0 bytes, expected 8 bytes of header length or more"},
		{"directory", func(t *testing.T, dir string) { require.NoError(t, os.Mkdir(filepath.Join(dir, singleFile), 0o700)) },
			"%[1]s/model.safetensors: found a folder, expected a regular file"},
		{"FIFO", func(t *testing.T, dir string) { require.NoError(t, unix.Mkfifo(filepath.Join(dir, singleFile), 0o600)) },
			"%[1]s/model.safetensors: found a FIFO, expected a regular file"},
		{"FIFO as index", func(t *testing.T, dir string) { require.NoError(t, unix.Mkfifo(filepath.Join(dir, indexFile), 0o600)) },
			"%[1]s/model.safetensors.index.json: found a FIFO, expected a regular file"},
		{"Git LFS pointer", func(t *testing.T, dir string) { write(t, dir, singleFile, []byte(lfsPointer)) },
			"%[1]s/model.safetensors: found a Git LFS pointer, expected the file that it stands for: \"git lfs pull\""},
		{"Git LFS pointer as shard", func(t *testing.T, dir string) {
			write(t, dir, indexFile, []byte(`{"weight_map":{"a":"one.safetensors"}}`))
			write(t, dir, "one.safetensors", []byte(lfsPointer))
		}, "%[1]s/one.safetensors: found a Git LFS pointer"},
		{"Git LFS pointer as index", index(lfsPointer), "%[1]s/model.safetensors.index.json: found a Git LFS pointer"},
		{"bits as text", func(t *testing.T, dir string) {
			write(t, dir, singleFile, encode("{"+entry("a", "U8", "[3]", 0, 3)+"}", 3))
			write(t, dir, configFile, []byte(`{"quantization_config": {"quant_method": "gptq", "bits": "4"}}`))
		}, "%[1]s/config.json: quantization_config: found a string in bits, expected an object with quant_method"},
		{"index of a list", index(`[]`), "%[1]s/model.safetensors.index.json: found an array, expected"},
		{"truncated file", func(t *testing.T, dir string) {
			write(t, dir, singleFile, encode("{"+entry("a", "U8", "[3]", 0, 3)+"}", 2))
		}, "%[1]s/model.safetensors: found 2 bytes after the header, expected 3, the end of the last tensor: the file is cut, as by an interrupted download"},
		{"index no JSON", index(`{`), "%[1]s/model.safetensors.index.json: found the end in the middle of a value, expected"},
		{"index empty", index(`{}`), "%[1]s/model.safetensors.index.json: weight_map: found no entry"},
		{"missing shard", index(`{"weight_map":{"a":"two.safetensors"}}`),
			"%[1]s/model.safetensors.index.json: a: found no file two.safetensors"},
		{"missing tensor", index(`{"weight_map":{"a":"one.safetensors","b":"one.safetensors"}}`),
			"%[1]s/one.safetensors: b: found no such tensor, expected one, by model.safetensors.index.json"},
		{"parent directory", index(`{"weight_map":{"a":"../one.safetensors"}}`), `a: found shard "../one.safetensors"`},
		{"absolute path", index(`{"weight_map":{"a":"/etc/passwd"}}`), `a: found shard "/etc/passwd"`},
		{"dots", index(`{"weight_map":{"a":".."}}`), `a: found shard ".."`},
		{"no name", index(`{"weight_map":{"a":""}}`), `a: found shard ""`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			c.make(t, dir)
			_, err := Open(dir)
			require.Error(t, err)
			want := c.want
			if strings.Contains(want, "%") {
				want = fmt.Sprintf(want, dir)
			}
			require.Contains(t, err.Error(), want)
			require.NotContains(t, err.Error(), "\n")
		})
	}
}

func TestTensorsOfAFolderHaveItsName(t *testing.T) {
	dir := t.TempDir()
	file, err := os.ReadFile("../../testdata/encoders/distilbert-dense/2_Dense/model.safetensors")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "2_Dense"), 0o700))
	write(t, dir, "model.safetensors", file)
	c, err := Open(dir)
	require.NoError(t, err)
	defer c.Close() //nolint:errcheck // nothing was written
	require.ErrorContains(t, c.Include("2_Dense"), "2_Dense: found no weights, expected model.safetensors or pytorch_model.bin")
	write(t, filepath.Join(dir, "2_Dense"), "model.safetensors", file)
	require.NoError(t, c.Include("2_Dense"))
	require.Equal(t, []string{"2_Dense/linear.bias", "2_Dense/linear.weight", "linear.bias", "linear.weight"}, c.Names())
}
