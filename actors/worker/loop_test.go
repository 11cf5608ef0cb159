package worker

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/computetest"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/kvmgr"
	"github.com/millrace/millrace/tracing"
)

// What waits for memory, or is refused, may be many choices of a long prompt.
func TestASequenceCopiesItsPromptWhenItIsAdmitted(t *testing.T) {
	cfg := Config{Runner: computetest.NewNull(64, 4096, 1),
		Sched: sched.Config{MaxBatchTokens: 64, MaxBatchSize: 8, MaxSequenceTokens: 2048, KV: kvmgr.NewSpec(16, kvmgr.Full{}),
			LeaseAheadTokens: 32}, Tracer: tracing.Off()}
	s, err := sched.New(cfg.Sched)
	require.NoError(t, err)
	l := newLoop(cfg, s) // one that does not run
	prompt := []int32{1, 2, 3}
	g := &msg.Generate{Seq: 7, Choices: []msg.SeqID{7}, Prompt: prompt, Generated: []int32{4}, MaxTokens: 9}
	l.submit(g)
	q := l.sequences[7]
	require.NotNil(t, q)
	require.Nil(t, q.tokens)
	require.Nil(t, q.sampler)
	require.Equal(t, []int32{4}, q.answer(), "what another worker made of it")
	l.begin(q)
	require.Equal(t, []int32{1, 2, 3, 4}, q.tokens)
	require.Equal(t, []int32{4}, q.answer())
	require.NotNil(t, q.sampler)
}

func TestABeamSearchOfAnEarlierGatewayEndsWhereThereAreNone(t *testing.T) {
	for _, g := range []kvmgr.Group{kvmgr.Full{Head: 3}, kvmgr.Bounded{Slabs: 3}} {
		requireNoBeams(t, kvmgr.NewSpec(16, g))
	}
}

func requireNoBeams(t *testing.T, kv kvmgr.Spec) {
	t.Helper()
	l := newIdleLoop(t, Config{})
	l.Sched.KV = kv
	g := &msg.Generate{Seq: 7, Choices: []msg.SeqID{7}, Prompt: []int32{1}, MaxTokens: 9, Beams: &sample.BeamParams{Width: 2}}
	l.inFlight.open(g)
	l.submit(g)
	require.Empty(t, l.sequences)
	require.Empty(t, l.events)
	g.Beams = nil
	l.inFlight.open(g)
	l.submit(g)
	require.Len(t, l.sequences, 1)
	require.Len(t, l.events, 1)
}

func TestAnAnswerOfWhichOnlyTheEndIsMissingEndsForItsReason(t *testing.T) {
	for _, c := range []struct {
		tokens []int32
		most   int
		finish api.Finish
	}{
		{nil, 3, api.FinishNone},
		{[]int32{5, 6}, 3, api.FinishNone},
		{[]int32{5, 6, 7}, 3, api.FinishLength},
		{[]int32{5, 6, 9}, 3, api.FinishStop},
		{[]int32{5, 9}, 3, api.FinishStop},
		{[]int32{5, 6, 7, 8}, 4, api.FinishLength},
	} {
		require.Equal(t, c.finish, over(&msg.Generate{Generated: c.tokens, MaxTokens: c.most, StopTokens: []int32{9}}))
	}
}

func TestRestartsAreBoundedInTime(t *testing.T) {
	var r restarts
	for _, c := range []struct {
		at    time.Duration
		allow bool
	}{
		{0, true}, {10 * time.Second, true}, {59 * time.Second, true}, {59 * time.Second, false},
		{time.Minute, true}, {61 * time.Second, false}, {70 * time.Second, true},
	} {
		require.Equal(t, c.allow, r.allow(c.at), "at %s", c.at)
	}
}

// TestARequestWithoutMemoryEndsWithItsNumbers: it is valid, so its client may try again.
func TestARequestWithoutMemoryEndsWithItsNumbers(t *testing.T) {
	l := newIdleLoop(t, Config{})
	g := &msg.Generate{Seq: 7, Choices: []msg.SeqID{7}, Prompt: []int32{1}, MaxTokens: 9}
	l.inFlight.open(g)
	l.submit(g)
	require.NoError(t, l.answer(&msg.KVRound{Denied: []msg.Denied{{Seq: 7, Need: 8, Free: 3, Pool: 40, NoMemory: true}}}))
	require.Equal(t, []sched.Event{sched.NoMemory(7, 8, 3)}, l.events[1:])
	finish, err := ending(sched.End{ID: 7, Reason: sched.ReasonNoMemory}, l.sequences[7].lacks)
	require.Equal(t, api.FinishError, finish)
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeOverloaded, e.Code)
	require.Positive(t, e.RetryAfter)
	require.Contains(t, e.Message, "needs KV memory for 8 slabs, and the machine has it for 3 now")
}
