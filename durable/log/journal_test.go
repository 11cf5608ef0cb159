package log

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// newJournal is a journal on a server of its own, whose records are in parts above 100 bytes.
func newJournal(t *testing.T) *journal {
	t.Helper()
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	j := &journal{js: js, maxAge: time.Minute, maxBytes: 64 << 20, replicas: 1, maxBody: 100, timeout: 10 * time.Second,
		bytes: prometheus.NewCounter(prometheus.CounterOpts{Name: "bytes"})}
	require.NoError(t, j.ensure(t.Context()))
	return j
}

// replica is a stream whose reads are answered by a server that has no records, and whose leader has some.
type replica struct {
	jetstream.Stream // the leader, if it is a server; else:
	replicas         int
	subjects         map[string]uint64 // of the leader
	fault            error             // of a request to the leader
	requests         int
}

func (r *replica) GetMsg(context.Context, uint64, ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	return nil, jetstream.ErrMsgNotFound
}

func (r *replica) CachedInfo() *jetstream.StreamInfo {
	return &jetstream.StreamInfo{Config: jetstream.StreamConfig{Replicas: r.replicas}}
}

func (r *replica) Info(ctx context.Context, opts ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	r.requests++
	if r.Stream != nil {
		return r.Stream.Info(ctx, opts...)
	}
	return &jetstream.StreamInfo{State: jetstream.StreamState{Subjects: r.subjects}}, r.fault
}

// TestALogThatAReplicaLacksIsNotGone: a server that has started again answers reads before it has all records. A client that resumes
// then must not hear that its stream is not there.
func TestALogThatAReplicaLacksIsNotGone(t *testing.T) {
	has := map[string]uint64{Subject + "t.id": 3}
	for _, c := range []struct {
		name     string
		replica  replica
		requests int
		want     error
	}{
		{"the leader has it", replica{replicas: 3, subjects: has}, 1, ErrNoJetStream},
		{"nobody has it", replica{replicas: 3}, 1, nil},
		{"no leader answers", replica{replicas: 3, fault: errors.New("no leader")}, 1, ErrNoJetStream},
		{"the stream is gone", replica{replicas: 3, fault: jetstream.ErrStreamNotFound}, 1, nil},
		{"one server", replica{replicas: 1, subjects: has}, 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := &journal{timeout: time.Second}
			var s jetstream.Stream = &c.replica
			j.stream.Store(&s)
			first, err := j.oldest(t.Context(), "t.id")
			require.ErrorIs(t, err, c.want)
			require.Zero(t, first)
			require.Equal(t, c.requests, c.replica.requests)
		})
	}
}

// TestTheLeaderOfAStreamCountsTheRecordsOfALog of a server.
func TestTheLeaderOfAStreamCountsTheRecordsOfALog(t *testing.T) {
	j := newJournal(t)
	_, _, err := j.write(t.Context(), "t.id", []byte("record"), 0)
	require.NoError(t, err)
	leader, err := j.js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	var s jetstream.Stream = &replica{Stream: leader, replicas: 3}
	j.stream.Store(&s)
	_, err = j.oldest(t.Context(), "t.id")
	require.ErrorIs(t, err, ErrNoJetStream)
	require.ErrorContains(t, err, "a replica lacks the 1 records of a log")
	_, err = j.oldest(t.Context(), "t.other")
	require.NoError(t, err)
}
