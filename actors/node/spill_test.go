package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/metrics/metricstest"
)

// often is the interval of steps that leaves the processors to others.
const often = 200 * time.Microsecond

// spilling is a worker that promises predicted answers, with memory for a sequence and a half of growing, and a tier for many.
func spilling(t *testing.T, size int64) (*Node, *testDevice, string) {
	t.Helper()
	d := newTestDevice(0)
	cfg := testConfig(t, d)
	short(&cfg)
	dir := t.TempDir()
	cfg.KVSpill = KVDisk{Dir: dir, Size: size}
	p := start(t, cfg)
	t.Cleanup(d.open1)
	return p, d, dir
}

func (p *Node) sum(t *testing.T, name string) int {
	t.Helper()
	return int(metricstest.Sum(t, p.cfg.Metrics.Registry(), name))
}

// requireReturns runs n sequences, of which some wait in the tier: all reach their ends, and no token is computed again.
func requireReturns(t *testing.T, p *Node, d *testDevice, n int) {
	t.Helper()
	var streams []api.Stream
	d.held.Lock() // on a busy machine the first would end before the last begins
	for i := range n {
		s, err := p.Submit(t.Context(), growing(i))
		require.NoError(t, err)
		streams = append(streams, s)
	}
	all := assert.Eventually(t, func() bool { return p.worker.InFlight() == n }, patience, time.Millisecond)
	d.held.Unlock()
	require.True(t, all)
	for i, s := range streams {
		requireGrown(t, d, s, i)
	}
	require.Positive(t, p.sum(t, "millrace_kv_spill_restores_total"))
	require.Zero(t, p.sum(t, "millrace_kv_spill_replays_total"))
	require.Zero(t, p.sum(t, "millrace_recomputed_tokens_total"))
	require.Zero(t, p.kv.Stats().Spilled)
	requireClean(t, p, d)
}

// TestSpilledSequencesReachTheirEnds: sequences, of which each may need most of the memory, run at once.
func TestSpilledSequencesReachTheirEnds(t *testing.T) {
	p, d, _ := spilling(t, 400)
	d.open1()
	requireReturns(t, p, d, 4)
}

// spilledOne starts two sequences and returns when one of them is in the tier.
func spilledOne(t *testing.T) (p *Node, d *testDevice, dir string, streams []api.Stream) {
	t.Helper()
	p, d, dir = spilling(t, 400)
	for i := range 2 {
		s, err := p.Submit(t.Context(), growing(i))
		require.NoError(t, err)
		streams = append(streams, s)
		feed(t, d, often, func() bool { return p.worker.Running() == i+1 })
	}
	feed(t, d, often, func() bool { return p.worker.Running() == 1 })
	state, err := p.KVState(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, "ok", state.Check)
	require.Len(t, state.Regions, 2)
	require.Positive(t, state.Stats.Spilled)
	require.Equal(t, state.Stats.Spilled, state.Regions[0].SpilledSlabs+state.Regions[1].SpilledSlabs)
	return p, d, dir, streams
}

func TestADamagedCopyInTheTierCostsAReplay(t *testing.T) {
	p, d, dir, streams := spilledOne(t)
	flip(t, dir)
	d.open1()
	for i, s := range streams {
		requireGrown(t, d, s, i)
	}
	require.Equal(t, 1, p.sum(t, "millrace_kv_spill_replays_total"))
	require.Positive(t, p.sum(t, "millrace_recomputed_tokens_total"))
	requireClean(t, p, d)
}

// flip changes a byte of each slot of the process's file in a directory, which has no name there any more.
func flip(t *testing.T, dir string) {
	t.Helper()
	links, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || !strings.HasPrefix(to, dir) {
			continue
		}
		f, err := os.OpenFile(link, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		raw := make([]byte, 400)
		_, err = f.ReadAt(raw, 0)
		require.NoError(t, err)
		for i := range raw {
			raw[i] ^= 1
		}
		_, err = f.WriteAt(raw, 0)
		require.NoError(t, err)
		return
	}
	t.Fatal("no file is open in " + dir)
}

func TestASpilledSequenceThatIsCanceledReturnsItsSlots(t *testing.T) {
	p, d, _, streams := spilledOne(t)
	streams[1].Close()
	feed(t, d, time.Millisecond, func() bool { return p.kv.Stats().Spilled == 0 })
	d.open1()
	requireGrown(t, d, streams[0], 0)
	require.Zero(t, p.sum(t, "millrace_kv_spill_restores_total"))
	requireClean(t, p, d)
}

func TestSpilledSequencesAreAnsweredWhenTheDeviceIsLoadedAgain(t *testing.T) {
	p, d, _, streams := spilledOne(t)
	d.mu.Lock()
	d.failAt = []int{d.steps + 1}
	d.mu.Unlock()
	d.open1()
	for _, s := range streams {
		_, last, err := read(s)
		require.NoError(t, err)
		require.Equal(t, api.CodeUnavailable, api.AsError(last.Err).Code)
	}
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond, "readiness comes back")
	s, err := p.Submit(t.Context(), growing(2))
	require.NoError(t, err)
	requireGrown(t, d, s, 2)
	requireClean(t, p, d)
}

func TestASpilledSequenceContinuesElsewhere(t *testing.T) {
	for _, dies := range []bool{true, false} {
		t.Run(fmt.Sprintf("dies %t", dies), func(t *testing.T) {
			c := newTestNodes(t)
			gateway, _, _, compute := four(c, 2, func(c *Config) {
				short(c)
				c.KVSpill = KVDisk{Dir: t.TempDir(), Size: 400}
			})
			var streams []api.Stream
			for i := range 8 { // more than two of them at each worker, however they are placed
				s, err := gateway.Submit(context.Background(), growing(i))
				require.NoError(t, err)
				streams = append(streams, s)
			}
			for _, w := range compute {
				feed(t, w.device, often, func() bool { return w.kv.Stats().Spilled > 0 })
			}
			if dies {
				compute[0].kill()
				compute[1].device.open1()
			} else {
				compute[1].device.open1()
				compute[0].device.open1()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				require.NoError(t, compute[0].Close(ctx))
				defer compute[0].once.Do(compute[0].conn.Close)
			}
			for i, s := range streams {
				requireGrown(t, compute[1].device, s, i)
			}
			if !dies {
				require.Zero(t, compute[1].counter(t, "millrace_recomputed_tokens_total"))
			}
			requireClean(t, compute[1].Node, compute[1].device)
		})
	}
}

// hugeSlabs is a device whose slabs fit on no disk.
type hugeSlabs struct{ *testDevice }

func (hugeSlabs) SlabBytes() int { return 1 << 50 }

func TestATierThatDoesNotFitOnTheDiskIsAnError(t *testing.T) {
	d := newTestDevice(50)
	cfg := testConfig(t, d)
	cfg.Model = hugeSlabs{d}
	cfg.KVSpill = KVDisk{Dir: t.TempDir(), Size: 1 << 60}
	_, err := New(cfg)
	require.ErrorContains(t, err, "--kv-spill-size")
}
