package compute_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/numerics"
)

func numericsOf(t *testing.T, o compute.Options) numerics.Ingredients {
	t.Helper()
	m := open(t, o)
	defer m.Close()
	return m.Numerics()
}

func plan(t *testing.T, text string) model.WeightPlan {
	t.Helper()
	w, err := model.ParseWeights(text)
	require.NoError(t, err)
	return w
}

// TestEqualSettingsHaveEqualDigests whatever makes no difference to the bits.
func TestEqualSettingsHaveEqualDigests(t *testing.T) {
	first := numericsOf(t, compute.Options{Dir: fixture})
	require.Equal(t, first, numericsOf(t, compute.Options{Dir: copied(t)}), "another folder")
	require.Equal(t, first, numericsOf(t, compute.Options{Dir: fixture, Device: device.Options{Threads: 1}}), "one thread")
	large, err := compute.Open(compute.Options{Dir: fixture, MaxRows: 300, MaxOutputs: 8, MaxSequences: 4})
	require.NoError(t, err)
	defer large.Close()
	require.Equal(t, first, large.Numerics(), "larger steps: the probe is whole, among other rows")
}

// TestWhatChangesTheBitsChangesTheDigest changes one setting of a model at a time.
func TestWhatChangesTheBitsChangesTheDigest(t *testing.T) {
	digests := map[string]string{}
	for name, o := range map[string]compute.Options{
		"bf16":         {Dir: fixture},
		"int8":         {Dir: fixture, Weights: plan(t, "int8")},
		"one op apart": {Dir: fixture, Weights: plan(t, "bf16+mlp.down=int8")},
		"KV int8":      {Dir: fixture, KV: model.KVInt8},
		"reference":    {Dir: fixture, Device: device.Options{Backend: "ref"}},
		"two ranks":    {Dir: fixture, Device: device.Options{Ranks: 2, Threads: 2}},
		"portable":     {Dir: fixture, Device: device.Options{ISA: "portable"}},
		"another eps":  {Dir: edited(t, "rms_norm_eps", 0.001)},
		"GGUF":         {Dir: "../testdata/quantized/gguf/llama-gqa.gguf"},
		"GPTQ":         {Dir: "../testdata/quantized/gptq-4"},
		"AWQ":          {Dir: "../testdata/quantized/awq"},
	} {
		n := numericsOf(t, o)
		digest := n.Digest()
		require.NotContains(t, digests, digest, name)
		digests[digest] = name
	}
}

// edited is a copy of the fixture with another value in its config.json.
func edited(t *testing.T, key string, value any) string {
	t.Helper()
	path := filepath.Join(copied(t), "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var config map[string]any
	require.NoError(t, json.Unmarshal(text, &config))
	require.Contains(t, config, key)
	config[key] = value
	text, err = json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	return filepath.Dir(path)
}

// TestTheProbeTakesNothingOfTheCache: every slab can be mapped after it.
func TestTheProbeTakesNothingOfTheCache(t *testing.T) {
	m := open(t, compute.Options{Dir: fixture})
	expected := logits(t, m)
	var regions []compute.Region
	for slab := range int32(m.Slabs()) {
		r, err := m.NewRegion(m.KV().SlabTokens)
		require.NoError(t, err)
		require.NoError(t, r.Append([]int32{slab}))
		regions = append(regions, r)
	}
	for _, r := range regions {
		r.Close()
	}
	require.Equal(t, expected, logits(t, m))
}

// TestADeviceThatComesBackWithOtherBitsIsRefused: sequences would continue on it.
func TestADeviceThatComesBackWithOtherBitsIsRefused(t *testing.T) {
	m := open(t, compute.Options{Dir: fixture})
	require.NoError(t, m.Reload())
	m.PretendProbe("of another machine")
	require.ErrorIs(t, m.Reload(), device.ErrDevice)
}

// TestInstructionSetsOfOneClassHaveEqualDigests: the probe's bits agree wherever the kernels
// say that they do, and the digest differs wherever they do not.
func TestInstructionSetsOfOneClassHaveEqualDigests(t *testing.T) {
	first := open(t, compute.Options{Dir: fixture})
	info, err := first.Device.Info()
	require.NoError(t, err)
	for _, types := range []struct {
		weights string
		kv      model.KVType
	}{{"bf16", model.KVAuto}, {"int8", model.KVInt8}, {"int4", model.KVInt4}, {"fp8", model.KVAuto}, {"nf4", model.KVBF16}} {
		classes := map[string]numerics.Ingredients{}
		digests := map[string]string{}
		fused := map[string]bool{} // digests of the vector sets, which are one class
		for _, isa := range info.ISAs {
			n := numericsOf(t, compute.Options{Dir: fixture, Weights: plan(t, types.weights), KV: types.kv,
				Device: device.Options{ISA: isa}})
			if isa != "portable" && !strings.Contains(n.Class, "amx") {
				fused[n.Digest()] = true
			}
			if same, ok := classes[n.Class]; ok {
				require.Equal(t, same, n, "%s, %v", isa, types)
				continue
			}
			require.NotContains(t, digests, n.Digest(), "%s, %v", isa, types)
			classes[n.Class], digests[n.Digest()] = n, isa
		}
		require.LessOrEqual(t, len(fused), 1, "avx2, avx512 and avx512-bf16, %v", types)
	}
}

// TestABitOfAQuantizedCheckpointChangesTheDigest, whatever the format.
func TestABitOfAQuantizedCheckpointChangesTheDigest(t *testing.T) {
	const folder = "../testdata/quantized/"
	for _, name := range []string{"gguf/llama-gqa.gguf", "gptq-4/model.safetensors", "gptq-8/model.safetensors", "awq/model.safetensors"} {
		dir := filepath.Join(t.TempDir(), "copy")
		require.NoError(t, os.CopyFS(dir, os.DirFS(folder+filepath.Dir(name))))
		path := filepath.Join(dir, filepath.Base(name))
		o := compute.Options{Dir: dir}
		if filepath.Ext(name) == ".gguf" {
			o.Dir = path
		}
		before := numericsOf(t, o)
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		file[len(file)/2] ^= 1
		require.NoError(t, os.WriteFile(path, file, 0o600))
		after := numericsOf(t, o)
		require.NotEqual(t, before.Weights, after.Weights, name)
		require.Equal(t, before.Program, after.Program, name)
	}
}

// TestHowTensorsAreSpreadOverFilesMakesNoDifference renames a shard.
func TestHowTensorsAreSpreadOverFilesMakesNoDifference(t *testing.T) {
	const index, from, to = "model.safetensors.index.json", "model-00001-of-", "part-one-of-"
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS("../testdata/models/llama-sharded")))
	before := numericsOf(t, compute.Options{Dir: dir})
	shards, err := filepath.Glob(filepath.Join(dir, from+"*"))
	require.NoError(t, err)
	require.Len(t, shards, 1)
	require.NoError(t, os.Rename(shards[0], strings.ReplaceAll(shards[0], from, to)))
	text, err := os.ReadFile(filepath.Join(dir, index))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, index), []byte(strings.ReplaceAll(string(text), from, to)), 0o600))
	require.Equal(t, before, numericsOf(t, compute.Options{Dir: dir}))
}
