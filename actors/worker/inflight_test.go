package worker

import (
	"slices"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/tracing"
)

func TestSequencesOfADeadNodeAreOrphansOnceItIsLateToComeBack(t *testing.T) {
	l := newInFlight(tracing.Off())
	for seq, owner := range map[msg.SeqID]string{1: "a", 2: "b", 3: "a"} {
		require.True(t, l.open(&msg.Generate{Seq: seq, Choices: []msg.SeqID{seq}, Watch: actor.NewPID(owner, "watch")}))
	}
	gone := map[string]bool{"a": true}
	alive := func(node string) bool { return !gone[node] }
	now := time.Unix(1e9, 0)
	require.Empty(t, l.orphans(now, alive))
	require.Empty(t, l.orphans(now.Add(msg.OrphansAfter-1), alive), "it may come back")
	orphans := func(now time.Time) []msg.SeqID {
		list := l.orphans(now, alive)
		slices.Sort(list)
		return list
	}
	require.Equal(t, []msg.SeqID{1, 3}, orphans(now.Add(msg.OrphansAfter)))
	gone["a"] = false
	require.Empty(t, orphans(now.Add(msg.OrphansAfter)), "it is back")
	gone["a"] = true
	require.Empty(t, orphans(now.Add(msg.OrphansAfter)), "its time begins again")
	l.own(1, actor.NewPID("b", "watch"))
	require.Equal(t, []msg.SeqID{3}, orphans(now.Add(2*msg.OrphansAfter)), "another node has taken one over")
	require.Equal(t, []Sequence{{Seq: 1, Owner: "b"}, {Seq: 2, Owner: "b"}, {Seq: 3, Owner: "a"}}, l.list())
}

func TestAnAnswerIsKeptAsLongAsItsGatewayMayBeReplaced(t *testing.T) {
	l := newInFlight(tracing.Off())
	end := func(seq msg.SeqID, tokens int, at time.Time) {
		g := &msg.Generate{Seq: seq, Choices: []msg.SeqID{seq}, RequestID: "r", Prompt: []int32{1, 2}, Watch: actor.NewPID("a", "watch")}
		require.True(t, l.open(g))
		e := l.get(seq)
		l.close(seq)
		l.keep(&ended{entry: e, answered: &answered{tokens: make([]int32, tokens)}, at: at})
	}
	found := func() (list []msg.SeqID) {
		for _, f := range l.find("r", "N") {
			list = append(list, f.Seqs...)
		}
		return list
	}
	now := time.Unix(1e9, 0)
	everybody := func(string) bool { return true }
	end(1, 5, now)
	end(2, 2, now.Add(1))
	require.Equal(t, []msg.SeqID{1, 2}, found())
	require.Len(t, l.end(1).tokens, 5)
	require.Nil(t, l.end(3))
	require.Zero(t, l.len(), "it does not run")
	l.orphans(now.Add(msg.OrphansAfter), everybody)
	require.Equal(t, []msg.SeqID{2}, found())
	end(3, mostEnded-entryTokens-4, now.Add(2))
	require.Equal(t, []msg.SeqID{3}, found(), "the oldest one has no room")
	end(4, mostEnded, now.Add(3))
	require.Empty(t, found(), "nor has one that is too long")
	require.Zero(t, l.tokens)
}

func TestAWorkerRestsWithoutSequences(t *testing.T) {
	const quiet = 0
	l := newInFlight(tracing.Off())
	require.True(t, l.rest(quiet))
	require.True(t, l.open(&msg.Generate{Seq: 1, Choices: []msg.SeqID{1}, Watch: actor.NewPID("a", "watch")}))
	<-l.idle.Woken()
	require.False(t, l.rest(quiet))
	l.close(1)
	require.False(t, l.rest(time.Hour), "the next one may be near")
	require.True(t, l.rest(quiet))
}
