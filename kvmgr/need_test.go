package kvmgr

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestANeedCountsSlabs(t *testing.T) {
	for _, c := range []struct {
		g                     Counts
		positions, live, need int
		pool, longest         int
	}{
		{Counts{}, 10, 0, 10, 12, 12},
		{Counts{}, 10, 4, 4, 4, 1<<31 - 1}, // of an earlier version
		{Counts{Windowed: 1}, 10, 4, 4, 3, 3},
		{Counts{Full: 1}, 10, 0, 10, 12, 12},
		{Counts{Full: 1, Windowed: 2}, 10, 4, 18, 20, 12},
		{Counts{Full: 2, Windowed: 2}, 10, 4, 28, 28, 10},
		{Counts{Full: 2, Windowed: 2}, 3, 4, 12, 13, 3},
		{Counts{Full: 1, Windowed: 2}, 10, 0, 30, 31, 10}, // nothing is given back
	} {
		n := Need{LiveSlabs: c.live, Groups: c.g}
		require.Equal(t, c.need, n.AtOnce(c.positions), "%+v", c)
		require.Equal(t, c.longest, n.Longest(c.pool), "%+v", c)
		n.HeadSlabs = 5
		require.Equal(t, c.need+5, n.AtOnce(c.positions), "%+v", c)
		require.Equal(t, c.longest, n.Longest(c.pool+5), "%+v", c)
	}
	require.Zero(t, Need{HeadSlabs: 5}.Longest(4))
	require.Zero(t, Need{HeadSlabs: 5}.Positions(4))
	require.Equal(t, 3, Need{HeadSlabs: 5, Groups: Counts{Full: 1, Windowed: 2}}.Positions(16))
}

// TestBeatsHaveANeedByTheNamesOfEarlierVersions: processes of two versions run together during an update.
func TestBeatsHaveANeedByTheNamesOfEarlierVersions(t *testing.T) {
	beat := struct {
		Slabs int `json:"slabs"`
		Need
	}{9, Need{SlabTokens: 16, LiveSlabs: 8, HeadSlabs: 2, NoBeams: true, Groups: Counts{Full: 1, Windowed: 3}}}
	text, err := json.Marshal(beat)
	require.NoError(t, err)
	require.Equal(t, `{"slabs":9,"slab_tokens":16,"live_slabs":8,"head_slabs":2,"no_beams":true,"groups":{"full":1,"windowed":3}}`,
		string(text))
	text, err = json.Marshal(Need{SlabTokens: 16})
	require.NoError(t, err)
	require.Equal(t, `{"slab_tokens":16}`, string(text))
}
