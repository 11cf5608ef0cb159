package calls_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/durable/log"
)

func logs(t testing.TB, g gateway) jetstream.Stream {
	t.Helper()
	js, err := jetstream.New(g.nc)
	require.NoError(t, err)
	s, err := js.Stream(t.Context(), log.Stream)
	require.NoError(t, err)
	return s
}

// TestAnOwnerWritesWhatItsLogLacks removes records, at the beginning or in the middle, from the log of a
// running call and of one that has just ended.
func TestAnOwnerWritesWhatItsLogLacks(t *testing.T) {
	t.Parallel() // it waits most of its time
	for name, limit := range map[string]int{"runs": 20, "has ended": 1 << 30} {
		t.Run(name, func(t *testing.T) {
			g := newGate(limit)
			e := deterministic(g)
			url := natsServer(t).ClientURL()
			a := newGateway(t, url, e, calls.Options{})
			r := begin(t, a, e, body+`}`)
			here := see(t, r)
			if limit < 1<<30 {
				here.until(uint64(limit))
			} else {
				here.until(0)
				require.Eventually(t, func() bool { return a.count(t, "streams") == 0 }, wait, time.Millisecond)
			}
			s := logs(t, a)
			for range 3 {
				for part := range uint64(2) {
					info, err := s.Info(t.Context())
					require.NoError(t, err)
					seq := info.State.FirstSeq + part*(info.State.LastSeq-info.State.FirstSeq)/2
					// an earlier round may have deleted it
					if _, err := s.GetMsg(t.Context(), seq); !errors.Is(err, jetstream.ErrMsgNotFound) {
						require.NoError(t, err)
						require.NoError(t, s.DeleteMsg(t.Context(), seq))
					}
					b := newGateway(t, url, e, calls.Options{})
					there := see(t, attach(t, b, r.Call().ID))
					if limit < 1<<30 {
						there.until(uint64(limit))
					} else {
						require.Equal(t, undisturbed(t, r.Call()), there.until(0))
					}
				}
			}
			g.open(1 << 30)
			require.Equal(t, undisturbed(t, r.Call()), here.until(0))
			require.Zero(t, a.count(t, "fenced_total"))
			require.Len(t, e.Requests(), 1)
		})
	}
}

func TestALogThatNobodyHasHasExpired(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1 << 30))
	a := newGateway(t, natsServer(t).ClientURL(), e, calls.Options{})
	text := body + `,"request_id":"mine"}`
	r := begin(t, a, e, text)
	see(t, r).until(0)
	s := logs(t, a)
	b := newGateway(t, a.nc.ConnectedUrl(), e, calls.Options{Answer: 100 * time.Millisecond, Rejoin: 200 * time.Millisecond})
	require.NoError(t, s.Purge(t.Context()))
	again := see(t, attach(t, b, r.Call().ID)).until(0)
	require.Equal(t, undisturbed(t, r.Call()), again, "gateway a writes it again, because the call has just ended there")
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	a.Close()
	require.NoError(t, s.DeleteMsg(t.Context(), info.State.FirstSeq))
	_, err = b.Attach(t.Context(), r.Call().ID)
	require.Equal(t, api.Code(410), api.AsError(err).Code)
	second := begin(t, b, e, text)
	require.Equal(t, undisturbed(t, second.Call()), see(t, second).until(0), "the call can be sent again, as the error says")
	b.Close()
	c := newGateway(t, a.nc.ConnectedUrl(), e, calls.Options{Answer: 100 * time.Millisecond, Rejoin: 200 * time.Millisecond})
	require.NoError(t, s.Purge(t.Context()))
	for _, id := range []string{r.Call().ID, "", "a.b", "a*", "a>", strings.Repeat("x", 100)} {
		_, err = c.Attach(t.Context(), id)
		require.Equal(t, api.CodeNotFound, api.AsError(err).Code)
	}
}
