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
