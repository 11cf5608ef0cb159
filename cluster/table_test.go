package cluster

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func names(list []*Member) (out []string) {
	for _, m := range list {
		out = append(out, m.Node)
	}
	return out
}

func TestANodeIsLiveWhileItIsHeard(t *testing.T) {
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at)
	require.True(t, x.receive(at, Member{Node: "b"}))
	require.True(t, x.receive(at, Member{Node: "a"}))
	require.False(t, x.receive(at, Member{Node: "a"}), "known")
	require.Equal(t, []string{"a", "b"}, names(x.live()))
	for i := range 5 {
		at = at.Add(250 * time.Millisecond)
		x.receive(at, Member{Node: "me"})
		x.receive(at, Member{Node: "a"})
		silent := x.tick(at)
		if i < 4 {
			require.Empty(t, silent)
		} else {
			require.Equal(t, []string{"b"}, silent)
		}
	}
	require.Empty(t, x.tick(at), "it is reported once")
	require.True(t, x.alive("a") && x.alive("me"))
	require.False(t, x.alive("b") || x.alive("never seen"))
	require.Equal(t, 1, x.silentCount())
	require.True(t, x.receive(at, Member{Node: "b"}), "it is there again")
	require.True(t, x.alive("b"))
	x.receive(at, Member{Node: "b", Left: true})
	require.False(t, x.alive("b"), "it left")
	require.False(t, x.died("b", 0), "with a goodbye")
	require.False(t, x.died("never seen", 0))
	require.Zero(t, x.silentCount())
	require.False(t, x.finished("b"), "it computes nothing")
	x.receive(at, Member{Node: "c", Worker: &Worker{Gateways: map[string]int{"other": 1}}})
	require.False(t, x.finished("c"), "it is there")
	x.receive(at, Member{Node: "c", Left: true, Worker: &Worker{Gateways: map[string]int{"me": 1}}})
	require.False(t, x.finished("c"), "with a sequence of this node")
	x.receive(at, Member{Node: "c", Left: true, Worker: &Worker{Gateways: map[string]int{"other": 1}}})
	require.True(t, x.finished("c"))
}

// TestAListThatWasGivenOutStaysAsItIs, while nodes come, go and have news.
func TestAListThatWasGivenOutStaysAsItIs(t *testing.T) {
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at)
	for _, node := range []string{"d", "b", "c"} {
		x.receive(at, Member{Node: node})
	}
	first := x.live()
	x.receive(at, Member{Node: "c", Requests: 7})
	second := x.live()
	x.receive(at, Member{Node: "a"})
	x.receive(at, Member{Node: "d", Left: true})
	_ = append(second, &Member{Node: "own"})
	require.Equal(t, []string{"b", "c", "d"}, names(first))
	require.Zero(t, first[1].Requests)
	require.Equal(t, []string{"b", "c", "d"}, names(second))
	require.Equal(t, 7, second[1].Requests)
	require.Equal(t, []string{"a", "b", "c"}, names(x.live()))
	x.receive(at, Member{Node: "d", Left: true}) // one that is not there
	require.Equal(t, []string{"a", "b", "c"}, names(x.live()))
}

func TestANodeThatDoesNotHearItselfJudgesNobodyAndListensFirst(t *testing.T) {
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at)
	x.receive(at, Member{Node: "a"})
	at = at.Add(20 * time.Second)
	require.Empty(t, x.tick(at))
	require.True(t, x.partitioned)
	require.True(t, x.alive("a"))
	x.receive(at, Member{Node: "me"})
	require.Empty(t, x.tick(at), "it has a second to send a beat")
	require.False(t, x.partitioned)
	for range 5 {
		at = at.Add(250 * time.Millisecond)
		x.receive(at, Member{Node: "me"})
	}
	require.Equal(t, []string{"a"}, x.tick(at))
}

func TestALateNodeForWhichNobodyListensIsGoneAtOnce(t *testing.T) {
	const beat, dead = 250 * time.Millisecond, time.Second
	at := time.Unix(1000, 0)
	x := newTable("me", dead, at)
	word := func() string { return "w" }
	var number uint64
	late := func() (nodes []string) {
		for _, q := range x.late(at, word) {
			number = q.number
			require.Equal(t, "w", q.nonce)
			nodes = append(nodes, q.node)
		}
		return nodes
	}
	gone := func(node string) bool { return x.gone(at, probe{node, "w", number}) }
	hear := func(nodes ...string) {
		for _, node := range nodes {
			x.receive(at, Member{Node: node, BeatsEvery: beat})
		}
	}
	hear("a", "b")
	at = at.Add(beat)
	hear("me", "a")
	require.Empty(t, late())
	require.False(t, gone("b"), "its beat has just arrived")
	at = at.Add(beat/5 + 1)
	require.Equal(t, []string{"b"}, late())
	require.False(t, gone("a"), "it is not late: an answer from before it came back")
	require.False(t, gone("never seen"))
	require.False(t, x.gone(at, probe{"b", "", number}), "nobody's word")
	require.False(t, x.gone(at, probe{"b", "x", number}), "somebody else's")
	require.True(t, gone("b"))
	require.True(t, x.died("b", 0))
	require.False(t, x.died("b", number), "that probe did not find it")
	require.False(t, x.alive("b"))
	require.False(t, gone("b"), "it is reported once")
	require.Empty(t, late())
	require.False(t, x.receive(at.Add(beat-1), Member{Node: "b", BeatsEvery: beat}), "a beat that was on its way")
	require.False(t, x.alive("b"))
	at = at.Add(beat)
	x.echo = at
	require.True(t, x.receive(at, Member{Node: "b", BeatsEvery: beat}), "it is there again")
	require.False(t, x.died("b", 0))

	at = at.Add(dead)
	require.Empty(t, late(), "this node does not hear itself")
	hear("me", "b")
	at = at.Add(2 * dead) // others may need this long to come back, too
	x.echo = at
	require.Empty(t, late())
	require.False(t, gone("b"))
	at = at.Add(1)
	word = func() string { return "v" }
	require.Equal(t, []probe{{"a", "v", 2}, {"b", "v", 3}}, x.late(at, word))
	word = func() string { return "another" }
	require.Equal(t, []probe{{"a", "v", 4}, {"b", "v", 5}}, x.late(at, word), "the answer to the first one may be on its way")
	require.False(t, gone("b"), "the word of an answer from before it came back")
}

// TestTwoProbesWithoutASubscriptionSayThatANodeIsDead before its beat is late.
func TestTwoProbesWithoutASubscriptionSayThatANodeIsDead(t *testing.T) {
	const beat = 250 * time.Millisecond
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at.Add(-time.Minute))
	hear := func() {
		x.receive(at, Member{Node: "a", BeatsEvery: beat})
		x.receive(at, Member{Node: "me"})
	}
	number := uint64(0)
	gone := func() bool { number++; return x.gone(at, probe{"a", "w", number}) }
	hear()
	x.back = time.Time{} // this node's own connection is long there
	x.probe("a", func() string { return "w" })
	require.False(t, gone(), "the answer may be older than the beat")
	at = at.Add(beat / absentFor)
	require.False(t, gone(), "it is too early")
	hear()
	x.probe("a", func() string { return "w" })
	at = at.Add(1)
	require.False(t, gone(), "the first one since its beat")
	at = at.Add(beat/absentFor + 1)
	x.back = at
	require.False(t, gone(), "it may have to reconnect, as this node did")
	x.back = time.Time{}
	require.True(t, gone())
	require.False(t, x.alive("a"))
	require.False(t, gone(), "it is reported once")
}

func TestANodeDiesAfterTheProbesThatFoundItAndBeforeThoseThatDidNot(t *testing.T) {
	const beat = 250 * time.Millisecond
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at.Add(-time.Minute))
	word := func() string { return "w" }
	hear := func(m Member) { m.BeatsEvery = beat; x.receive(at, m); x.receive(at, Member{Node: "me"}) }
	hear(Member{Node: "a"})
	require.Equal(t, probe{node: "b", number: 1}, x.probe("b", word), "a node that is not known is not probed")
	found, lost, lostToo := x.probe("a", word), x.probe("a", word), x.probe("a", word)
	require.False(t, x.gone(at, lostToo), "its beat is not late yet")
	require.True(t, x.alive("a"))
	require.False(t, x.died("a", found.number), "it may have lost its connection only")
	require.False(t, x.gone(at, lost))
	x.back = time.Time{} // this node's own connection is long there
	at = at.Add(2 * beat)
	x.echo = at
	last := x.late(at, word)
	require.Len(t, last, 1)
	require.True(t, x.gone(at, last[0]))
	require.True(t, x.died("a", found.number))
	require.False(t, x.died("a", lost.number))
	require.False(t, x.died("a", lostToo.number))

	at = at.Add(beat)
	hear(Member{Node: "a"}) // it is back
	again := x.probe("a", word)
	require.False(t, x.gone(at, probe{"a", "", again.number}))
	at = at.Add(time.Minute)
	x.echo = at
	x.tick(at)
	require.False(t, x.alive("a"))
	require.False(t, x.died("a", again.number), "silence is not death")
	hear(Member{Node: "a", Left: true})
	require.False(t, x.died("a", found.number), "nor is a goodbye")
}

func TestASlowBeaterIsNotDeadBetweenItsBeats(t *testing.T) {
	at := time.Unix(1000, 0)
	x := newTable("me", time.Second, at)
	x.receive(at, Member{Node: "a", BeatsEvery: time.Second})
	at = at.Add(2500 * time.Millisecond)
	x.echo = at
	require.Empty(t, x.tick(at))
	at = at.Add(time.Second)
	x.echo = at
	require.Equal(t, []string{"a"}, x.tick(at))
	at = at.Add(2 * forget)
	x.echo = at
	x.tick(at)
	require.Empty(t, x.members, "forgotten")
}

func TestNodesHaveNumbersOfTheirOwn(t *testing.T) {
	a, b := NewKey().Node(), NewKey().Node()
	require.NotEqual(t, a, b)
	require.Equal(t, uint64(a), a.First()>>32)
	require.Len(t, a.String(), 9)
}

func TestAnObservedListLeavesOutWhatIsSilentForLong(t *testing.T) {
	begin := time.Now()
	table := newTable("", 0, begin)
	table.receive(begin, Member{Node: "old"})
	table.receive(begin.Add(time.Second), Member{Node: "new"})
	require.Len(t, table.observed(begin.Add(forget)), 2)
	list := table.observed(begin.Add(forget + time.Second))
	require.Len(t, list, 1)
	require.Equal(t, "new", list[0].Node)
}
