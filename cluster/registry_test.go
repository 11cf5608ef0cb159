package cluster

import (
	"sync/atomic"
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
	join := func() (*Registry, *nats.Conn) {
		conn := connect(t, s)
		r, err := Join(Config{
			Conn: conn, Beat: beat, Dead: dead, Key: NewKey(), Self: func() Member { return Member{} },
			Metrics: metrics.New(metrics.Build{}).Cluster(), Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		t.Cleanup(r.Leave)
		return r, conn
	}
	a, _ := join()
	b, killed := join()
	c := newSpeaker()
	silent := connect(t, s) // listens, as a process that was stopped does
	probes := make(chan *nats.Msg, 64)
	_, err := silent.ChanSubscribe(aliveSubject+c.name, probes)
	require.NoError(t, err)
	require.NoError(t, silent.PublishMsg(c.beats(t, Member{BeatsEvery: beat})))
	require.Eventually(t, func() bool { return a.Alive(b.self) && a.Alive(c.name) }, wait, time.Millisecond)
	before := a.Probe(b.self)
	require.NoError(t, a.cfg.Conn.Flush())
	killed.Close()
	for late := time.After(wait); a.Alive(b.self); {
		select {
		case <-a.Changed(): // also because they have joined
		case <-late:
			t.Fatal("the death is not announced")
		}
	}
	for range 3 {
		<-probes
	}
	require.True(t, a.Alive(c.name))
	require.True(t, a.Died(b.self, before))
	require.False(t, a.Died(b.self, a.Probe(b.self)))
	forged := &nats.Msg{Subject: goneSubject + a.self + "." + c.name + ".x", Header: nats.Header{"Status": {"503"}}}
	require.NoError(t, silent.PublishMsg(forged), "not the answer to a probe")
	require.NoError(t, silent.Publish((<-probes).Reply, nil), "not the server's answer")
	require.NoError(t, silent.Flush())
	<-probes
	<-probes
	require.True(t, a.Alive(c.name))
}

// TestANodeThatNobodyHearsSendsNoBeats, and is not cut off: the NATS server in its process says that nobody listens.
func TestANodeThatNobodyHearsSendsNoBeats(t *testing.T) {
	const beat, dead = 5 * time.Millisecond, time.Second // a busy machine stops a process for some tenths
	s := natsServer(t)
	beats := make(chan *nats.Msg, 1024)
	_, err := connect(t, s).ChanSubscribe(BeatSubject, beats)
	require.NoError(t, err)
	var listeners, checks atomic.Int64
	r, err := Join(Config{
		Conn: connect(t, s), Beat: beat, Dead: dead, Key: NewKey(), Self: func() Member { return Member{} },
		Unheard: func() bool { checks.Add(1); return listeners.Load() == 0 },
		Metrics: metrics.New(metrics.Build{}).Cluster(), Log: zerolog.Nop(),
	})
	require.NoError(t, err)
	t.Cleanup(r.Leave)
	<-beats // of Join: a node that joins says so
	require.Eventually(t, func() bool {
		require.False(t, r.Partitioned())
		return checks.Load() > 300
	}, 20*time.Second, time.Millisecond)
	require.Empty(t, beats)
	listeners.Store(1)
	for range 3 {
		<-beats
	}
}
