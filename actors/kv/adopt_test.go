package kv

import (
	"os"
	"sync"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr/chain"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// heirs is a pair with files for their pools.
type heirs struct {
	*pair
	pools *kvfile.Dir
	files [2]*kvfile.File
	slabs int
}

func newHeirs(t *testing.T, numerics [2]string) *heirs {
	t.Helper()
	return newHeirsWith(t, numerics, func(*Config) {})
}

func newHeirsWith(t *testing.T, numerics [2]string, configure func(*Config)) *heirs {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(path)) })
	h := &heirs{}
	h.pools, err = kvfile.Open(path, func(err error) { t.Error(err) })
	require.NoError(t, err)
	t.Cleanup(h.pools.Close)
	h.pair = newPairWith(t, numerics, func(i int, c *Config) {
		configure(c)
		f, err := h.pools.Create(c.Slabs, testBytes)
		require.NoError(t, err)
		t.Cleanup(f.Close)
		h.files[i], h.slabs = f, c.Slabs
		c.Node, c.Pools, c.Pool = node(i), h.pools, func() *kvfile.File { return h.files[i] }
	})
	return h
}

func node(i int) string { return [2]string{"n0", "n1"}[i] }

// die ends the lock of a pool, as the end of its process does, with what is in its memory then.
func (h *heirs) die(i int) {
	h.t.Helper()
	fd, offset := h.files[i].Fd()
	for slab, data := range h.memories[i].slabs[:h.slabs] {
		_, err := unix.Pwrite(int(fd), data[:], offset+int64(slab)*testBytes)
		require.NoError(h.t, err)
	}
	require.NoError(h.t, unix.Flock(int(fd), unix.LOCK_UN))
}

// adopt continues a sequence of the first manager at the second one.
func (h *heirs) adopt(seq msg.SeqID, tenant string, complete bool, tokens []int32) (n int, first []byte) {
	h.t.Helper()
	source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: seq, Dead: true, Complete: complete}
	g := &msg.Generate{Seq: seq + 100, Prompt: tokens[:10], Generated: tokens[10:], Tenant: tenant, Source: &source}
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	imported := next[*msg.Imported](h.pair)
	require.Equal(h.t, seq+100, imported.Generate.Seq)
	n, first = h.cached(seq+100, tenant, tokens)
	require.Equal(h.t, n > 0, imported.Adopted)
	return n, first
}

func TestTheSlabsOfADeadWorkerAreAdopted(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens) // two full slabs are offered, the third one is computed
	h.die(0)
	n, first := h.adopt(1, "a", true, tokens)
	require.Equal(t, 39, n)
	require.Equal(t, []byte{1, 0, 1, 1}, first)
}

// TestRoundsAreServedBetweenTwoAdoptions sends a round while the first of two sequences is adopted. The other one waits for longer
// than a transfer from a living worker does.
func TestRoundsAreServedBetweenTwoAdoptions(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := [2][]int32{prompt(100, 40), prompt(500, 40)}
	for i, p := range tokens {
		h.runs(msg.SeqID(i+1), "a", p)
	}
	h.die(0)
	copying, held := make(chan struct{}), make(chan struct{})
	begin := sync.OnceFunc(func() {
		close(copying)
		<-held
	})
	h.memories[1].before = begin
	for i, p := range tokens {
		source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: msg.SeqID(i + 1), Dead: true, Complete: true}
		g := &msg.Generate{Seq: source.Seq + 100, Prompt: p[:10], Generated: p[10:], Tenant: "a", Source: &source}
		h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	}
	<-copying
	h.system.Root.Send(h.managers[1].PID(), &msg.KVRound{Reply: h.self})
	time.AfterFunc(fetchPatience+100*time.Millisecond, func() { close(held) })
	first := next[*msg.Imported](h.pair)
	require.Equal(t, msg.SeqID(101), first.Generate.Seq)
	require.True(t, first.Adopted)
	next[*msg.KVRound](h.pair)
	second := next[*msg.Imported](h.pair)
	require.Equal(t, msg.SeqID(102), second.Generate.Seq)
	require.True(t, second.Adopted)
}

func TestOfAStepWithoutATokenNothingIsAdopted(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.die(0)
	n, _ := h.adopt(1, "a", false, tokens)
	require.Equal(t, 32, n, "the slabs that were offered are full")
}

func TestWhatAnotherSequenceOverwroteIsNotAdopted(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.ends(1, tokens)
	h.runs(2, "a", prompt(900, 140)) // nine of the ten slabs
	h.die(0)
	n, _ := h.adopt(1, "a", true, tokens)
	require.Less(t, n, 32)
}

func TestThePoolOfAnotherClassIsNotAdopted(t *testing.T) {
	h := newHeirs(t, [2]string{"n layout", "n other"})
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.die(0)
	n, _ := h.adopt(1, "a", true, tokens)
	require.Zero(t, n)
}

// TestASequenceThatComesTwiceIsReleasedOnce: its source dies while slabs are copied, and leaves nothing.
func TestASequenceThatComesTwiceIsReleasedOnce(t *testing.T) {
	h := newHeirs(t, equals)
	h.change = func(*msg.Slab) *msg.Slab { return nil }
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	begin := func() {
		h.system.Root.Send(h.managers[1].PID(), &msg.Prefetch{Reply: h.self, Source: h.source(1), Space: "a", Tokens: tokens})
	}
	begin()
	source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: 1, Dead: true, Complete: true}
	g := &msg.Generate{Seq: 101, Prompt: tokens[:10], Generated: tokens[10:], Tenant: "a", Source: &source}
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	next[*msg.Prefetched](h.pair)
	next[*msg.Imported](h.pair)
	begin() // releases the kept slabs
	require.Equal(t, msg.SeqID(1), next[*msg.Prefetched](h.pair).Seq)
	h.clean(1)
}

func TestThePoolOfALivingWorkerIsNotAdopted(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	n, _ := h.adopt(1, "a", true, tokens)
	require.Zero(t, n)
}

// beginsAnew starts a sequence at the second manager.
func (h *heirs) beginsAnew(seq msg.SeqID, tenant string, tokens []int32) {
	h.t.Helper()
	h.pools.Sweep(time.Now(), time.Minute) // as each process does
	g := &msg.Generate{Seq: seq, Prompt: tokens, MaxTokens: 4, Tenant: tenant}
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	require.Equal(h.t, seq, next[*msg.Imported](h.pair).Generate.Seq)
}

// begins starts a sequence at the second manager, and returns what it found there.
func (h *heirs) begins(seq msg.SeqID, tenant string, tokens []int32) (n int, first []byte) {
	h.t.Helper()
	h.beginsAnew(seq, tenant, tokens)
	return h.cached(seq, tenant, tokens)
}

func TestANewSequenceFindsThePrefixesOfADeadWorker(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.die(0)
	n, _ := h.begins(7, "b", tokens)
	require.Zero(t, n, "they are of another tenant")
	n, first := h.begins(8, "a", append(tokens[:32:32], prompt(500, 20)...))
	require.Equal(t, 32, n)
	require.Equal(t, []byte{1, 0}, first[:2])
}

func TestANewSequenceDoesNotWaitForRoomToAdopt(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.die(0)
	h.pools.Sweep(time.Now(), time.Minute)
	r := h.round(1, &msg.KVRound{Reserve: []msg.Reserve{{Seq: 5, Tokens: 150, Promise: 150, Lease: 150, Known: prompt(900, 140)}}})
	require.Len(t, r.Granted, 1)
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self,
		Generate: &msg.Generate{Seq: 7, Prompt: tokens, MaxTokens: 4, Tenant: "a"}})
	h.system.Root.Send(h.managers[1].PID(), &msg.KVRound{Reply: h.self})
	require.Equal(t, msg.SeqID(7), next[*msg.Imported](h.pair).Generate.Seq, "it comes first")
	next[*msg.KVRound](h.pair)
}

func TestAnotherTenantAdoptsNoPrefix(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 40)
	h.runs(1, "a", tokens)
	h.die(0)
	n, _ := h.adopt(1, "b", false, tokens)
	require.Zero(t, n)
}

// A worker that is killed while it copies slabs leaves those that are whole, and no sequence.
func TestOfACopyThatWasCutWholeSlabsRemain(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 60)
	h.runs(1, "a", tokens)
	h.held(tokens)
	h.settle()
	h.die(1)
	dead := h.pools.Dead(node(1), equals[1])
	require.NotNil(t, dead)
	for i, hash := range chain.Of("a", 16, tokens) {
		_, ok := dead.Stored(hash)
		require.Equal(t, i < 2, ok)
		_, ok = dead.Leased(101, i)
		require.False(t, ok)
	}
}

// TestASequenceWhoseSourceDiesAfterItLeftIsAdopted: its slabs are no longer awaited.
func TestASequenceWhoseSourceDiesAfterItLeftIsAdopted(t *testing.T) {
	h := newHeirs(t, equals)
	tokens := prompt(100, 60)
	h.runs(1, "a", tokens)
	h.ends(1, tokens)
	source := msg.Source{KV: actor.NewPID(node(0), msg.KVActor), Seq: 1} // where nothing is received
	g := &msg.Generate{Seq: 101, Prompt: tokens[:10], Generated: tokens[10:], Tenant: "a", Source: &source}
	begin := time.Now()
	h.system.Root.Send(h.managers[1].PID(), &msg.Import{Reply: h.self, Generate: g})
	h.settle()
	h.die(0)
	require.True(t, next[*msg.Imported](h.pair).Adopted)
	require.Less(t, time.Since(begin), fetchPatience)
	n, _ := h.cached(101, "a", tokens)
	require.Equal(t, 48, n, "the whole slabs")
}
