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

	"github.com/millrace/millrace/api"
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

// young is JetStream with a stream that a server does not know for some requests.
type young struct {
	jetstream.JetStream
	unknown int
}

func (y *young) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if y.unknown--; y.unknown >= 0 {
		return nil, jetstream.ErrStreamNotFound
	}
	return y.JetStream.Stream(ctx, name)
}

func TestAStreamThatIsNotKnownYetIsAwaited(t *testing.T) {
	j := newJournal(t)
	j.js = &young{j.js, 3}
	require.NoError(t, j.open(t.Context()))
	require.False(t, j.first.IsZero())
	j.js = &young{j.js, 1 << 30}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, j.open(ctx), jetstream.ErrStreamNotFound)
}

// replica is a stream whose reads are answered by a server that has no records, and whose leader has some.
type replica struct {
	jetstream.Stream // the leader, if it is a server; else:
	replicas         int
	subjects         map[string]uint64 // of the leader
	cluster          *jetstream.ClusterInfo
	fault            error  // of a request to the leader
	first            uint64 // the sequence of a record that a read finds; 0: none
	requests         int
}

func (r *replica) GetMsg(context.Context, uint64, ...jetstream.GetMsgOpt) (*jetstream.RawStreamMsg, error) {
	if r.first > 0 {
		return &jetstream.RawStreamMsg{Sequence: r.first}, nil
	}
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
	return &jetstream.StreamInfo{State: jetstream.StreamState{Subjects: r.subjects}, Cluster: r.cluster}, r.fault
}

// TestALogThatAReplicaLacksIsNotGone: a server that has started again answers reads before it has all records. A client that resumes
// then must not hear that its stream is not there.
func TestALogThatAReplicaLacksIsNotGone(t *testing.T) {
	has := map[string]uint64{Subject + "t.id": 3}
	led := func(leader string, others ...string) *jetstream.ClusterInfo {
		c := &jetstream.ClusterInfo{Leader: leader}
		for _, name := range others {
			c.Replicas = append(c.Replicas, &jetstream.PeerInfo{Name: name})
		}
		return c
	}
	for _, c := range []struct {
		name     string
		replica  replica
		requests int
		want     error
	}{
		{"the leader has it", replica{replicas: 3, subjects: has, cluster: led("a", "b", "c")}, 1, ErrNoJetStream},
		{"nobody has it", replica{replicas: 3, cluster: led("a", "b", "c")}, 1, nil},
		{"a replica answers while there is no leader", replica{replicas: 3, cluster: led("", "b", "c")}, 1, ErrNoJetStream},
		{"a replica answers in place of the leader", replica{replicas: 3, cluster: led("a", "a", "b")}, 1, ErrNoJetStream},
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

// stale is JetStream whose consumers are at a replica that lacks all records, for some time.
type stale struct {
	jetstream.JetStream
	replica string // a stream
	times   int
}

func (s *stale) OrderedConsumer(ctx context.Context, stream string, cfg jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	if s.times--; s.times >= 0 {
		stream, cfg.DeliverPolicy, cfg.OptStartSeq = s.replica, jetstream.DeliverAllPolicy, 0
	}
	return s.JetStream.OrderedConsumer(ctx, stream, cfg)
}

// lateReplica has the journal's next consumers at a replica that lacks all records.
func lateReplica(t *testing.T, j *journal, times int) {
	t.Helper()
	s, err := j.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "LATE", Sources: []*jetstream.StreamSource{{Name: Stream}},
		Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	leader, err := j.js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := s.Info(t.Context())
		return err == nil && info.State.LastSeq == leader.CachedInfo().State.LastSeq
	}, 10*time.Second, time.Millisecond)
	require.NoError(t, s.Purge(t.Context()))
	j.js = &stale{j.js, "LATE", times}
}

// TestALogWhoseConsumerLacksItsRecordsIsNotGone, as above: a read that has found the log's first record then reads it at another replica.
func TestALogWhoseConsumerLacksItsRecordsIsNotGone(t *testing.T) {
	j := newJournal(t)
	_, _, err := j.publish(t.Context(), "t.id", &Record{Call: &CallRecord{ID: "id", Tenant: "t"}}, 0)
	require.NoError(t, err)
	leader, err := j.js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	lateReplica(t, j, 1)
	for _, want := range []error{ErrNoJetStream, nil} {
		var s jetstream.Stream = &replica{Stream: leader, replicas: 3, first: 1}
		j.stream.Store(&s)
		_, err = j.load(t.Context(), "t.id", &State{Tenant: "t", ID: "id"})
		require.ErrorIs(t, err, want)
	}
}

// TestAWriterTakesNoReplicaThatLacksRecordsForAnotherWriter: its record was written, its acknowledgment was lost, and it reads its log to find
// that out.
func TestAWriterTakesNoReplicaThatLacksRecordsForAnotherWriter(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	store, err := OpenStore(t.Context(), nc, StoreOptions{Tenants: func() int { return 1 }, Keep: time.Second, Age: time.Minute,
		MaxBytes: 64 << 20, Outage: time.Minute, Timeout: 10 * time.Second})
	require.NoError(t, err)
	l := store.Log("t", "id", api.NewBuffer())
	require.True(t, l.Prepare(&CallRecord{ID: "id", Tenant: "t"}))
	require.NoError(t, l.Create(t.Context(), time.Minute, func() error { return nil }))
	events := []api.Event{{Seq: 1, Text: "a"}}
	_, last, err := store.journal.publish(t.Context(), l.Name(), &Record{Log: l.Log, Token: l.token, Events: events}, l.Last)
	require.NoError(t, err)
	lateReplica(t, store.journal, 2)
	require.NoError(t, l.Append(t.Context(), events))
	require.Equal(t, last, l.Last)

	other := store.Log("t", "id", api.NewBuffer())
	other.name = l.name
	st, _, err := other.Load(t.Context())
	require.NoError(t, err)
	other.Adopt(st)
	require.NoError(t, other.TakeOver(t.Context()))
	require.ErrorIs(t, l.Append(t.Context(), []api.Event{{Seq: 2, Text: "b"}}), ErrFenced)
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
