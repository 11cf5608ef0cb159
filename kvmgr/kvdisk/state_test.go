package kvdisk

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr/chain"
)

// statefulConfig is config with states of two slabs.
func statefulConfig(dir string, slots int, c *clock) Config {
	cfg := config(dir, slots, c)
	cfg.StateSlabs = 2
	return cfg
}

// path returns the slabs of the first tokens of a prompt, those that do not fill the last one too.
func path(first int32, tokens int) (list []Block) {
	parent := chain.Root("")
	for at := 0; at < tokens; at += testTokens {
		b := Block{Parent: parent}
		for i := at; i < min(at+testTokens, tokens); i++ {
			b.Tokens = append(b.Tokens, first+int32(i))
		}
		b.Key = parent.Next(b.Tokens)
		list, parent = append(list, b), b.Key
	}
	return list
}

// withState adds the slabs of the state after a path.
func withState(path []Block) []Block {
	last := path[len(path)-1].Key
	return append(slices.Clip(path), StateBlock(last, 0), StateBlock(last, 1))
}

// content is the bytes of a slab.
func content(b Block) []byte {
	data := make([]byte, testBytes)
	copy(data, b.Key[:])
	binary.LittleEndian.PutUint32(data[20:], uint32(b.Tokens[0]))
	return data
}

func store(t *testing.T, s *Store, blocks ...Block) {
	t.Helper()
	for _, b := range blocks {
		require.NoError(t, s.Write(b, content(b)))
	}
}

// there says which of some slabs a store has, by reading them.
func there(t *testing.T, s *Store, blocks ...Block) (list []bool) {
	t.Helper()
	for _, b := range blocks {
		got := make([]byte, testBytes)
		err := s.Read(b, got)
		if list = append(list, err == nil); err != nil {
			require.ErrorIs(t, err, ErrMissing)
			continue
		}
		require.Equal(t, content(b), got)
	}
	return list
}

func TestAStateIsThereWithAllItsSlabs(t *testing.T) {
	c := &clock{now: 1e9}
	cfg := statefulConfig(t.TempDir(), 10, c)
	s := open(t, cfg)
	blocks := withState(path(100, 6)) // the last slab has two tokens
	prefix := blocks[1].Key
	store(t, s, blocks[:3]...)
	require.True(t, s.Has(prefix))
	require.False(t, s.HasState(prefix))
	store(t, s, blocks[3])
	require.True(t, s.HasState(prefix))
	require.False(t, s.HasState(blocks[0].Key))
	require.NoError(t, s.Close())
	s = open(t, cfg)
	require.True(t, s.HasState(prefix))
	require.Equal(t, Stats{4, 10}, s.Stats())
	require.Equal(t, []bool{true, true, true, true}, there(t, s, blocks...))
	other := path(100, 6)[1]
	other.Tokens = append(slices.Clone(other.Tokens), 7)
	require.ErrorIs(t, s.Read(other, make([]byte, testBytes)), ErrMissing, "more tokens")
}

// TestADamagedStateIsAMissAsAWhole, and is stored again.
func TestADamagedStateIsAMissAsAWhole(t *testing.T) {
	c := &clock{now: 1e9}
	cfg := statefulConfig(t.TempDir(), 10, c)
	s := open(t, cfg)
	blocks := withState(path(100, 4))
	store(t, s, blocks...)
	names, err := filepath.Glob(filepath.Join(cfg.Dir, "*"))
	require.NoError(t, err)
	file, err := os.OpenFile(names[0], os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{77}, s.layout.at(2)+50)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.Equal(t, []bool{true, true, false}, there(t, s, blocks...))
	require.False(t, s.HasState(blocks[0].Key))
	require.Equal(t, Stats{1, 10}, s.Stats(), "the other slab of the state is of no use")
	store(t, s, blocks...)
	require.Equal(t, []bool{true, true, true}, there(t, s, blocks...))
}

// TestWhatOthersNeedStays: a path that has a state after it goes from its end on, and a state as a whole.
func TestWhatOthersNeedStays(t *testing.T) {
	for _, restart := range []bool{false, true} {
		c := &clock{now: 1e9}
		cfg := statefulConfig(t.TempDir(), 8, c)
		s := open(t, cfg)
		old, recent := withState(path(100, 8)), withState(path(500, 8))
		store(t, s, old...)
		c.now++
		store(t, s, recent...)
		c.now++
		there(t, s, old[2:]...) // its tokens are in memory, so nobody reads them
		if c.now++; restart {
			require.NoError(t, s.Close())
			s = open(t, cfg)
		}
		third := path(900, 16)
		store(t, s, third[0])
		require.True(t, s.HasState(old[1].Key))
		require.False(t, s.HasState(recent[1].Key))
		require.True(t, s.Has(recent[1].Key))
		require.Equal(t, Stats{7, 8}, s.Stats())
		store(t, s, third[1:]...)
		require.Equal(t, []bool{true, true, true, true}, there(t, s, old...))
		require.Equal(t, []bool{true, true, true, true}, there(t, s, third...))
		require.Equal(t, Stats{8, 8}, s.Stats())
	}
}

// TestAPathThatIsLongerThanTheFileDoesNotPushItselfOut.
func TestAPathThatIsLongerThanTheFileDoesNotPushItselfOut(t *testing.T) {
	s := open(t, statefulConfig(t.TempDir(), 4, &clock{now: 1e9}))
	long := path(100, 6*testTokens)
	store(t, s, long[:4]...)
	require.ErrorIs(t, s.Write(long[4], content(long[4])), ErrNoRoom)
	require.Equal(t, []bool{true, true, true, true, false}, there(t, s, long[:5]...))
	s = open(t, statefulConfig(t.TempDir(), 4, &clock{now: 1e9}))
	blocks := withState(long[:3])
	store(t, s, blocks[:4]...)
	require.ErrorIs(t, s.Write(blocks[4], content(blocks[4])), ErrNoRoom)
	require.Equal(t, []bool{true, true, true, true, false}, there(t, s, blocks...))
}

// TestRandomPathsStayWhole: whatever is stored, read and damaged, and across processes, what is there has all that it needs, unless it was
// damaged, and no slot is lost.
func TestRandomPathsStayWhole(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 2))
		c := &clock{now: 1e9}
		cfg := statefulConfig(t.TempDir(), 12, c)
		s := open(t, cfg)
		damaged := false
		hits := 0
		for range 400 {
			c.now += rng.Int64N(3)
			p := path(int32(100*rng.IntN(4)), 1+rng.IntN(24))
			if rng.IntN(2) == 0 {
				p[len(p)-1] = path(int32(1000*(1+rng.IntN(3))), 4)[0] // another end
				p[len(p)-1].Parent = chain.Root("")
				if len(p) > 1 {
					p[len(p)-1].Parent = p[len(p)-2].Key
				}
				p[len(p)-1].Key = p[len(p)-1].Parent.Next(p[len(p)-1].Tokens)
			}
			blocks := withState(p)
			switch rng.IntN(12) {
			case 0:
				require.NoError(t, s.Close())
				s = open(t, cfg)
			case 1:
				s.Expire()
			case 2:
				if damaged = true; seed%2 == 0 {
					b := blocks[rng.IntN(len(blocks))]
					if slot, ok := s.find(b); ok {
						_, err := s.file.WriteAt([]byte{99}, s.layout.at(slot)+60)
						require.NoError(t, err)
					}
				}
			case 3, 4, 5:
				for _, ok := range there(t, s, blocks...) {
					if ok {
						hits++
					}
				}
			default:
				for _, b := range blocks {
					if err := s.Write(b, content(b)); !errors.Is(err, ErrNoRoom) {
						require.NoError(t, err)
					}
				}
			}
			if !damaged || seed%2 == 1 {
				for i, b := range p[1:] {
					if s.Has(b.Key) {
						require.True(t, s.Has(p[i].Key), "seed %d", seed)
					}
				}
				if last := p[len(p)-1]; s.HasState(last.Key) {
					require.True(t, s.Has(last.Key))
				}
			}
			slots := slices.Clone(s.index.free)
			for _, list := range []map[chain.Hash]*entry{s.index.tokens, s.index.states} {
				for _, e := range list {
					slots = append(slots, slices.DeleteFunc(slices.Clone(e.slots), func(n int) bool { return n < 0 })...)
				}
			}
			slices.Sort(slots)
			require.Len(t, slices.Compact(slots), s.layout.slots)
		}
		require.Positive(t, hits)
	}
}
