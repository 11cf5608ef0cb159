package kv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

// granted says whether the second manager has room for a sequence of a number of tokens.
func (p *pair) granted(seq msg.SeqID, tokens int) bool {
	p.t.Helper()
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: tokens, Promise: tokens, Lease: 1}}})
	return len(r.Granted) == 1
}

// TestTheRoomOfACopyIsKeptForItsSequence: of ten slabs, a sequence of 120 tokens needs eight from its copy to its end.
func TestTheRoomOfACopyIsKeptForItsSequence(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens, End: 120})
	require.Equal(t, &msg.Prefetched{Seq: 1, Tokens: 48}, next[*msg.Prefetched](p))
	require.False(t, p.granted(7, 48), "between the copy and the switch")
	source := p.source(1)
	g := &msg.Generate{Seq: 101, Prompt: tokens[:10], Generated: tokens[10:], MaxTokens: 110, Tenant: "a", Source: &source}
	p.system.Root.Send(p.managers[1].PID(), &msg.Import{Reply: p.self, Generate: g})
	p.settle()
	require.False(t, p.granted(8, 48), "while the last slab comes")
	p.ends(1, tokens)
	next[*msg.Imported](p)
	require.False(t, p.granted(9, 48), "between the last slab and its reservation")
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 101, Tokens: 120, Promise: 120, Lease: 60, Known: tokens, Space: "a"}}})
	require.Len(t, r.Granted, 1)
	require.Equal(t, 59, r.Granted[0].Computed)
	require.False(t, p.granted(10, 48))
	p.round(1, &msg.KVRound{Release: []msg.SeqID{101}})
	require.True(t, p.granted(11, 48))
	p.clean(1)
}

func TestTheRoomOfASequenceThatDoesNotComeIsReturned(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	require.False(t, p.granted(7, 150))
	regions := func() int {
		state, err := p.managers[1].State(t.Context(), false)
		require.NoError(t, err)
		return state.Stats.Regions
	}
	require.Equal(t, 1, regions())
	require.True(t, next[*msg.KVReady](p).Freed, "nothing else would tell the worker that there is room now")
	require.Equal(t, 0, regions())
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 48, n)
}

func TestASequenceWithoutRoomWaitsForOthersToEnd(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.ends(1, tokens)
	require.True(t, p.granted(7, 130))
	p.imports(1, "a", tokens)
	p.round(1, &msg.KVRound{Release: []msg.SeqID{7}})
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 59, n)
}

// TestASequenceThatHasLeftKeepsItsSlabsUntilTheyAreCopied: others of its worker wait for them, in a pool of ten slabs.
func TestASequenceThatHasLeftKeepsItsSlabsUntilTheyAreCopied(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	p.ends(1, tokens)
	all := &msg.KVRound{Reserve: []msg.Reserve{{Seq: 2, Tokens: 150, Promise: 150, Lease: 150}}}
	require.Len(t, p.round(0, all).Denied, 1)
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 59, n)
	require.Eventually(t, func() bool { return p.managers[0].Stats().Free == 10 }, 20*time.Second, time.Millisecond)
	require.Len(t, p.round(0, &msg.KVRound{Reserve: all.Reserve}).Granted, 1)
}

// TestACopiedSequenceBeginsWithTheRoomThatWasKeptForIt: others have what its longer prediction would need. It has five of ten slabs.
func TestACopiedSequenceBeginsWithTheRoomThatWasKeptForIt(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	p.ends(1, tokens)
	source := p.source(1)
	g := &msg.Generate{Seq: 101, Prompt: tokens[:10], Generated: tokens[10:], MaxTokens: 70, Tenant: "a", Source: &source}
	p.system.Root.Send(p.managers[1].PID(), &msg.Import{Reply: p.self, Generate: g})
	next[*msg.Imported](p)
	require.True(t, p.granted(7, 80))
	r := p.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 101, Tokens: 160, Promise: 120, Lease: 96, Known: tokens, Space: "a"}}})
	require.Len(t, r.Granted, 1)
	require.Equal(t, 59, r.Granted[0].Computed)
	require.Equal(t, 80, r.Granted[0].UpTo)
	p.clean(1)
}

// TestASequenceStaysWhereItRunsWhileTheStepsHereAreFull: there is room in memory, but a copied sequence would wait for a place.
func TestASequenceStaysWhereItRunsWhileTheStepsHereAreFull(t *testing.T) {
	p := newPairWith(t, equals, func(_ int, c *Config) { c.BatchSize = 2 })
	tokens := prompt(100, 40)
	p.runs(1, "a", tokens)
	prefetched := func() *msg.Prefetched {
		p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens})
		return next[*msg.Prefetched](p)
	}
	require.True(t, p.granted(7, 16))
	require.True(t, p.granted(8, 16))
	require.True(t, prefetched().Full)
	p.round(1, &msg.KVRound{Release: []msg.SeqID{8}, Rows: 2}) // another one waits for its place
	require.True(t, prefetched().Full)
	p.round(1, &msg.KVRound{Rows: 1})
	require.Equal(t, &msg.Prefetched{Seq: 1, Tokens: 32}, prefetched())
	require.False(t, p.granted(9, 16), "the last place is kept")
	p.ends(1, tokens)
	p.imports(1, "a", tokens)
	next[*msg.Imported](p)
	require.False(t, p.granted(9, 16), "until its sequence is there")
	n, _ := p.cached(101, "a", tokens)
	require.Equal(t, 39, n)
	p.round(1, &msg.KVRound{Release: []msg.SeqID{101}})
	require.True(t, p.granted(9, 16))
}

// TestASecondCopyThatFindsNoRoomAnnouncesThatOfTheFirst: of ten slabs, the first copy keeps four. The second one returns them, and
// needs more than there is.
func TestASecondCopyThatFindsNoRoomAnnouncesThatOfTheFirst(t *testing.T) {
	p := newPair(t, equals)
	tokens := prompt(100, 60)
	p.runs(1, "a", tokens)
	require.Equal(t, 48, p.prefetch(1, "a", tokens))
	require.True(t, p.granted(7, 90))
	p.system.Root.Send(p.managers[1].PID(), &msg.Prefetch{Reply: p.self, Source: p.source(1), Space: "a", Tokens: tokens, End: 120})
	require.True(t, next[*msg.Prefetched](p).Full)
	require.True(t, next[*msg.KVReady](p).Freed)
	require.True(t, p.granted(8, 64))
}

func TestAnUnpredictedSequenceNeedsRoomForItsDeclaredEnd(t *testing.T) {
	x := &exchange{}
	require.Equal(t, kvmgr.Declared(1000), x.length(60, 1000))
	require.Equal(t, kvmgr.Declared(60), x.length(60, 0), "a gateway of an earlier version")
	x.predicted = true
	require.Equal(t, kvmgr.Length{End: 1000, Promise: 60 + roomAhead}, x.length(60, 1000))
	require.Equal(t, kvmgr.Declared(100), x.length(60, 100))
}
