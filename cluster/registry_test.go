package cluster

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metrics"
)

// TestADeadProcessIsNoticedByItsConnection: no silence is long enough here to say it.
func TestADeadProcessIsNoticedByItsConnection(t *testing.T) {
	const wait, beat, dead = 20 * time.Second, 10 * time.Millisecond, time.Hour
	s := natsServer(t)
	join := func(node string) (*Registry, *nats.Conn) {
		conn := connect(t, s)
		r, err := Join(Config{
			Conn: conn, Beat: beat, Dead: dead, Self: func() Member { return Member{Node: node} },
			Metrics: metrics.New(metrics.Build{}).Cluster(), Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		t.Cleanup(r.Leave)
		return r, conn
	}
	a, _ := join("a")
	_, killed := join("b")
	silent := connect(t, s) // listens, as a process that was stopped does
	asked := make(chan *nats.Msg, 64)
	_, err := silent.ChanSubscribe(aliveSubject+"c", asked)
	require.NoError(t, err)
	require.NoError(t, silent.Publish(BeatSubject, []byte(`{"node":"c","beats_every":10000000}`)))
	require.Eventually(t, func() bool { return a.Alive("b") && a.Alive("c") }, wait, time.Millisecond)
	killed.Close()
	require.Eventually(t, func() bool { return !a.Alive("b") }, wait, time.Millisecond)
	for range 3 {
		<-asked
	}
	require.True(t, a.Alive("c"))
	require.NoError(t, silent.Publish(goneSubject+"a.c", nil), "not the server's word")
	require.NoError(t, silent.Flush())
	<-asked
	<-asked
	require.True(t, a.Alive("c"))
}
