package kvfile

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/kvmgr/chain"
)

// write changes an entry as File does, but only the first n bytes of it.
type write func(table []byte, n int)

func tear(table []byte, at, n int, b []byte) { copy(table[at:], b[:min(n, len(b))]) }

func leaseOf(slab int32, p place) write {
	b := make([]byte, entryBytes)
	encodeLease(b, slab, p)
	return func(table []byte, n int) { tear(table, int(slab)*entryBytes, n, b) }
}

func storedOf(slab int32, prefix chain.Hash) write {
	b := make([]byte, halfBytes)
	encodeStored(b, slab, prefix)
	return func(table []byte, n int) { tear(table, int(slab)*entryBytes+halfBytes, n, b) }
}

// A table whose last write was torn says of the slab what it said before, what the write says, or nothing; of the other slabs
// what it said before.
func TestATornTableSaysNothingNew(t *testing.T) {
	const slabs = 12
	rng := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		table := make([]byte, slabs*entryBytes)
		draw := func() (int32, write) {
			slab := int32(rng.IntN(slabs))
			if rng.IntN(2) == 0 {
				return slab, leaseOf(slab, place{kvmgr.Seq(rng.IntN(3) + 1), rng.IntN(4)})
			}
			return slab, storedOf(slab, chain.Hash{byte(rng.IntN(5)), 7})
		}
		for range 30 {
			_, w := draw()
			w(table, entryBytes)
		}
		before := claims(table)
		slab, last := draw()
		last(table, rng.IntN(entryBytes+1))
		torn := claims(table)
		last(table, entryBytes)
		after := claims(table)
		for s := range int32(slabs) {
			if s != slab {
				require.Equal(t, before[s], torn[s])
				continue
			}
			require.Contains(t, []place{before[s].lease, after[s].lease, {}}, torn[s].lease)
			require.Contains(t, []chain.Hash{before[s].stored, after[s].stored, {}}, torn[s].stored)
		}
	}
}

type claim struct {
	lease  place
	stored chain.Hash
}

// claims decodes each entry alone.
func claims(table []byte) map[int32]claim {
	all := make(map[int32]claim)
	for slab := int32(0); int(slab)*entryBytes < len(table); slab++ {
		alone := make([]byte, len(table))
		copy(alone[int(slab)*entryBytes:], table[int(slab)*entryBytes:][:entryBytes])
		var c claim
		d := decode(alone)
		for p := range d.leased {
			c.lease = p
		}
		for h := range d.stored {
			c.stored = h
		}
		all[slab] = c
	}
	return all
}

func TestAFlippedBitEndsAClaim(t *testing.T) {
	for bit := range entryBytes * 8 {
		table := make([]byte, 2*entryBytes)
		leaseOf(1, place{5, 2})(table, entryBytes)
		storedOf(1, chain.Hash{9})(table, halfBytes)
		table[entryBytes+bit/8] ^= 1 << (bit % 8)
		d := decode(table)
		if bit/8 < halfBytes {
			require.Empty(t, d.leased)
			require.Contains(t, d.stored, chain.Hash{9})
		} else {
			require.Empty(t, d.stored)
			require.Contains(t, d.leased, place{5, 2})
		}
	}
}

func TestAPlaceThatTwoSlabsClaimIsNeithers(t *testing.T) {
	table := make([]byte, 3*entryBytes)
	leaseOf(0, place{5, 2})(table, entryBytes)
	leaseOf(2, place{5, 2})(table, entryBytes)
	leaseOf(1, place{5, 1})(table, entryBytes)
	require.Equal(t, map[place]int32{{5, 1}: 1}, decode(table).leased)
}

func TestAnEntryOfAnotherSlabSaysNothing(t *testing.T) {
	table := make([]byte, 2*entryBytes)
	leaseOf(0, place{5, 2})(table, entryBytes)
	copy(table[entryBytes:], table[:entryBytes])
	require.Equal(t, map[place]int32{{5, 2}: 0}, decode(table).leased)
}

func TestATornHeaderIsNone(t *testing.T) {
	header, err := encodeHeader(shape{7, 4096}, "n00000001", "class layout")
	require.NoError(t, err)
	s, node, slabsOf, err := decodeHeader(append(header, 0, 0, 0))
	require.NoError(t, err)
	require.Equal(t, shape{7, 4096}, s)
	require.Equal(t, []string{"n00000001", "class layout"}, []string{node, slabsOf})
	for n := range header {
		torn := make([]byte, len(header))
		copy(torn, header[:n])
		_, _, _, err := decodeHeader(torn)
		require.ErrorIs(t, err, errHeader, "%d bytes", n)
		_, _, _, err = decodeHeader(header[:n])
		require.ErrorIs(t, err, errHeader)
	}
}
