package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// natsServer is a NATS server of the test's own, with a user who may do everything
// and one, "deaf", who may not listen to beats.
func natsServer(t *testing.T) *server.Server {
	t.Helper()
	return natstest.Start(t, &server.Options{NoAuthUser: "all",
		Users: []*server.User{{Username: "all"}, {Username: "deaf", Password: "x", Permissions: &server.Permissions{
			Subscribe: &server.SubjectPermission{Deny: []string{BeatSubject}},
		}}},
	})
}

func connect(t *testing.T, s *server.Server, options ...nats.Option) *nats.Conn {
	t.Helper()
	return natstest.Connect(t, s, append(options, nats.NoReconnect(), nats.PermissionErrOnSubscribe(true))...)
}

// speaker is a node of a test that beats by hand.
type speaker struct {
	Key
	name string
	sent uint64
}

func newSpeaker() *speaker {
	k := NewKey()
	return &speaker{Key: k, name: k.Node().String()}
}

// beats is its next beat.
func (s *speaker) beats(t *testing.T, m Member) *nats.Msg {
	t.Helper()
	m.Node = s.name
	data, err := json.Marshal(m)
	require.NoError(t, err)
	s.sent++
	return s.sign(s.sent, data)
}

// say publishes beats again and again until the test ends.
func say(t *testing.T, s *server.Server, beats ...func() *nats.Msg) {
	t.Helper()
	conn := connect(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
			for _, b := range beats {
				if err := conn.PublishMsg(b()); err != nil {
					t.Errorf("beat: %v", err)
					return
				}
			}
		}
	}()
}

func TestWhoListensHearsEveryNodeAndPassesOverWhatIsNoBeat(t *testing.T) {
	s := natsServer(t)
	a, b, c := newSpeaker(), newSpeaker(), newSpeaker()
	worker := Member{Node: b.name, Roles: []Role{Compute}, Host: "h", Process: 7, Model: "m", Draining: true,
		Worker: &Worker{Backend: "cpu", Weights: "int8", Running: 3, Capacity: 64, InStep: time.Second}}
	say(t, s,
		func() *nats.Msg { return b.beats(t, worker) },
		func() *nats.Msg { return a.beats(t, Member{Roles: []Role{Gateway}}) },
		func() *nats.Msg { return c.beats(t, Member{Left: true}) },
		func() *nats.Msg { return &nats.Msg{Subject: BeatSubject, Data: []byte(`{"node":"x"}`)} },
		func() *nats.Msg { return a.sign(1<<40, []byte("{")) },
	)
	var log bytes.Buffer
	nodes, err := Listen(t.Context(), connect(t, s), time.Second, zerolog.New(&log))
	require.NoError(t, err)
	found := map[string]Member{}
	for _, h := range nodes {
		found[h.Node] = h.Member
	}
	require.Equal(t, map[string]Member{a.name: {Node: a.name, Roles: []Role{Gateway}}, b.name: worker}, found)
	require.Contains(t, log.String(), "unexpected end of JSON input")
	require.Contains(t, log.String(), "Millrace-Key: found 0 characters, expected 43")
}

func TestWhoListensInSilenceHearsNobody(t *testing.T) {
	nodes, err := Listen(t.Context(), connect(t, natsServer(t)), time.Millisecond, zerolog.Nop())
	require.NoError(t, err)
	require.Empty(t, nodes)
}

func TestListeningInVainIsAnError(t *testing.T) {
	s := natsServer(t)
	_, err := Listen(t.Context(), connect(t, s, nats.UserInfo("deaf", "x")), time.Minute, zerolog.Nop())
	require.ErrorIs(t, err, nats.ErrPermissionViolation)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Listen(ctx, connect(t, s), time.Minute, zerolog.Nop())
	require.ErrorIs(t, err, context.Canceled)

	conn := connect(t, s)
	failed := make(chan error)
	go func() {
		_, err := Listen(t.Context(), conn, time.Minute, zerolog.Nop())
		failed <- err
	}()
	require.Eventually(t, func() bool { return conn.NumSubscriptions() > 0 }, 10*time.Second, time.Millisecond)
	s.Shutdown()
	require.ErrorIs(t, <-failed, nats.ErrConnectionClosed)
}

func TestASlowNodeIsWaitedForAndAVerySlowOneIsNot(t *testing.T) {
	at := time.Unix(1000, 0)
	x := newTable("", 0, at)
	require.Equal(t, 225*time.Millisecond, x.twoBeats(100*time.Millisecond))
	x.receive(at, Member{Node: "a", BeatsEvery: 40 * time.Millisecond})
	require.Equal(t, 225*time.Millisecond, x.twoBeats(100*time.Millisecond))
	x.receive(at, Member{Node: "b", BeatsEvery: 2 * time.Second})
	require.Equal(t, 4500*time.Millisecond, x.twoBeats(100*time.Millisecond))
	x.receive(at, Member{Node: "c", BeatsEvery: time.Hour})
	require.Equal(t, 22500*time.Millisecond, x.twoBeats(100*time.Millisecond))
	require.Equal(t, 45*time.Second, x.twoBeats(20*time.Second), "the caller knows")

	at = at.Add(3 * time.Second)
	x.receive(at, Member{Node: "b"})
	ages := map[string]time.Duration{}
	for _, h := range x.observed(at.Add(time.Second)) {
		ages[h.Node] = h.BeatAge
	}
	require.Equal(t, map[string]time.Duration{"a": 4 * time.Second, "b": time.Second, "c": 4 * time.Second}, ages)
}
