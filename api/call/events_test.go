package call

import (
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

// TestOneRequestHasNoGoroutineOfItsOwn: its reader takes the events from the stream.
func TestOneRequestHasNoGoroutineOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := apitest.New(apitest.Say("x"))
		events, err := answer(t.Context(), e, &Call{N: 1, Requests: []*api.Request{{Prompt: "p", N: 1}}})
		require.NoError(t, err)
		synctest.Wait()
		_, ok, err := events.Poll()
		require.NoError(t, err)
		require.True(t, ok, "the engine has sent it")
		for range All(t.Context(), events) { //nolint:revive // to the end
		}
		_, _, err = events.Poll()
		require.ErrorIs(t, err, io.EOF)
		e.WaitIdle()
	})
}

// TestTheStreamOfOneRequestIsClosedOnce, at its end or at that of the context, whichever comes first.
func TestTheStreamOfOneRequestIsClosedOnce(t *testing.T) {
	for _, done := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			s := &scripted{events: []api.Event{{Seq: 1, Text: "a"}, {Seq: 2, Done: true}}}
			events, err := answer(ctx, &scriptedEngine{streams: []*scripted{s}}, &Call{N: 1, Requests: []*api.Request{{}}})
			require.NoError(t, err)
			ev, err := Next(t.Context(), events)
			require.NoError(t, err)
			require.Equal(t, "a", ev.Text)
			if done {
				ev, err = Next(t.Context(), events)
				require.NoError(t, err)
				require.True(t, ev.Done)
				require.Equal(t, 1, s.closed)
			}
			cancel()
			synctest.Wait()
			require.Equal(t, 1, s.closed)
			_, _, err = events.Poll()
			require.ErrorIs(t, err, io.EOF, "also where an event was not read")
		})
	}
}

// TestAQueueWaitsForItsReader, and keeps the order of events.
func TestAQueueWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, sent = 4, 100
		q := NewQueue(size)
		ctx, cancel := context.WithCancel(t.Context())
		var sender sync.WaitGroup
		sender.Go(func() {
			defer q.Close()
			for i := 1; q.Send(ctx, api.Event{Seq: uint64(i)}); i++ {
				require.LessOrEqual(t, i, sent+size)
			}
		})
		for i := range uint64(sent) {
			ev, err := Next(t.Context(), q)
			require.NoError(t, err)
			require.Equal(t, i+1, ev.Seq)
		}
		synctest.Wait()
		require.Len(t, q.events, size)
		cancel()
		sender.Wait()
		rest := 0
		for range All(t.Context(), q) {
			rest++
		}
		require.Equal(t, size, rest)
	})
}
