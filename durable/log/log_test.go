package log

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestALogWrittenAgainToTheSameLengthIsAnotherOne rewrites a log that the server lost in a restart. Its
// newest record has the same sequence as before, so a reader that compares only sequences would wait.
func TestALogWrittenAgainToTheSameLengthIsAnotherOne(t *testing.T) {
	srv := natstest.Start(t, &server.Options{JetStream: true})
	nc, err := nats.Connect(srv.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	j := &journal{
		js: js, maxAge: time.Minute, replicas: 1, maxBody: 1 << 10, timeout: time.Second,
		bytes: prometheus.NewCounter(prometheus.CounterOpts{}),
	}
	write := func() (last uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return j.ensure(t.Context()) == nil }, 10*time.Second, 10*time.Millisecond)
		for _, r := range []Record{{Call: &CallRecord{ID: "id"}}, {Owner: new(string)}, {Owner: new(string)}} {
			_, last, err = j.publish(t.Context(), "id", &r, last)
			require.NoError(t, err)
		}
		return last
	}
	write()
	read := &State{ID: "id"}
	_, err = j.load(t.Context(), "id", read)
	require.NoError(t, err)
	l := (&Store{journal: j}).Log("", "id", api.NewBuffer())
	l.name = "id"
	l.Adopt(read)
	require.NoError(t, l.Unchanged(t.Context()))
	natstest.Restart(t, srv)
	require.Equal(t, read.Last, write())
	require.ErrorIs(t, l.Unchanged(t.Context()), ErrRestart, "while following")
	_, err = l.Tail(t.Context())
	require.ErrorIs(t, err, ErrRestart, "before following")
	require.ErrorIs(t, l.TakeOver(t.Context()), ErrRestart, "before a takeover")
}
