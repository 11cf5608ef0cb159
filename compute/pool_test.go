package compute_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

func TestSlabsLieInTheFileOfThePool(t *testing.T) {
	path, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(path)) })
	pools, err := kvfile.Open(path, func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(pools.Close)
	m := open(t, compute.Options{Dir: fixture, MaxRows: 32, MaxOutputs: 4, MaxSequences: 4, Pools: pools,
		Warn: func(err error) { t.Error(err) }})
	data := make([]byte, m.SlabBytes())
	for i := range data {
		data[i] = byte(i%251 + 1)
	}
	last := int32(m.Slabs() - 1)
	require.NoError(t, m.WriteSlab(last, data))
	m.PoolFile().Serve("n1", "layout")
	fd, _ := m.PoolFile().Fd()
	require.NoError(t, unix.Flock(int(fd), unix.LOCK_UN)) // as the end of the process does
	dead := pools.Dead("n1", "layout")
	require.NotNil(t, dead)
	got := make([]byte, len(data))
	require.NoError(t, dead.ReadSlab(last, got))
	require.Equal(t, data, got)
}
