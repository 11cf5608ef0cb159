package kvevents

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/e2e/natstest"
)

const patience = 20 * time.Second

type arrived struct {
	node  string
	event prefix.Event
}

// follower follows the events of a server until the test ends.
func follower(t *testing.T, conn *nats.Conn) <-chan arrived {
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan arrived, 1000), make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, conn, zerolog.Nop(), func() {}, func(node string, e prefix.Event) { got <- arrived{node, e} })
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return got
}

// until publishes events, each with the next number, until one arrives, and returns that one.
func until(t *testing.T, got <-chan arrived, publish func(prefix.Event), number *uint64) arrived {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		*number++
		publish(prefix.Event{Number: *number, Stored: []prefix.ID{prefix.ID(*number)}, Removed: []prefix.ID{}})
		select {
		case a := <-got:
			return a
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatal("no event arrived")
	return arrived{}
}

func TestEventsArriveInOrder(t *testing.T) {
	s := natstest.Start(t, &server.Options{JetStream: true})
	got := follower(t, natstest.Connect(t, s))
	publish := Publisher(natstest.Connect(t, s), "n1", zerolog.Nop())
	var number uint64
	first := until(t, got, publish, &number)
	require.Equal(t, "n1", first.node)
	next := first.event.Number
	for range 200 {
		number++
		publish(prefix.Event{Number: number, Stored: []prefix.ID{1}, Removed: []prefix.ID{2}})
	}
	for next < number {
		next++
		require.Equal(t, next, (<-got).event.Number)
	}
	js, err := jetstream.New(natstest.Connect(t, s))
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.Equal(t, jetstream.MemoryStorage, cfg.Storage)
	require.Positive(t, cfg.MaxBytes)
	require.Positive(t, cfg.MaxAge)
}

func TestWhatIsNoEventIsDropped(t *testing.T) {
	s := natstest.Start(t, &server.Options{JetStream: true})
	got := follower(t, natstest.Connect(t, s))
	conn := natstest.Connect(t, s)
	publish := Publisher(conn, "n1", zerolog.Nop())
	var number uint64
	next := until(t, got, publish, &number).event.Number
	require.NoError(t, conn.Publish(Subject+"n1", []byte("junk")))
	number++
	publish(prefix.Event{Number: number})
	for next < number {
		next++
		require.Equal(t, next, (<-got).event.Number)
	}
}

// TestAFollowerIsBackAfterTheServer: the stream was in the memory of a server that is gone.
func TestAFollowerIsBackAfterTheServer(t *testing.T) {
	s := natstest.Start(t, &server.Options{JetStream: true})
	options := []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(10 * time.Millisecond)}
	got := follower(t, natstest.Connect(t, s, options...))
	publish := Publisher(natstest.Connect(t, s, options...), "n1", zerolog.Nop())
	var number uint64
	before := until(t, got, publish, &number)
	natstest.Restart(t, s)
	require.Greater(t, until(t, got, publish, &number).event.Number, before.event.Number)
}
