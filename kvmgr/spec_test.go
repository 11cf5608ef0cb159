package kvmgr

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// slider is a windowed group of the tests.
var slider = Window{Tokens: 10, Live: LiveSlabs(10, 9, 4)}

func TestASpecThatCannotBeIsRefused(t *testing.T) {
	sinks := Window{Tokens: 10, Live: 8, Sinks: 1}
	for _, c := range []struct {
		tokens int
		groups []Group
		want   string
	}{
		{0, []Group{Full{}}, "tokens per slab 0, expected 1 to 1073741824"},
		{4, nil, "no groups of layers, expected at least one"},
		{4, []Group{Full{Head: -1}}, "-1 slabs before those of the tokens, expected 0 or more"},
		{4, []Group{Full{Head: 1}, Full{}}, "2 groups of layers of which one keeps all tokens after a head of 1 slabs, expected it alone"},
		{4, []Group{Full{Head: 1}, slider}, "expected it alone"},
		{4, []Group{Full{}, State{Every: 8}},
			"a state of 0 slabs with a snapshot every 8 tokens, expected at least 1 slab and a multiple of 4 tokens"},
		{4, []Group{Full{}, State{Slabs: 1, Every: 6}}, "with a snapshot every 6 tokens"},
		{4, []Group{Full{}, Full{}, State{Slabs: 2, Every: 8}},
			"groups of layers keep [all tokens all tokens a state of 2 slabs], expected a state of 2 slabs after one full group"},
		{4, []Group{slider, State{Slabs: 2, Every: 8}}, "expected a state of 2 slabs after one full group"},
		{4, []Group{Full{Head: 1}, State{Slabs: 2, Every: 8}}, "expected it alone"},
		{4, []Group{State{Slabs: 2, Every: 8}}, "expected a state of 2 slabs after one full group"},
		{4, []Group{Bounded{}}, "0 slabs of a sequence at most, expected at least 1"},
		{4, []Group{Full{}, Bounded{Slabs: 3}}, "2 groups of layers of which one keeps tokens in 3 slabs at most, expected it alone"},
		{4, []Group{Window{Tokens: 1, Live: 100}},
			"a window of 1 tokens and 0 slabs of sinks with 100 slabs at once, expected at least 2, 0 and 3"},
		{4, []Group{Window{Tokens: -1, Live: 100}}, "a window of -1 tokens"},
		{4, []Group{Window{Tokens: 10, Live: LiveSlabs(10, 4, 4) - 1}}, "with 5 slabs at once, expected at least 2, 0 and 6"},
		{4, []Group{Window{Tokens: 10, Live: LiveSlabs(10, 4, 4), Sinks: 1}}, "expected at least 2, 0 and 7"},
		{4, []Group{Window{Tokens: 10, Live: 8, Sinks: -1}}, "-1 slabs of sinks"},
		{4, []Group{Full{}, sinks}, "2 groups of layers of which one keeps a window of 10 tokens and 1 slabs of sinks, expected it alone"},
		{4, []Group{slider, Full{}},
			"a group of layers keeps all tokens after one that keeps a window of 10 tokens, expected full groups first"},
		{4, []Group{slider, Window{Tokens: 11, Live: 9}},
			"a group of layers keeps a window of 11 tokens after one that keeps a window of 10 tokens"},
	} {
		err := NewSpec(c.tokens, c.groups...).Validate(Wants{})
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, c.want)
	}
}

// TestWhatAGroupExcludesIsRefused: each option, and each use, of each kind of group.
func TestWhatAGroupExcludesIsRefused(t *testing.T) {
	everything := Uses{Shares: true, Copies: true, Spills: true, Beams: true, Rollback: true}
	for _, c := range []struct {
		groups             []Group
		uses               Uses
		disk, tier, drafts string // ""; allowed
	}{
		{[]Group{Full{}}, everything, "", "", ""},
		{[]Group{slider}, everything, "", "", ""},
		{[]Group{Full{}, slider}, everything, "the slabs of 2 groups of layers cannot be stored on a disk, expected one group", "", ""},
		{
			[]Group{Full{Head: 2}}, Uses{},
			"keeps all tokens after a head of 2 slabs cannot be stored on a disk",
			"keeps all tokens after a head of 2 slabs cannot be spilled",
			"keeps all tokens after a head of 2 slabs takes no draft tokens back",
		},
		{
			[]Group{Bounded{Slabs: 3}}, Uses{},
			"keeps tokens in 3 slabs at most cannot be stored on a disk", "keeps tokens in 3 slabs at most cannot be spilled",
			"keeps tokens in 3 slabs at most takes no draft tokens back",
		},
		{
			[]Group{Full{}, State{Slabs: 2, Every: 8}}, Uses{Shares: true, Copies: true, Spills: true},
			"", "", "keeps a state of 2 slabs takes no draft tokens back",
		},
		{
			[]Group{Window{Tokens: 10, Live: 8, Sinks: 1}}, Uses{Shares: true, Beams: true, Rollback: true},
			"keeps a window of 10 tokens and 1 slabs of sinks cannot be stored on a disk",
			"keeps a window of 10 tokens and 1 slabs of sinks cannot be spilled", "",
		},
	} {
		s := NewSpec(4, c.groups...)
		require.Equal(t, c.uses, s.Uses, "%v", c.groups)
		require.NoError(t, s.Validate(Wants{}))
		for want, wants := range map[Wants]string{{Disk: true}: c.disk, {Tier: true}: c.tier, {Drafts: true}: c.drafts} {
			if err := s.Validate(want); wants == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrInvalid)
				require.ErrorContains(t, err, wants)
			}
		}
		fewer := s
		fewer.Uses = Uses{}
		require.NoError(t, fewer.Validate(Wants{}), "a device may allow less")
		if more := s; c.uses != everything {
			more.Uses = everything
			require.ErrorContains(t, more.Validate(Wants{}), "expected at most")
		}
	}
}

// TestBeatsHaveTheNeedByTheNamesOfEarlierVersions: processes of two versions run together during an update.
func TestBeatsHaveTheNeedByTheNamesOfEarlierVersions(t *testing.T) {
	for want, s := range map[string]Spec{
		`{"slab_tokens":16,"groups":{"full":1}}`:                                    NewSpec(16, Full{}),
		`{"slab_tokens":16,"head_slabs":2,"no_beams":true,"groups":{"full":1}}`:     NewSpec(16, Full{Head: 2}),
		`{"slab_tokens":16,"head_slabs":3,"no_beams":true,"groups":{"full":1}}`:     NewSpec(16, Full{}, State{Slabs: 3, Every: 64}),
		`{"slab_tokens":16,"live_slabs":9,"groups":{"windowed":1}}`:                 NewSpec(16, Window{Tokens: 40, Live: 9, Sinks: 1}),
		`{"slab_tokens":16,"live_slabs":9,"no_beams":true,"groups":{"windowed":1}}`: NewSpec(16, Bounded{Slabs: 9}),
		`{"slab_tokens":16,"live_slabs":9,"groups":{"full":1,"windowed":2}}`: NewSpec(16, Full{},
			Window{Tokens: 40, Live: 9}, Window{Tokens: 40, Live: 9}),
	} {
		got, err := json.Marshal(s.Need())
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}

// TestAWindowHasRoomForTwoStepsWhereThePoolHas.
func TestAWindowHasRoomForTwoStepsWhereThePoolHas(t *testing.T) {
	all, least := LiveSlabs(100, 2*64, 16), LiveSlabs(100, 16, 16)
	for _, c := range []struct{ sinks, pool, full, windowed, want int }{
		{0, math.MaxInt, 0, 1, all},
		{0, all, 0, 1, all},
		{0, all - 1, 0, 1, all - 1},
		{0, 2 * all, 1, 1, all},
		{0, 2*all - 2, 1, 1, all - 1},
		{0, 4 * all, 1, 2, all},
		{0, 4*all - 4, 1, 2, all - 1},
		{0, 1, 0, 1, least},
		{2, all + 2, 0, 1, all + 2},
		{2, all + 1, 0, 1, all + 1},
	} {
		w := NewWindow(100, c.sinks, 64, c.pool, Counts{Full: c.full, Windowed: c.windowed}, 16)
		require.Equal(t, Window{Tokens: 100, Live: c.want, Sinks: c.sinks}, w, "%+v", c)
	}
}
