package calls

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

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
		require.Eventually(t, func() bool { return j.ensure(context.Background()) == nil }, 10*time.Second, 10*time.Millisecond)
		for _, r := range []record{{call: &callRecord{id: "id"}}, {owner: new(string)}, {owner: new(string)}} {
			_, last, err = j.publish(context.Background(), "id", &r, last)
			require.NoError(t, err)
		}
		return last
	}
	write()
	read := &state{id: "id"}
	_, err = j.load(context.Background(), "id", read)
	require.NoError(t, err)
	s := &session{c: &Calls{journal: j}, id: "id", name: "id", ctx: context.Background(), state: *read}
	require.NoError(t, s.checkUnchanged(context.Background()))
	natstest.Restart(t, srv)
	require.Equal(t, read.last, write())
	require.ErrorIs(t, s.checkUnchanged(context.Background()), errRestart, "while following")
	require.ErrorIs(t, s.follow(), errRestart, "before following")
	_, _, err = s.takeOver()
	require.ErrorIs(t, err, errRestart, "before a takeover")
}
