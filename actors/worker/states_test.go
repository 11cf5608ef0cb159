package worker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/metrics"
)

// copier notes the copies of slabs.
type copier struct {
	*computetest.Null
	compute.Region
	copies [][3]int32
}

func (c *copier) CopySlab(from, to int32, tokens int) error {
	c.copies = append(c.copies, [3]int32{from, to, int32(tokens)})
	return nil
}

// stateLoop is an idle loop with a sequence of 60 tokens whose state is that of the first 48.
func stateLoop(t *testing.T) (*loop, *copier, *sequence) {
	t.Helper()
	l := newIdleLoop(t, Config{Stage: metrics.New(metrics.Build{}).Stage("compute")})
	c := &copier{Null: computetest.NewNull(64, 4096, 1)}
	l.Sched.KV, l.Runner, l.states = kvmgr.NewSpec(16, kvmgr.Full{}, kvmgr.State{Slabs: 2, Every: 16}), c, true
	s := &sequence{gen: &msg.Generate{Seq: 7}, tokens: make([]int32, 60), head: []int32{3, 4}, stands: 48, region: c}
	l.sequences[7] = s
	return l, c, s
}

// TestASnapshotIsTakenWhileTheStateIsThere: slabs that come after the sequence's next step are not used.
func TestASnapshotIsTakenWhileTheStateIsThere(t *testing.T) {
	l, c, s := stateLoop(t)
	l.lending = 4
	require.NoError(t, l.snapshot(&msg.Lent{Seq: 7, Tokens: 32, Slabs: []int32{8, 9}}), "it is late")
	require.NoError(t, l.snapshot(&msg.Lent{Seq: 8, Tokens: 48, Slabs: []int32{8, 9}}), "which has ended")
	require.Empty(t, c.copies)
	require.Empty(t, l.commits)
	l.offer(s, 48, false)
	require.NoError(t, l.snapshot(&msg.Lent{Seq: 7, Tokens: 48, Slabs: []int32{8, 9}}))
	require.Equal(t, [][3]int32{{3, 8, 16}, {4, 9, 16}}, c.copies)
	require.Len(t, l.commits, 1)
	require.True(t, l.commits[0].State)
	l.commits = nil // they were sent
	require.NoError(t, l.snapshot(&msg.Lent{Seq: 7, Tokens: 48, Slabs: []int32{8, 9}}))
	require.Equal(t, []msg.Commit{{Seq: 7, Tokens: s.tokens[:48], State: true}}, l.commits)
	s.closes = true
	require.NoError(t, l.snapshot(&msg.Lent{Seq: 7, Tokens: 48, Slabs: []int32{8, 9}}))
	require.Len(t, c.copies, 4, "its region is being unmapped")
}

// TestAStateIsOfferedWithItsTokens: of a sequence that ends, also before its first token.
func TestAStateIsOfferedWithItsTokens(t *testing.T) {
	l, _, s := stateLoop(t)
	l.offerAll(s)
	require.Equal(t, []msg.Commit{{Seq: 7, Tokens: s.tokens[:48], Tail: true, State: true}}, l.commits)
	l.commits, s.stands = nil, 0
	l.offerAll(s)
	require.Empty(t, l.commits)
	l.states = false
	l.offerAll(s)
	require.Empty(t, l.commits, "which are not computed")
	s.decodes = true
	l.offerAll(s)
	require.Equal(t, []msg.Commit{{Seq: 7, Tokens: s.tokens[:59], Tail: true}}, l.commits)
}

// TestALoopWaitsForLentSlabsBriefly, and requests them for chunks that end with a snapshot.
func TestALoopWaitsForLentSlabsBriefly(t *testing.T) {
	l, c, _ := stateLoop(t)
	m := &msg.KVRound{}
	l.lend(m, &sched.Plan{Chunks: []sched.Chunk{{ID: 5, Start: 9, Rows: 1}, {ID: 7, Start: 16, Rows: 32, Snapshot: true}}})
	require.Equal(t, []msg.Lend{{Seq: 7, Tokens: 48}}, m.Lend)
	require.Equal(t, 1, l.lending)
	l.AdmitPatience = time.Millisecond
	l.awaitLent()
	require.Equal(t, 1, l.lending, "it continues without them")
	l.AdmitPatience = time.Hour
	l.unanswered, m.Lent = 1, []msg.Lent{{Seq: 7, Tokens: 48}} // no room
	l.inbox.push(m)
	l.awaitLent()
	require.Zero(t, l.lending)
	require.Empty(t, c.copies)
}
