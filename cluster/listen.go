package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
)

// Heard is a node as somebody who only listens knows it.
type Heard struct {
	Member
	BeatAge time.Duration `json:"beat_age"` // since its last beat came
}

// slowest bounds how long the server's answer is waited for, and a node that beats
// seldom.
const slowest = 10 * time.Second

// Listen hears who beats, by node, without being one of them: for a little over two
// heartbeats, or two of the slowest node that it hears. It needs a connection with
// nats.PermissionErrOnSubscribe to tell that it may not listen from silence, and
// with nats.NoReconnect to tell a lost one.
func Listen(ctx context.Context, conn *nats.Conn, heartbeat time.Duration, log zerolog.Logger) ([]Heard, error) {
	sub, err := conn.SubscribeSync(BeatSubject)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // the connection may be gone
	if err := flush(ctx, conn); err != nil { // after it the server's refusal is there
		return nil, fmt.Errorf("cluster: %w", err)
	}
	begin := time.Now()
	t, known := newTable("", 0, begin), newSigners()
	for {
		m, err := nextBefore(ctx, sub, begin.Add(t.twoBeats(heartbeat)))
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return t.heard(time.Now()), nil
		default:
			return nil, fmt.Errorf("cluster: %s: %w", BeatSubject, err)
		}
		if _, err := hear(time.Now(), t, known, m); err != nil {
			log.Warn().Err(err).Int("bytes", len(m.Data)).Msg("a beat that is none, or that its node did not send")
		}
	}
}

func flush(ctx context.Context, conn *nats.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	return conn.FlushWithContext(ctx)
}

func nextBefore(ctx context.Context, sub *nats.Subscription, end time.Time) (*nats.Msg, error) {
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	return sub.NextMsgWithContext(ctx)
}

// twoBeats is the time in which everybody is heard who beats as often as is
// expected, or as the slowest of those heard.
func (t *table) twoBeats(expected time.Duration) time.Duration {
	for _, e := range t.members {
		expected = max(expected, min(e.BeatsEvery, slowest))
	}
	return 2*expected + expected/4
}

// heard lists all members by node.
func (t *table) heard(now time.Time) []Heard {
	list := make([]Heard, 0, len(t.members))
	for _, e := range t.members {
		if !e.left {
			list = append(list, Heard{*e.Member, now.Sub(e.heard)})
		}
	}
	slices.SortFunc(list, func(a, b Heard) int { return cmp.Compare(a.Node, b.Node) })
	return list
}
