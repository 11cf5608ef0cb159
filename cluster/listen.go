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

// Observed is a node as a process sees it that is not a node itself.
type Observed struct {
	Member
	BeatAge time.Duration `json:"beat_age"` // since its last beat arrived
}

// slowest bounds the wait for the NATS server's answer and the beat interval that Listen waits for.
const slowest = 10 * time.Second

// Watcher lists the nodes that send beats, without joining them.
type Watcher struct {
	sub   *nats.Subscription
	table *table
	known *signers
	log   zerolog.Logger
}

// Watch begins to receive beats. The connection needs nats.PermissionErrOnSubscribe, so that a missing permission is an
// error, and nats.NoReconnect, so that a lost connection is one. The caller calls Close.
func Watch(ctx context.Context, conn *nats.Conn, log zerolog.Logger) (*Watcher, error) {
	sub, err := conn.SubscribeSync(BeatSubject)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	w := &Watcher{sub: sub, table: newTable("", 0, time.Now()), known: newSigners(), log: log}
	if err := flush(ctx, conn); err != nil { // the server refuses a subscription before it answers
		w.Close()
		return nil, fmt.Errorf("cluster: %w", err)
	}
	return w, nil
}

// Close ends the subscription.
func (w *Watcher) Close() { _ = w.sub.Unsubscribe() } // the connection may be gone

// Until receives beats until a time, which may change with each beat, and returns the nodes, sorted by node. It leaves
// out those that have been silent for longer than a minute. An error is ctx's, or the connection's.
func (w *Watcher) Until(ctx context.Context, end func() time.Time) ([]Observed, error) {
	for {
		m, err := nextBefore(ctx, w.sub, end())
		switch {
		case err == nil:
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return w.table.observed(time.Now()), nil
		default:
			return nil, fmt.Errorf("cluster: %s: %w", BeatSubject, err)
		}
		if _, err := receive(time.Now(), w.table, w.known, m); err != nil {
			w.log.Warn().Err(err).Int("bytes", len(m.Data)).Msg("dropped a malformed or forged beat")
		}
	}
}

// Listen returns the nodes that send beats, sorted by node, without joining them. It takes a
// little over two intervals of the given heartbeat, or of the slowest node that it receives. The
// connection is as for Watch.
func Listen(ctx context.Context, conn *nats.Conn, heartbeat time.Duration, log zerolog.Logger) ([]Observed, error) {
	w, err := Watch(ctx, conn, log)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	begin := time.Now()
	return w.Until(ctx, func() time.Time { return begin.Add(w.table.twoBeats(heartbeat)) })
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

// twoBeats returns the time in which a beat of every node arrives, if each node beats as often as
// expected or as the slowest known node.
func (t *table) twoBeats(expected time.Duration) time.Duration {
	for _, e := range t.members {
		expected = max(expected, min(e.BeatsEvery, slowest))
	}
	return 2*expected + expected/4
}

// observed lists the members whose last beat is not too old, by node.
func (t *table) observed(now time.Time) []Observed {
	list := make([]Observed, 0, len(t.members))
	for _, e := range t.members {
		if !e.left && now.Sub(e.last) <= forget {
			list = append(list, Observed{*e.Member, now.Sub(e.last)})
		}
	}
	slices.SortFunc(list, func(a, b Observed) int { return cmp.Compare(a.Node, b.Node) })
	return list
}
