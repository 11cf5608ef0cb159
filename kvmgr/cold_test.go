package kvmgr

import (
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
	require.Equal(t, []int{0, 1, 2}, coldSlabs(t, m, p), "the first is still held: those after it are of no use alone; the last is not whole")
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
