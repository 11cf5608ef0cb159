package kv

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/kvmgr"
)

const (
	testSlabBytes = 16 << 20 // two of them are committed ahead of need
	testTotal     = 16 << 30 // so the machine is short below 1 GiB
)

// testPages is the memory of a pool's slabs on a made-up machine.
type testPages struct {
	Memory
	start int

	mu        sync.Mutex
	available uint64
	committed map[int32]bool
	err       error         // of the next commitments
	gate      chan struct{} // nil: open
	discarded int
}

func newTestPages(start int, available uint64) *testPages {
	p := &testPages{start: start, available: available, committed: map[int32]bool{}}
	for id := range int32(start) {
		p.committed[id] = true
	}
	return p
}

func (*testPages) SlabBytes() int        { return testSlabBytes }
func (p *testPages) CommittedSlabs() int { return p.start }

func (p *testPages) CommitSlabs(first int32, n int) error {
	if p.gate != nil {
		<-p.gate
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	for id := first; id < first+int32(n); id++ {
		p.committed[id] = true
	}
	p.available -= uint64(n) * testSlabBytes
	return nil
}

func (p *testPages) DiscardSlabs(first int32, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := first; id < first+int32(n); id++ {
		delete(p.committed, id)
	}
	p.discarded += n
	p.available += uint64(n) * testSlabBytes
	return nil
}

func (p *testPages) FreeMemory() (available, total uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.available, testTotal, nil
}

func (p *testPages) set(available uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.available, p.err = available, err
}

// has fails unless all slabs have memory.
func (p *testPages) has(t *testing.T, slabs []int32) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range slabs {
		require.True(t, p.committed[id], "slab %d", id)
	}
}

func newSupplied(t *testing.T, p *testPages, whole bool) *testManager {
	t.Helper()
	return newTestManagerOf(t, Config{Slabs: 40, Memory: p, Pages: p, Whole: whole})
}

// freed waits until denied requests may have room.
func (m *testManager) freed() {
	m.t.Helper()
	select {
	case r := <-m.ready:
		require.True(m.t, r.Freed)
	case <-time.After(20 * time.Second):
		m.t.Fatal("denied requests are not repeated")
	}
}

// wait waits for a number of committed slabs.
func (m *testManager) wait(committed int) {
	m.t.Helper()
	require.Eventually(m.t, func() bool { return m.Stats().Committed == committed }, 20*time.Second, time.Millisecond,
		"%d slabs are committed", committed)
}

func (m *testManager) reserve(seq msg.SeqID, slabs int) *msg.KVRound {
	m.t.Helper()
	return m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: seq, Tokens: slabs * 16, Promise: slabs * 16, Lease: slabs * 16}}})
}

// TestARequestWaitsForItsMemoryAndNotLonger: it is denied, what it lacks is committed, and it is granted. More is committed ahead of the
// next one.
func TestARequestWaitsForItsMemoryAndNotLonger(t *testing.T) {
	p := newTestPages(3, testTotal)
	m := newSupplied(t, p, false)
	r := m.reserve(1, 3)
	require.Len(t, r.Granted, 1, "what is there from the start")
	m.wait(5)
	r = m.reserve(2, 9)
	require.Equal(t, []msg.Denied{{Seq: 2, Need: 9, Free: 2, Pool: 40}}, r.Denied)
	m.freed()
	r = m.reserve(2, 9)
	require.Len(t, r.Granted, 1)
	p.has(t, r.Granted[0].Slabs)
	m.wait(14)
	state, err := m.State(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
	require.Equal(t, Bytes{40 * testSlabBytes, 14 * testSlabBytes, 12 * testSlabBytes, 0}, state.Bytes)
	require.Equal(t, kvmgr.Stats{Slabs: 40, Committed: 14, Used: 12, Free: 28, Regions: 2}, state.Stats)
}

// TestNoRequestBeginsWithoutMemory: while the machine has none, or refuses it, others run on, and the request begins when there is some.
func TestNoRequestBeginsWithoutMemory(t *testing.T) {
	for name, scarce := range map[string]func(*testPages){
		"little is available": func(p *testPages) { p.set(testTotal/64, nil) },
		"the system refuses":  func(p *testPages) { p.set(testTotal, errors.New("no space")) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestPages(3, testTotal)
			scarce(p)
			m := newSupplied(t, p, false)
			require.False(t, m.reserve(4, 4).Denied[0].NoMemory, "the machine may have some")
			m.freed()
			require.Equal(t, []msg.Denied{{Seq: 4, Need: 4, Free: 3, Pool: 40, NoMemory: true}}, m.reserve(4, 4).Denied,
				"nobody returns anything")
			require.Len(t, m.reserve(1, 2).Granted, 1)
			require.Len(t, m.reserve(2, 2).Denied, 1)
			require.Eventually(t, func() bool { return m.Stats().Free == 1 }, 20*time.Second, time.Millisecond,
				"what the machine has not is not offered to gateways")
			require.Len(t, m.round(&msg.KVRound{Extend: []msg.Extend{{Seq: 1, UpTo: 32, Promise: 32}}}).Granted, 1)
			m.round(&msg.KVRound{Release: []msg.SeqID{1}})
			require.Len(t, m.reserve(2, 2).Granted, 1, "what others return")
			require.Len(t, m.reserve(3, 2).Denied, 1)
			p.set(testTotal, nil)
			m.root.Send(m.PID(), &pressure{})
			m.freed()
			for len(m.reserve(3, 2).Denied) > 0 {
				m.freed()
			}
			require.Empty(t, m.broken)
		})
	}
}

// TestCachedSlabsGoBackToAMachineThatIsShort, as many as it needs, and none that a sequence has or will need.
func TestCachedSlabsGoBackToAMachineThatIsShort(t *testing.T) {
	p := newTestPages(3, testTotal)
	m := newSupplied(t, p, false)
	prompt := make([]int32, 10*16)
	for len(m.round(&msg.KVRound{Reserve: []msg.Reserve{{Seq: 1, Tokens: 160, Promise: 160, Lease: 160, Known: prompt}}}).Denied) > 0 {
		m.freed()
	}
	for len(m.reserve(2, 4).Denied) > 0 {
		m.freed()
	}
	m.round(&msg.KVRound{Commit: []msg.Commit{{Seq: 1, Tokens: prompt}}, Release: []msg.SeqID{1}})
	m.wait(16)
	require.Equal(t, 10, m.Stats().Cached)
	p.set(testTotal/16-3*testSlabBytes, nil)
	m.root.Send(m.PID(), &pressure{})
	m.wait(13)
	require.Equal(t, 9, m.Stats().Cached, "free ones go first")
	p.set(0, nil)
	m.root.Send(m.PID(), &pressure{})
	m.wait(4)
	state, err := m.State(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
	require.Equal(t, 4, state.Stats.Used)
	require.Eventually(t, func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.discarded == 12 }, 20*time.Second, time.Millisecond)
	m.round(&msg.KVRound{Release: []msg.SeqID{2}})
	m.root.Send(m.PID(), &pressure{})
	m.wait(3)
	p.set(testTotal, nil)
	require.Len(t, m.reserve(3, 5).Denied, 1)
	m.freed()
	r := m.reserve(3, 5)
	require.Len(t, r.Granted, 1, "what went back can be had again")
	p.has(t, r.Granted[0].Slabs)
}

// TestRoundsAreServedWhileThePoolGrows: what commits is beside the KV manager.
func TestRoundsAreServedWhileThePoolGrows(t *testing.T) {
	p := newTestPages(3, testTotal)
	p.gate = make(chan struct{})
	m := newSupplied(t, p, false)
	require.Len(t, m.reserve(1, 5).Denied, 1)
	require.Len(t, m.reserve(2, 1).Granted, 1)
	require.Empty(t, m.round(&msg.KVRound{Release: []msg.SeqID{2}}).Granted)
	close(p.gate)
	m.freed()
	require.Len(t, m.reserve(1, 5).Granted, 1)
}

// TestAPoolOfAGivenSizeHasAllOfItsMemorySoon, and keeps it.
func TestAPoolOfAGivenSizeHasAllOfItsMemorySoon(t *testing.T) {
	p := newTestPages(3, testTotal)
	m := newSupplied(t, p, true)
	m.wait(40)
	p.set(0, nil)
	m.root.Send(m.PID(), &pressure{})
	require.Len(t, m.reserve(1, 40).Granted, 1)
	require.Equal(t, 40, m.Stats().Committed)
}
