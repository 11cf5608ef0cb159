package node

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// submitMany starts n requests, every third a beam search, which have all got in
// before the device makes its first step. Each takes 100 tokens.
func submitMany(t *testing.T, p *Node, n int) []api.Stream {
	t.Helper()
	streams := make([]api.Stream, n)
	for i := range streams {
		r := tokensRequest(fmt.Sprint(i), []int32{1, 2}, 100)
		if i%3 == 2 {
			r.Beams = &sample.BeamParams{Width: 2}
		}
		s, err := p.Submit(context.Background(), r)
		require.NoError(t, err)
		streams[i] = s
	}
	return streams
}

// requireUnavailable reads streams to their ends, which say why.
func requireUnavailable(t *testing.T, streams []api.Stream, why string) {
	t.Helper()
	for i, s := range streams {
		_, last, err := read(s)
		require.NoError(t, err, "request %d", i)
		require.Equal(t, api.FinishError, last.Finish, "request %d", i)
		require.True(t, last.Done)
		var e *api.Error
		require.ErrorAs(t, last.Err, &e)
		require.Equal(t, api.CodeUnavailable, e.Code)
		require.Positive(t, e.RetryAfter)
		require.Contains(t, e.Message, why)
	}
}

func TestAFailedDeviceIsLoadedAgainAndServesOn(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	d.failAt = []int{20, 40}
	p := start(t, testConfig(t, d))
	streams := submitMany(t, p, 12)
	for range d.failAt[0] {
		d.gate <- struct{}{}
	}
	requireUnavailable(t, streams, "the device failed: lost the device")
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond, "readiness comes back")
	requireClean(t, p, d)

	streams = submitMany(t, p, 12)
	close(d.gate)
	requireUnavailable(t, streams, "the device failed: lost the device")
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond)
	requireClean(t, p, d)
	requireServes(t, p, d)
	require.Equal(t, 2, d.reloaded())
	requireReloads(t, p, 2, 0)
}

func TestWhileTheDeviceIsLoadedAgainNothingIsAcceptedAndNobodyWaits(t *testing.T) {
	d := newTestDevice(100)
	d.gate, d.reloadGate = make(chan struct{}), make(chan struct{})
	d.failAt = []int{3}
	p := start(t, testConfig(t, d))
	streams := submitMany(t, p, 5)
	close(d.gate)
	requireUnavailable(t, streams, "lost the device")
	require.ErrorContains(t, p.Ready(), "it is being loaded again")
	_, err := p.Submit(context.Background(), tokensRequest("later", []int32{1}, 1))
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, api.CodeUnavailable, e.Code)
	close(d.reloadGate)
	require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond)
	requireServes(t, p, d)
}

func TestTheKVOfAFailedDeviceIsGivenBackBeforeItIsLoadedAgain(t *testing.T) {
	d := newTestDevice(100)
	d.reloadGate = make(chan struct{})
	d.failAt = []int{3}
	p := start(t, testConfig(t, d))
	t.Cleanup(func() { close(d.reloadGate) })
	requireUnavailable(t, submitMany(t, p, 1), "lost the device")
	requireClean(t, p, d)
}

// requireReloads checks how often the metrics say that the device was loaded again.
func requireReloads(t *testing.T, p *Node, ok, failed int) {
	t.Helper()
	w := httptest.NewRecorder()
	p.cfg.Metrics.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for result, n := range map[string]int{"ok": ok, "failed": failed} {
		require.Contains(t, w.Body.String(), fmt.Sprintf("millrace_device_reloads_total{model=\"m\",result=%q} %d\n", result, n))
	}
}

// requireFailedForGood checks that everybody gets the error.
func requireFailedForGood(t *testing.T, p *Node, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.ErrorContains(t, p.Wait(ctx), why)
	require.ErrorContains(t, p.Ready(), why)
	_, err := p.Submit(context.Background(), tokensRequest("later", []int32{1}, 1))
	require.ErrorContains(t, err, why)
}

func TestADeviceThatCannotBeLoadedAgainEndsThePipeline(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	d.failAt, d.noWay = []int{20}, []error{errors.New("no device found")}
	p := start(t, testConfig(t, d))
	streams := submitMany(t, p, 12)
	close(d.gate)
	requireUnavailable(t, streams, "lost the device")
	requireFailedForGood(t, p, "the device failed: lost the device; and cannot be loaded again: no device found")
	requireReloads(t, p, 0, 1)
}

func TestADeviceThatFailsAgainAndAgainEndsThePipeline(t *testing.T) {
	d := newTestDevice(100)
	for i := range 100 {
		d.failAt = append(d.failAt, 1+i)
	}
	const mostRestarts = 3 // in a minute
	p := start(t, testConfig(t, d))
	for i := range mostRestarts + 1 {
		require.Eventually(t, func() bool { return p.Ready() == nil }, patience, time.Millisecond)
		s, err := p.Submit(context.Background(), tokensRequest(fmt.Sprint(i), []int32{1, 2}, 5))
		require.NoError(t, err)
		requireUnavailable(t, []api.Stream{s}, "lost the device")
	}
	requireFailedForGood(t, p, "more than 3 times in 1m0s the device failed: lost the device")
	requireReloads(t, p, mostRestarts, 0)
}

func TestAPanicOfTheLoopEndsThePipeline(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	d.panicAt = 7
	p := start(t, testConfig(t, d))
	streams := submitMany(t, p, 5)
	close(d.gate)
	requireUnavailable(t, streams, "compute: a bug")
	requireFailedForGood(t, p, "compute: a bug")
}

func TestAStepThatDoesNotEndEndsThePipelineAndLeavesNobodyWaiting(t *testing.T) {
	d := newTestDevice(100)
	d.gate = make(chan struct{})
	cfg := testConfig(t, d)
	cfg.GiveUpAfter = time.Nanosecond
	p, err := New(cfg)
	require.NoError(t, err)
	s, err := p.Submit(context.Background(), tokensRequest("r", []int32{1}, 5))
	require.NoError(t, err)
	requireUnavailable(t, []api.Stream{s}, "the device has made no step for")
	requireFailedForGood(t, p, "the device has made no step for")
	require.ErrorContains(t, p.Close(context.Background()), "did not end its step")
	close(d.gate) // the goroutine may go
	require.Eventually(t, func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.open == 0
	}, patience, time.Millisecond)
	p.system.Shutdown()
}

func TestWaitEndsWithItsContext(t *testing.T) {
	p := start(t, testConfig(t, newTestDevice(100)))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.Wait(ctx); err != nil {
			t.Error(err)
		}
	})
	cancel()
	wg.Wait()
}
