package kvfile

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/kvmgr/chain"
)

// open makes a directory on tmpfs.
func open(t *testing.T) *Dir {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(path)) })
	d, err := Open(path, func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(d.Close)
	return d
}

// pool makes a pool of four slabs of a page, whose first byte is their number.
func pool(t *testing.T, d *Dir) *File {
	t.Helper()
	f, err := d.Create(4, 4096)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	_, offset := f.Fd()
	for i := range 4 {
		_, err := f.file.WriteAt([]byte{byte(i)}, offset+int64(i)*4096)
		require.NoError(t, err)
	}
	return f
}

// die ends the lock, as the end of a process does.
func die(t *testing.T, f *File) {
	t.Helper()
	require.NoError(t, unix.Flock(int(f.file.Fd()), unix.LOCK_UN))
}

func TestAPoolIsReadOnceItsOwnerIsDead(t *testing.T) {
	d := open(t)
	f := pool(t, d)
	f.Serve("n1", "class")
	f.Void([]int32{3, 1, 2})
	f.Leased(9, 0, []int32{3, 1, 2})
	f.Stored(3, chain.Hash{5})
	require.Nil(t, d.Dead("n1", "class"), "its owner lives")
	die(t, f)
	require.Nil(t, d.Dead("n1", "other"))
	require.Nil(t, d.Dead("n2", "class"))
	dead := d.Dead("n1", "class")
	require.NotNil(t, dead)
	for i, want := range []int32{3, 1, 2} {
		slab, ok := dead.Leased(9, i)
		require.True(t, ok)
		require.Equal(t, want, slab)
		data := make([]byte, 4096)
		require.NoError(t, dead.ReadSlab(slab, data))
		require.Equal(t, byte(want), data[0])
	}
	_, ok := dead.Leased(9, 3)
	require.False(t, ok)
	slab, ok := dead.Stored(chain.Hash{5})
	require.True(t, ok)
	require.Equal(t, int32(3), slab)
	require.Error(t, dead.ReadSlab(4, make([]byte, 4096)))
}

func TestWhatASlabHeldEndsWithItsLease(t *testing.T) {
	d := open(t)
	f := pool(t, d)
	f.Serve("n1", "class")
	f.Leased(9, 0, []int32{0, 1})
	f.Stored(0, chain.Hash{5})
	f.Void([]int32{0})
	f.Leased(10, 4, []int32{1})
	die(t, f)
	dead := d.Dead("n1", "class")
	_, ok := dead.Stored(chain.Hash{5})
	require.False(t, ok)
	for i := range 2 {
		_, ok = dead.Leased(9, i)
		require.False(t, ok)
	}
	_, ok = dead.Leased(10, 4)
	require.True(t, ok)
}

func TestAPoolThatSaysNothingOfItselfIsNotRead(t *testing.T) {
	d := open(t)
	f := pool(t, d)
	f.Leased(9, 0, []int32{0, 1})
	die(t, f)
	require.Nil(t, d.Dead("", ""))
	require.Positive(t, d.Unowned())
}

func TestPoolsWithoutOwnersAreRemovedAfterATime(t *testing.T) {
	d := open(t)
	alive, f := pool(t, d), pool(t, d)
	f.Serve("n1", "class")
	die(t, f)
	now := time.Now()
	d.Sweep(now, time.Minute)
	require.Len(t, d.list(), 2)
	d.Sweep(now.Add(time.Minute), time.Minute)
	require.Equal(t, []string{alive.path}, d.list())
	require.Nil(t, d.Dead("n1", "class"))
	alive.Close()
	require.Empty(t, d.list())
}

func TestThePoolWithTheLongestPrefixIsFound(t *testing.T) {
	d := open(t)
	short, long, other := pool(t, d), pool(t, d), pool(t, d)
	prefixes := []chain.Hash{{1}, {2}, {3}, {4}}
	for i, f := range []*File{short, long, other} {
		f.Serve("n", []string{"class", "class", "other"}[i])
		for slab := range int32(i + 1) {
			f.Stored(slab, prefixes[slab])
		}
	}
	long.Stored(3, prefixes[3]) // the third one is missing
	require.False(t, d.Left())
	for _, f := range []*File{short, long, other} {
		die(t, f)
	}
	d.Sweep(time.Now(), time.Minute)
	require.True(t, d.Left())
	dead, n := d.Longest("class", prefixes)
	require.Equal(t, long.path, dead.path)
	require.Equal(t, 2, n)
	dead, n = d.Longest("class", prefixes[2:])
	require.Nil(t, dead)
	require.Zero(t, n)
}

func TestTheLastOneRemovesWhatTheDeadLeft(t *testing.T) {
	d := open(t)
	other, err := Open(d.path, nil)
	require.NoError(t, err)
	alive, f := pool(t, d), pool(t, d)
	die(t, f)
	other.Close()
	require.Len(t, d.list(), 2)
	alive.Close()
	d.Close()
	require.Empty(t, d.list())
}

func TestAPoolIsForOneUser(t *testing.T) {
	d := open(t)
	f := pool(t, d)
	f.Serve("n1", "class")
	die(t, f)
	s, err := os.Stat(f.path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), s.Mode())
	require.NoError(t, os.Chmod(f.path, 0o640))
	require.Nil(t, d.Dead("n1", "class"))
	require.NoError(t, os.Symlink(f.path, filepath.Join(d.path, "link.kv")))
	require.NoError(t, os.Chmod(f.path, 0o600))
	require.NotNil(t, d.Dead("n1", "class"))
	require.Len(t, d.dead, 1, "a link is no pool")
	require.NoError(t, os.Chmod(d.path, 0o750))
	_, err = Open(d.path, nil)
	require.ErrorContains(t, err, "others have access")
	_, err = Open(f.path, nil)
	require.Error(t, err)
}

func TestAPoolNeedsRoomForAllOfItself(t *testing.T) {
	d := open(t)
	_, err := d.Create(1<<20, 1<<30)
	require.ErrorIs(t, err, ErrNoRoom)
	require.Empty(t, d.list())
	var fs unix.Statfs_t
	require.NoError(t, unix.Statfs(d.path, &fs))
	half := int(int64(fs.Bavail) * fs.Bsize / 2 >> 20)
	f, err := d.Create(half+half/4, 1<<20)
	require.NoError(t, err)
	t.Cleanup(f.Close)
	_, err = d.Create(half+half/4, 1<<20)
	require.ErrorIs(t, err, ErrNoRoom, "the first one has yet to allocate its slabs")
}
