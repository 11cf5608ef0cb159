package tier

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASlotHasWhatWasWrittenLast(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	f, err := Open(dir, 1000, 300)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, 3, f.Slots())
	info, err := f.file.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.EqualValues(t, 900, info.Size())
	require.GreaterOrEqual(t, info.Sys().(*syscall.Stat_t).Blocks*512, int64(900), "the room is set aside")
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names, "it has no name")
	got := make([]byte, 300)
	require.ErrorIs(t, f.Read(1, got), ErrDamaged, "nothing was written")
	for i := range byte(5) {
		for slot := range int32(3) {
			require.NoError(t, f.Write(slot, bytes.Repeat([]byte{i, byte(slot)}, 150)))
		}
	}
	for slot := range int32(3) {
		require.NoError(t, f.Read(slot, got))
		require.Equal(t, bytes.Repeat([]byte{4, byte(slot)}, 150), got)
	}
}

func TestAFlippedBitIsFound(t *testing.T) {
	f, err := Open(t.TempDir(), 4096, 64)
	require.NoError(t, err)
	defer f.Close()
	data := bytes.Repeat([]byte{7}, 64)
	for slot := range int32(2) {
		require.NoError(t, f.Write(slot, data))
	}
	_, err = f.file.WriteAt([]byte{6}, 64+40)
	require.NoError(t, err)
	require.NoError(t, f.Read(0, data))
	require.ErrorIs(t, f.Read(1, data), ErrDamaged)
}

func TestAFileThatDoesNotFitIsAnError(t *testing.T) {
	dir := t.TempDir()
	_, err := Open(dir, 63, 64)
	require.ErrorContains(t, err, "63 bytes hold no slab of 64 bytes")
	_, err = Open(dir, 1<<60, 64)
	require.ErrorContains(t, err, "bytes in "+dir)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, names)
}
