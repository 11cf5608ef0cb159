package kvdisk

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr/chain"
)

const (
	testBytes  = 100
	testTokens = 4
	testTTL    = 24 * time.Second // so each use a second later is written
)

// clock is a time that tests set.
type clock struct{ now int64 }

func (c *clock) time() time.Time { return time.Unix(c.now, 0) }

func config(dir string, slots int, c *clock) Config {
	size := 2*page + int64(slots)*(page+int64(layout{slabTokens: testTokens}.headerSize()))
	return Config{Dir: dir, Size: size, SlabBytes: testBytes, SlabTokens: testTokens, Identity: "a", TTL: testTTL, Now: c.time}
}

func open(t *testing.T, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // it may be closed
	return s
}

// slab returns the nth block and its bytes.
func slab(n int) (Block, []byte) {
	b := Block{Parent: chain.Root(fmt.Sprint(n)), Tokens: []int32{int32(n), 1, 2, -3}}
	b.Key = b.Parent.Next(b.Tokens)
	return b, slices.Repeat([]byte{byte(n), byte(n >> 8)}, testBytes/2)
}

func write(s *Store, n int) error {
	b, data := slab(n)
	return s.Write(b, data)
}

// read says whether a store has the nth slab, whose bytes are right then.
func read(t *testing.T, s *Store, n int) bool {
	t.Helper()
	b, want := slab(n)
	got := make([]byte, testBytes)
	if err := s.Read(b, got); err != nil {
		require.ErrorIs(t, err, ErrMissing)
		require.False(t, s.Has(b.Key))
		return false
	}
	require.Equal(t, want, got)
	require.True(t, s.Has(b.Key))
	return true
}

// TestAStoreAgreesWithAList: random operations and new processes, compared with a list of the slabs by their last use.
func TestAStoreAgreesWithAList(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		const slots = 5
		c := &clock{now: 1e9}
		cfg := config(t.TempDir(), slots, c)
		s := open(t, cfg)
		type used struct {
			n  int
			at int64
		}
		var list []used
		for op := range 500 {
			c.now += 1 + rng.Int64N(5)
			list = slices.DeleteFunc(list, func(u used) bool { return c.now-u.at >= int64(testTTL/time.Second) })
			n := rng.IntN(9)
			at := slices.IndexFunc(list, func(u used) bool { return u.n == n })
			switch k := rng.IntN(10); {
			case k < 4:
				require.NoError(t, write(s, n))
				if at < 0 {
					if s.Expire(); len(list) == slots {
						list = list[1:]
					}
					list = append(list, used{n, c.now})
				}
			case k < 8:
				require.Equal(t, at >= 0, read(t, s, n), "seed %d, operation %d, slab %d", seed, op, n)
				if at >= 0 {
					list = append(slices.Delete(list, at, at+1), used{n, c.now})
				}
			case k == 8:
				s.Expire()
				require.Equal(t, Stats{len(list), slots}, s.Stats())
			default:
				require.NoError(t, s.Close())
				s = open(t, cfg)
			}
			for n := range 9 {
				b, _ := slab(n)
				require.Equal(t, slices.ContainsFunc(list, func(u used) bool { return u.n == n }), s.Has(b.Key),
					"seed %d, operation %d, slab %d", seed, op, n)
			}
		}
	}
}

func TestAFlippedByteIsAMiss(t *testing.T) {
	c := &clock{now: 1e9}
	cfg := config(t.TempDir(), 2, c)
	s := open(t, cfg)
	require.NoError(t, write(s, 1))
	require.NoError(t, s.Close())
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, names, 1)
	whole, err := os.ReadFile(names[0])
	require.NoError(t, err)
	hits := 0
	for _, part := range [][2]int64{{0, 100}, {s.layout.headerAt(0), int64(s.layout.headerSize())}, {s.layout.at(0), testBytes}} {
		for at := part[0]; at < part[0]+part[1]; at++ {
			damaged := slices.Clone(whole)
			damaged[at] ^= 0x10
			require.NoError(t, os.WriteFile(names[0], damaged, 0o600))
			s := open(t, cfg)
			if read(t, s, 1) {
				hits++
			}
			require.NoError(t, write(s, 1), "it is computed and stored again")
			require.True(t, read(t, s, 1))
			require.NoError(t, s.Close())
		}
	}
	require.LessOrEqual(t, hits, 100-len(magic)-32-24, "only of bytes that are not used")
	for _, size := range []int64{0, 10, page, page + 10, s.layout.at(0), s.layout.at(0) + 50} {
		require.NoError(t, os.WriteFile(names[0], whole[:size], 0o600))
		s := open(t, cfg)
		require.False(t, read(t, s, 1), "cut after %d bytes", size)
		require.NoError(t, s.Close())
	}
}

func TestAnotherPrefixWithTheSameHashIsAMiss(t *testing.T) {
	s := open(t, config(t.TempDir(), 2, &clock{now: 1e9}))
	for _, change := range []func(b *Block){func(b *Block) { b.Tokens[2]++ }, func(b *Block) { b.Parent[0]++ }} {
		require.NoError(t, write(s, 1))
		b, data := slab(1)
		change(&b)
		require.ErrorIs(t, s.Read(b, data), ErrMissing)
	}
}

// faulty is a file whose writes fail after a number of them.
type faulty struct {
	file
	left int
}

func (f *faulty) WriteAt(b []byte, at int64) (int, error) {
	if f.left--; f.left < 0 {
		n, _ := f.file.WriteAt(b[:len(b)/2], at)
		return n, syscall.ENOSPC
	}
	return f.file.WriteAt(b, at)
}

// TestADiskThatIsFullIsAMiss also ends the process at that write: the next one finds nothing that is wrong.
func TestADiskThatIsFullIsAMiss(t *testing.T) {
	for left := range 3 {
		c := &clock{now: 1e9}
		cfg := config(t.TempDir(), 2, c)
		s := open(t, cfg)
		for n := range 2 {
			require.NoError(t, write(s, n))
			c.now++
		}
		s.file = &faulty{s.file, left}
		err := write(s, 7)
		require.ErrorIs(t, err, syscall.ENOSPC)
		for range 2 {
			require.False(t, read(t, s, 7))
			require.False(t, read(t, s, 0), "it made room")
			require.True(t, read(t, s, 1))
			require.NoError(t, s.Close())
			s = open(t, cfg)
		}
		require.NoError(t, write(s, 7))
		require.True(t, read(t, s, 7))
	}
}

func TestAFileHasOneProcess(t *testing.T) {
	c := &clock{now: 1e9}
	cfg := config(filepath.Join(t.TempDir(), "kv"), 2, c)
	first := open(t, cfg)
	require.NoError(t, write(first, 1))
	second := open(t, cfg)
	require.False(t, read(t, second, 1))
	require.NoError(t, write(second, 2))
	other := cfg
	other.Identity = "b"
	third := open(t, other)
	require.Equal(t, Stats{0, 2}, third.Stats())
	require.NoError(t, write(third, 3))
	for _, s := range []*Store{first, second, third} {
		require.NoError(t, s.Close())
	}
	require.True(t, read(t, open(t, cfg), 1))
	require.True(t, read(t, open(t, other), 3))
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, names, 3)
	for _, name := range append(names, cfg.Dir) {
		info, err := os.Stat(name)
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, name)
	}
}

func TestFilesThatNobodyUsesAreRemoved(t *testing.T) {
	c := &clock{now: time.Now().Unix()}
	cfg := config(t.TempDir(), 2, c)
	held := open(t, cfg)
	other := cfg
	other.Identity = "b"
	require.NoError(t, open(t, other).Close())
	c.now += int64(2 * testTTL / time.Second)
	other.Identity = "c"
	open(t, other)
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	require.NoError(t, err)
	require.Len(t, names, 2, "the one that is open, and the new one")
	require.NoError(t, write(held, 1))
}

func TestExpiredSlabsLeaveTheDisk(t *testing.T) {
	c := &clock{now: 1e9}
	cfg := config(t.TempDir(), 2, c)
	s := open(t, cfg)
	require.NoError(t, write(s, 0x4142))
	c.now += int64(testTTL / time.Second)
	s.Expire()
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	require.NoError(t, err)
	raw, err := os.ReadFile(names[0])
	require.NoError(t, err)
	require.NotContains(t, string(raw), "BABABA")
}

func TestAStoreNeedsRoomAndADirectory(t *testing.T) {
	c := &clock{}
	_, err := Open(config(t.TempDir(), 0, c))
	require.ErrorContains(t, err, "hold no slab")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(config(file, 2, c))
	require.ErrorIs(t, err, syscall.ENOTDIR)
}
