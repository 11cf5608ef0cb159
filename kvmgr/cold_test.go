package kvmgr

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr/chain"
)

// coldSlabs returns the positions of the slabs that a manager lists, and checks their names.
func coldSlabs(t *testing.T, m *Manager, p Prompt) (at []int) {
	t.Helper()
	hashes := chain.Of(p.Space, 4, p.Tokens)
	for {
		c, ok := m.Cold()
		if !ok {
			return at
		}
		i := int(c.Tokens[0]-p.Tokens[0]) / 4
		require.Equal(t, p.Tokens[4*i:][:4], c.Tokens)
		require.Equal(t, hashes[i], c.Hash)
		parent := chain.Root(p.Space)
		if i > 0 {
			parent = hashes[i-1]
		}
		require.Equal(t, parent, c.Parent)
		found, _ := m.Find(p, false)
		require.Equal(t, found[i], c.Slab)
		at = append(at, i)
	}
}

func TestReleasedSlabsAreListedAfterThoseBeforeThem(t *testing.T) {
	m, err := New(Config{Slabs: 10, Spec: NewSpec(4, Full{}), Cold: true})
	require.NoError(t, err)
	p := Prompt{Space: "a", Tokens: tokensFrom(100, 14)}
	begin := func(seq Seq, tokens int) {
		p := Prompt{Space: "a", Tokens: p.Tokens[:tokens]}
		_, err := m.ReservePrompt(seq, Declared(tokens), p)
		require.NoError(t, err)
		_, err = m.Lease(seq, tokens)
		require.NoError(t, err)
		require.NoError(t, m.Commit(seq, p.Tokens, true))
	}
	begin(1, 6)
	begin(2, 14)
	require.Empty(t, coldSlabs(t, m, p), "all are held")
	_, err = m.Release(2)
	require.NoError(t, err)
	require.Equal(t, []int{0, 1, 2}, coldSlabs(t, m, p),
		"the first is still held: those after it are of no use alone; the last is not whole")
	_, err = m.Release(1)
	require.NoError(t, err)
	require.Equal(t, []int{0}, coldSlabs(t, m, p))
	m.Forget()
	begin(3, 14)
	_, err = m.Release(3)
	require.NoError(t, err)
	require.NoError(t, m.Reserve(4, Declared(36)))
	_, err = m.Lease(4, 36)
	require.NoError(t, err)
	require.Equal(t, []int{0}, coldSlabs(t, m, p), "the others are evicted")
	require.NoError(t, m.Check())
}

// TestStatesAreListedAfterTheirTokens, and no slab of tokens that none follows.
func TestStatesAreListedAfterTheirTokens(t *testing.T) {
	for _, sole := range []bool{false, true} {
		m, err := New(Config{Slabs: 40, Spec: NewSpec(4, Full{}, State{Slabs: 2, Every: 8, Sole: sole}), Cold: true})
		require.NoError(t, err)
		prompt := tokensFrom(100, 30)
		run(t, m, 1, prompt[:22])
		_, err = m.Release(1)
		require.NoError(t, err)
		type slab struct{ tokens, state int }
		list := func() (got []slab) {
			for c, ok := m.Cold(); ok; c, ok = m.Cold() {
				for n := 1; n <= len(prompt); n++ {
					before := chain.Root("")
					if whole := chain.Of("", 4, prompt[:n-1]); len(whole) > 0 {
						before = whole[len(whole)-1]
					}
					part := prompt[(n-1)/4*4 : n]
					if before.Next(part) != c.Hash {
						continue
					}
					if c.State < 0 {
						require.Equal(t, before, c.Parent)
						require.Equal(t, part, c.Tokens)
					}
					if c.State >= 0 || !sole {
						got = append(got, slab{n, c.State})
					}
				}
			}
			return got
		}
		want := func(all ...slab) []slab {
			return slices.DeleteFunc(all, func(s slab) bool { return sole && s.state < 0 })
		}
		require.Equal(t, want(slab{4, -1}, slab{8, -1}, slab{8, 0}, slab{8, 1}, slab{12, -1}, slab{12, 0}, slab{12, 1}), list(),
			"a state is kept after 8 and 12 tokens, and none after the others")
		hit, err := m.ReservePrompt(2, Declared(11), Prompt{Tokens: prompt[:10]})
		require.NoError(t, err)
		require.Equal(t, 8, hit.Tokens)
		_, err = m.Lease(2, 11)
		require.NoError(t, err)
		require.NoError(t, m.Retire(2, prompt[:11]))
		_, err = m.Release(2)
		require.NoError(t, err)
		require.Equal(t, want(slab{4, -1}, slab{8, -1}, slab{8, 0}, slab{8, 1}, slab{11, -1}, slab{11, 0}, slab{11, 1}), list(),
			"an answer ends inside a slab")
		require.NoError(t, m.Check())
	}
}
