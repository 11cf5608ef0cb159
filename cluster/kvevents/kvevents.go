// Package kvevents carries events of workers' prefix caches to gateways, on one JetStream stream in memory.
//
// Workers publish without waiting for an acknowledgment, and gateways read new events only. A lost event is a gap in the
// numbers of its worker's events: see package prefix. It must not know what an event says.
package kvevents

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/cluster/prefix"
)

// Names in JetStream.
const (
	// Stream is the stream with the events of all workers. Gateways create it.
	Stream = "MILLRACE_KV"
	// Subject is the beginning of the subject of a worker's events. Its node follows.
	Subject = "millrace.kv."
)

// Bounds of the stream: a gateway that lost its connection for less than maxAge misses nothing.
const (
	maxAge   = time.Minute
	maxBytes = 16 << 20
)

// The waits before further tries to reach the stream.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
	timeout    = 5 * time.Second // of a request to JetStream
)

// Publisher returns a function that publishes the events of a node.
func Publisher(conn *nats.Conn, node string, log zerolog.Logger) func(prefix.Event) {
	return func(e prefix.Event) {
		if err := conn.Publish(Subject+node, e.Encode()); err != nil {
			log.Debug().Err(err).Msg("an event of the prefix cache was not published") // its number will be missing
		}
	}
}

// Follow calls began, and then handle with all events that are published from there on, in order, until ctx ends. Where there is
// no JetStream it keeps trying.
func Follow(ctx context.Context, conn *nats.Conn, log zerolog.Logger, began func(), handle func(node string, e prefix.Event)) {
	for wait := retryFirst; ; wait = min(2*wait, retryMost) {
		read, err := follow(ctx, conn, log, began, handle)
		if ctx.Err() != nil {
			return
		}
		if read {
			wait = retryFirst
		}
		log.Warn().Err(err).Dur("again", wait).Msg("events of prefix caches are not followed: requests are placed without them")
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// follow is Follow until an error. read: it has read the stream.
func follow(ctx context.Context, conn *nats.Conn, log zerolog.Logger, began func(),
	handle func(node string, e prefix.Event)) (read bool, err error) {
	messages, err := subscribe(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("kvevents: stream %s: %w", Stream, err)
	}
	defer messages.Stop()
	began()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return true, fmt.Errorf("kvevents: stream %s: %w", Stream, err)
		}
		e, err := prefix.Decode(m.Data())
		if err != nil {
			log.Debug().Err(err).Str("subject", m.Subject()).Msg("dropped an event of a prefix cache")
			continue
		}
		handle(strings.TrimPrefix(m.Subject(), Subject), e)
	}
}

// subscribe reads the stream's new messages. It creates a stream that is missing.
func subscribe(ctx context.Context, conn *nats.Conn) (jetstream.MessagesContext, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, err
	}
	s, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: Stream, Subjects: []string{Subject + "*"}, Storage: jetstream.MemoryStorage, Discard: jetstream.DiscardOld,
		Description: "Millrace: changes of workers' prefix caches", MaxAge: maxAge, MaxBytes: maxBytes,
	})
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // of another version
		s, err = js.Stream(ctx, Stream)
	}
	if err != nil {
		return nil, err
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverNewPolicy, MaxResetAttempts: 3, InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return c.Messages()
}
