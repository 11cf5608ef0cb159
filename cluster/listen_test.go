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

// say publishes beats again and again until the test ends.
func say(t *testing.T, s *server.Server, beats ...any) {
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
				data, ok := b.([]byte)
				if !ok {
					data, _ = json.Marshal(b)
				}
				if err := conn.Publish(BeatSubject, data); err != nil {
					t.Errorf("beat: %v", err)
					return
				}
			}
		}
	}()
}

func TestWhoListensHearsEveryNodeAndPassesOverWhatIsNoBeat(t *testing.T) {
	s := natsServer(t)
	worker := Member{Node: "b", Roles: []Role{Compute}, Host: "h", Process: 7, Model: "m", Draining: true,
		Worker: &Worker{Backend: "cpu", Weights: "int8", Running: 3, Capacity: 64, InStep: time.Second}}
	say(t, s, worker, Member{Node: "a", Roles: []Role{Gateway}}, Member{Node: "c", Left: true}, []byte("{"), Member{})
	var log bytes.Buffer
	heard, err := Listen(t.Context(), connect(t, s), time.Second, zerolog.New(&log))
	require.NoError(t, err)
	require.Len(t, heard, 2)
	require.Equal(t, "a", heard[0].Node)
	require.Equal(t, worker, heard[1].Member)
	require.Contains(t, log.String(), "unexpected end of JSON input")
	require.Contains(t, log.String(), "found no node")
}

func TestWhoListensInSilenceHearsNobody(t *testing.T) {
	heard, err := Listen(t.Context(), connect(t, natsServer(t)), time.Millisecond, zerolog.Nop())
	require.NoError(t, err)
	require.Empty(t, heard)
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
	x.hear(at, Member{Node: "a", BeatsEvery: 40 * time.Millisecond})
	require.Equal(t, 225*time.Millisecond, x.twoBeats(100*time.Millisecond))
	x.hear(at, Member{Node: "b", BeatsEvery: 2 * time.Second})
	require.Equal(t, 4500*time.Millisecond, x.twoBeats(100*time.Millisecond))
	x.hear(at, Member{Node: "c", BeatsEvery: time.Hour})
	require.Equal(t, 22500*time.Millisecond, x.twoBeats(100*time.Millisecond))
	require.Equal(t, 45*time.Second, x.twoBeats(20*time.Second), "the caller knows")

	at = at.Add(3 * time.Second)
	x.hear(at, Member{Node: "b"})
	ages := map[string]time.Duration{}
	for _, h := range x.heard(at.Add(time.Second)) {
		ages[h.Node] = h.BeatAge
	}
	require.Equal(t, map[string]time.Duration{"a": 4 * time.Second, "b": time.Second, "c": 4 * time.Second}, ages)
}
