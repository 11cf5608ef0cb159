package batch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

// TestALargeBatchDoesNotFillTheQueue has 2 MB of lines and 512 KiB for them: half of the share of a tenant, which is a quarter of 4 MiB.
func TestALargeBatchDoesNotFillTheQueue(t *testing.T) {
	const lines, bytesOfLine = 100, 20_000
	w := newWorld(t)
	g := w.gateway()
	g.queue = 4 << 20
	pad := strings.Repeat(" ", bytesOfLine)
	r := w.create(g, "a", file(lines, func(i int) string { return fmt.Sprint("wait ", i) + pad }))
	w.until(g, "a", r.ID, func(*Record) bool { return w.ran.Load() >= 8 })
	most := uint64(0)
	opened := false
	r = w.until(g, "a", r.ID, func(r *Record) bool {
		info, err := g.opts.Work.Info(t.Context())
		require.NoError(t, err)
		most = max(most, info.State.Bytes)
		if most > 300_000 && !opened {
			opened = true
			close(w.gate)
		}
		return r.Status.Ended()
	})
	require.LessOrEqual(t, most, uint64(700_000), "with what JetStream adds, and lines that have just ended")
	require.Equal(t, Counts{Total: lines, Completed: lines}, r.Counts)
	w.results(g, "a", r)
}

// TestLinesOfAKeyAboveItsLimitLeaveRoomForOthers refuses each request of one tenant until another tenant's batch has run.
func TestLinesOfAKeyAboveItsLimitLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t)
	var free atomic.Bool
	w.engine.Refuse = func(r *api.Request) error {
		if strings.Contains(r.Prompt, "limited") && !free.Load() {
			return &api.Error{Code: api.CodeOverloaded, Reason: "requests_per_minute_exceeded", RetryAfter: time.Second,
				Message: "one a minute"}
		}
		return nil
	}
	g := w.gateway()
	limited := w.create(g, "a", file(60, func(int) string { return "limited" }))
	w.until(g, "a", limited.ID, func(r *Record) bool { return r.Status == InProgress })
	other := w.ended(g, "b", w.create(g, "b", file(20, func(int) string { return "x" })).ID)
	require.Equal(t, 20, other.Counts.Completed)
	free.Store(true)
	require.Equal(t, 60, w.ended(g, "a", limited.ID).Counts.Completed)
}

// TestEveryKindOfLineHasTheLowestPriority also has embeddings, scores and rankings.
func TestEveryKindOfLineHasTheLowestPriority(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	e := idle{w.engine}
	r := &api.Request{Prompt: "x", Priority: 3}
	s, err := e.Submit(t.Context(), r)
	require.NoError(t, err)
	s.Close()
	require.Equal(t, api.PriorityIdle, r.Priority)
	for _, path := range Endpoints() {
		before := len(w.engine.Requests())
		body := `{"model":"tiny-chat","input":["a","b"],"query":"q","documents":["a","b"],"text_1":"a","text_2":"b","prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":4}`
		run := g.endpoint(path).run
		ctx, cancel := context.WithTimeout(as(w, "a"), patience)
		_, _ = run(ctx, "id", []byte(body), time.Now()) // the scripted engine has no vectors; only its requests count
		cancel()
		for _, q := range w.engine.Requests()[before:] {
			require.Equal(t, api.PriorityIdle, q.Priority, path)
		}
	}
}

// TestFilesAreReadInTurn lets one of a tenant, and two in all, read at once.
func TestFilesAreReadInTurn(t *testing.T) {
	turns := newTurns()
	first, err := turns.enter(t.Context(), "a")
	require.NoError(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = turns.enter(over, "a")
	require.ErrorIs(t, err, context.Canceled)
	second, err := turns.enter(t.Context(), "b")
	require.NoError(t, err)
	_, err = turns.enter(over, "c")
	require.ErrorIs(t, err, context.Canceled)
	got := make(chan func(), 1)
	go func() {
		leave, _ := turns.enter(t.Context(), "a")
		got <- leave
	}()
	first()
	(<-got)()
	second()
	require.Empty(t, turns.of)
	require.Empty(t, turns.all)
}

func TestACheckerRestsThreeTimesAsLongAsItWorks(t *testing.T) {
	p := &paced{ctx: t.Context(), r: bytes.NewReader(make([]byte, 1<<20))}
	buffer := make([]byte, 64<<10)
	var worked time.Duration
	begin := time.Now()
	for {
		_, err := p.Read(buffer)
		if errors.Is(err, io.EOF) {
			break
		}
		start := time.Now()
		for time.Since(start) < 2*time.Millisecond { //nolint:revive // work
		}
		worked += time.Since(start)
	}
	const least = 2 // the last part of the work is not paid for
	require.Greater(t, time.Since(begin), least*worked)
}

func TestAWindowHasAtLeastALine(t *testing.T) {
	w := newWindow(4)
	add := func(line, size int) (bool, bool) { return w.add(line, size, 100) }
	run, fits := add(0, 1000)
	require.True(t, run && fits, "alone")
	_, fits = add(1, 1)
	require.False(t, fits)
	require.False(t, w.low(100))
	w.finish(0)
	w.finish(0)
	require.True(t, w.low(100))
	run, fits = add(0, 10)
	require.True(t, fits)
	require.False(t, run, "it has a result")
	for line, size := range []int{0, 50, 50} {
		if line > 0 {
			run, fits = add(line, size)
			require.True(t, run && fits)
		}
	}
	run, fits = add(1, 50)
	require.True(t, run && fits, "it is there already")
	_, fits = add(3, 1)
	require.False(t, fits)
	w.finish(1)
	require.True(t, w.low(100))
	w.empty()
	run, fits = add(3, 90)
	require.True(t, run && fits)
}

// TestABatchIsChargedToItsKey refuses a batch of a key above its limit before its file is read.
func TestABatchIsChargedToItsKey(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	input := w.upload(g, "a", file(1, func(int) string { return "x" }))
	caller := &charged{Key: apitest.Key{ID: "a", Tenant: "tenant a"}, left: 1}
	create := func() error {
		_, err := g.Create(api.WithCaller(t.Context(), caller), Request{Endpoint: "/v1/completions", Input: input, Window: time.Hour})
		return err
	}
	require.NoError(t, create())
	require.Equal(t, api.CodeOverloaded, api.AsError(create()).Code)
	require.Len(t, g.List(as(w, "a")), 1)
}

type charged struct {
	apitest.Key
	left int
}

func (c *charged) Charge() error {
	if c.left--; c.left < 0 {
		return &api.Error{Code: api.CodeOverloaded, Message: "one a minute"}
	}
	return nil
}
