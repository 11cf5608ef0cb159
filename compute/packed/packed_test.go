package packed_test

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/packed"
)

func goOn() error { return nil }

// spans of odd numbers of lines, together more than the piece that is written at a time.
func spans() (all [][]byte, joined []byte) {
	random := rand.NewChaCha8([32]byte{1})
	for _, n := range []int{64, 3 << 20, 128, 1<<20 + 64} {
		b := make([]byte, n)
		_, _ = random.Read(b) // never fails
		all = append(all, b)
		joined = append(joined, b...)
	}
	return all, joined
}

func TestWhatIsWrittenIsMapped(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "made")
	key := packed.Key{1, 2, 3}
	weights, joined := spans()
	require.NoError(t, packed.Write(folder, "model-int8", key, weights, goOn))
	for name, room := range map[string]uint64{"no room for a copy": 0, "room for a copy": 1 << 30} {
		f, err := packed.Open(packed.Path(folder, "model-int8", key), key, room)
		require.NoError(t, err, name)
		require.True(t, bytes.Equal(joined, f.Bytes()), name)
		if room == 0 {
			require.False(t, f.Copied())
		}
		require.NoError(t, f.Close())
	}
}

func TestALaterKeyReplacesAnEarlierOne(t *testing.T) {
	folder := t.TempDir()
	weights, _ := spans()
	older, newer := packed.Key{1}, packed.Key{2}
	require.NoError(t, packed.Write(folder, "model-int4", older, weights, goOn))
	require.NoError(t, packed.Write(folder, "model-int4-64", older, weights, goOn)) // another name, though it begins alike
	require.NoError(t, packed.Write(folder, "model-int4", newer, weights, goOn))
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.FileExists(t, packed.Path(folder, "model-int4-64", older))
	require.FileExists(t, packed.Path(folder, "model-int4", newer))
}

func TestStoppedWritingLeavesNothing(t *testing.T) {
	folder := t.TempDir()
	weights, _ := spans()
	stopped := errors.New("stopped")
	calls := 0
	err := packed.Write(folder, "model", packed.Key{}, weights, func() error {
		if calls++; calls > 1 {
			return stopped
		}
		return nil
	})
	require.ErrorIs(t, err, stopped)
	require.Equal(t, 2, calls)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestFilesThatAreNotTheRightOnes(t *testing.T) {
	folder := t.TempDir()
	key := packed.Key{7}
	path := packed.Path(folder, "model", key)
	_, err := packed.Open(path, key, 0)
	require.ErrorIs(t, err, fs.ErrNotExist)

	weights, _ := spans()
	require.NoError(t, packed.Write(folder, "model", key, weights, goOn))
	_, err = packed.Open(path, packed.Key{8}, 0)
	require.ErrorIs(t, err, packed.ErrStale)

	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, content := range map[string][]byte{
		"empty":        nil,
		"half a head":  whole[:20],
		"head alone":   whole[:2<<20],
		"cut":          whole[:len(whole)-64],
		"longer":       append(bytes.Clone(whole), 0),
		"other format": append([]byte("safetensors"), whole[11:]...),
	} {
		require.NoError(t, os.WriteFile(path, content, 0o600))
		_, err = packed.Open(path, key, 0)
		require.ErrorIs(t, err, packed.ErrStale, name)
	}
}

// TestRoomIsLeftOnTheDisk: the rule depends on the size of the file first: a large disk that is nearly full has
// room for a small file.
func TestRoomIsLeftOnTheDisk(t *testing.T) {
	require.Equal(t, uint64(4<<20), packed.RoomFor(2<<20, 250<<30))
	require.Equal(t, uint64(11<<30), packed.RoomFor(10<<30, 10<<30))
}
