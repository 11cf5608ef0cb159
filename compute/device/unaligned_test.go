package device_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/family/fixture"
	"github.com/millrace/millrace/compute/weights"
)

// TestUnalignedWeightsGiveTheSameBits: the safetensors format promises no
// alignment. A space more in the header moves every tensor to an odd address.
func TestUnalignedWeightsGiveTheSameBits(t *testing.T) {
	for _, name := range []string{"llama-bias", "llama-f32", "llama-f16"} {
		m, err := fixture.Open(filepath.Join("../../testdata/models", name))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Weights.Close()) })
		odd := unaligned(t, filepath.Join(m.Dir, "model.safetensors"))
		tokens := m.Expected.Tokens()
		for _, backend := range backends(t) {
			for _, isa := range isas(t, backend) {
				t.Run(filepath.Join(name, backend, isa), func(t *testing.T) {
					want := open(t, backend, isa, m.Program, m.Weights, len(tokens)).run(t, tokens)
					got := open(t, backend, isa, m.Program, odd, len(tokens)).run(t, tokens)
					for row := range want {
						requireSameBits(t, want[row], got[row], row)
					}
				})
			}
		}
	}
}

// unaligned opens a copy of a safetensors file with one space after the header.
func unaligned(t *testing.T, path string) *weights.Checkpoint {
	t.Helper()
	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(raw)
	out := binary.LittleEndian.AppendUint64(nil, n+1)
	out = append(out, raw[8:8+n]...)
	out = append(append(out, ' '), raw[8+n:]...)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), out, 0o600))
	w, err := weights.Open(dir)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}
