package compute_test

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/model"
)

const fixture = "../testdata/models/llama-gqa"

// copied is a directory with the fixture's files: what is kept beside a model must not
// land in the checkout.
func copied(t *testing.T) string {
	t.Helper()
	return copyOf(t, fixture)
}

func copyOf(t *testing.T, folder string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	require.NoError(t, os.CopyFS(dir, os.DirFS(folder)))
	return dir
}

func open(t *testing.T, o compute.Options) *compute.Model {
	t.Helper()
	o.MaxRows, o.MaxOutputs, o.MaxSequences = 32, 4, 1
	m, err := compute.Open(o)
	require.NoError(t, err)
	t.Cleanup(m.Close)
	return m
}

func logits(t *testing.T, m *compute.Model) []float32 {
	t.Helper()
	r, err := m.NewRegion(16)
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, r.Append([]int32{0}))
	l, err := m.Run([]compute.Rows{{Region: r, Tokens: []int32{1, 2, 3, 4, 5}, Output: true}})
	require.NoError(t, err)
	return append([]float32(nil), l.Row(0)...)
}

// TestPackedWeightsAreMapped: the second start maps what the first has packed, and
// answers with the same bits, until something that the weights depend on changes.
func TestPackedWeightsAreMapped(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	int8Weights, err := model.ParseWeights("int8")
	require.NoError(t, err)
	dir := copied(t)
	o := compute.Options{Dir: dir, Weights: int8Weights}
	first := open(t, o)
	require.False(t, first.FromPacked())
	expected := logits(t, first)
	path, err := first.StorePacked(context.Background())
	require.NoError(t, err)
	require.Equal(t, filepath.Join(dir, ".millrace"), filepath.Dir(path))

	second := open(t, o)
	require.True(t, second.FromPacked())
	require.Equal(t, expected, logits(t, second))
	require.NoError(t, second.Reload())
	require.True(t, second.FromPacked())
	require.Equal(t, expected, logits(t, second))
	again, err := second.StorePacked(context.Background())
	require.NoError(t, err)
	require.Empty(t, again, "it is there")

	off := o
	off.NoPacked = true
	require.False(t, open(t, off).FromPacked())
	require.False(t, open(t, compute.Options{Dir: dir}).FromPacked(), "other weights")

	// Touched, but the same content: the packed weights still fit.
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "model.safetensors"), later, later))
	touched := open(t, o)
	require.True(t, touched.FromPacked())
	require.Equal(t, first.Numerics(), touched.Numerics())
}

// TestLayersOfAQuantizedFileExistOnce: as packed weights. What they are packed from is made for that, and not at all where they are mapped.
func TestLayersOfAQuantizedFileExistOnce(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	compute.SetSettled(t, 0)
	for _, name := range []string{"awq", "gptq-4-act", "fp8", "fp8-128", "bnb-nf4", "bnb-int8", "ct-nvfp4", "ct-mxfp4", "bitnet", "bitnet-online"} {
		t.Run(name, func(t *testing.T) {
			dir := copyOf(t, "../testdata/quantized/"+name)
			first := open(t, compute.Options{Dir: dir})
			require.Zero(t, first.Unpacked())
			expected := logits(t, first)
			require.NoError(t, first.Reload())
			require.Zero(t, first.Unpacked())
			require.Equal(t, expected, logits(t, first))
			_, err := first.StorePacked(context.Background())
			require.NoError(t, err)
			second := open(t, compute.Options{Dir: dir})
			require.True(t, second.FromPacked())
			require.False(t, second.ReadTensors())
			require.Zero(t, second.Unpacked())
			require.Equal(t, expected, logits(t, second))

			ref := open(t, compute.Options{Dir: dir, Device: device.Options{Backend: "ref"}})
			require.Positive(t, ref.Unpacked(), "ref reads them in each step")
			require.InDeltaSlice(t, expected, logits(t, ref), 0.5, "of logits up to 10")
		})
	}
}

// TestPackedWeightsOfAnotherLayoutArePackedAnew: the name of the layout is the first
// that the weights have.
func TestPackedWeightsOfAnotherLayoutArePackedAnew(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	o := compute.Options{Dir: copied(t), PackedDir: t.TempDir()}
	first := open(t, o)
	path, err := first.StorePacked(context.Background())
	require.NoError(t, err)
	require.Equal(t, o.PackedDir, filepath.Dir(path))
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte("abacus\x00"), 2<<20)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	second := open(t, o)
	require.False(t, second.FromPacked())
	require.Equal(t, logits(t, first), logits(t, second))
}

func TestSmallWeightsAreNotKept(t *testing.T) {
	m := open(t, compute.Options{Dir: copied(t)})
	path, err := m.StorePacked(context.Background())
	require.NoError(t, err)
	require.Empty(t, path)
}

// nudge changes the first weight by one unit in the last place: in place, or in a copy that
// takes the file's name. Size and time stay.
func nudge(t *testing.T, path string, inPlace bool) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	file, err := os.ReadFile(path)
	require.NoError(t, err)
	at := 8 + int(binary.LittleEndian.Uint64(file))
	file[at] ^= 1
	to := path
	if !inPlace {
		to = path + ".new"
	}
	require.NoError(t, os.WriteFile(to, file, 0o600))
	require.NoError(t, os.Rename(to, path))
	require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	after, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, []any{info.Size(), info.ModTime()}, []any{after.Size(), after.ModTime()})
}

// TestAWeightThatChangedIsNeverServedFromAnEarlierStart: neither its packed form nor the hash
// of its content is taken from a file of the same size and time.
func TestAWeightThatChangedIsNeverServedFromAnEarlierStart(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	compute.SetSettled(t, 0)
	for name, inPlace := range map[string]bool{"another file": false, "in place": true} {
		t.Run(name, func(t *testing.T) {
			dir := copied(t)
			first := open(t, compute.Options{Dir: dir})
			require.True(t, first.ReadTensors())
			_, err := first.StorePacked(context.Background())
			require.NoError(t, err)
			before := first.Numerics()
			first.Close()

			second := open(t, compute.Options{Dir: dir})
			require.True(t, second.FromPacked())
			require.False(t, second.ReadTensors(), "the hash was kept")
			require.Equal(t, before, second.Numerics())
			second.Close()

			nudge(t, filepath.Join(dir, "model.safetensors"), inPlace)
			third := open(t, compute.Options{Dir: dir})
			require.True(t, third.ReadTensors())
			require.False(t, third.FromPacked(), "packed of other weights")
			after := third.Numerics()
			require.NotEqual(t, before.Weights, after.Weights)
			require.NotEqual(t, before.Digest(), after.Digest())
			fresh := open(t, compute.Options{Dir: dir, NoPacked: true})
			require.Equal(t, fresh.Numerics(), after)
			require.Equal(t, logits(t, fresh), logits(t, third))
		})
	}
}

// TestTheHashOfFilesThatMayStillChangeIsNotKept: a later change could leave the same times.
func TestTheHashOfFilesThatMayStillChangeIsNotKept(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	compute.SetSettled(t, time.Hour)
	dir := copied(t)
	first := open(t, compute.Options{Dir: dir})
	_, err := first.StorePacked(context.Background())
	require.NoError(t, err)
	second := open(t, compute.Options{Dir: dir})
	require.True(t, second.ReadTensors())
	require.True(t, second.FromPacked())
}

// TestAFileThatIsReplacedWhileItIsMappedKeepsNothing: the hash is of the file that was opened,
// not of the one that has its name when the hash is kept.
func TestAFileThatIsReplacedWhileItIsMappedKeepsNothing(t *testing.T) {
	compute.SetLeastPacked(t, 0)
	compute.SetSettled(t, 0)
	dir := copied(t)
	first := open(t, compute.Options{Dir: dir})
	nudge(t, filepath.Join(dir, "model.safetensors"), false)
	_, err := first.StorePacked(context.Background())
	require.NoError(t, err)
	second := open(t, compute.Options{Dir: dir})
	require.True(t, second.ReadTensors())
	require.False(t, second.FromPacked())
	require.NotEqual(t, first.Numerics().Weights, second.Numerics().Weights)
}
