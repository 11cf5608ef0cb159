package durable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/api"
)

// Names in JetStream.
const (
	// Stream has the logs of all calls: Subject, the tenant's token, a dot and the call's id.
	// (A version before kept the logs of all tenants at Subject and the id.)
	Stream  = "MILLRACE_JOURNAL"
	Subject = "millrace.journal."
)

// perMessage is what JetStream keeps beside a message's body, at most: the subject, the
// headers that a write's condition needs, and its own fields.
const messageOverhead = 256

// headerPart is on the messages of a record that needs several: "2/5".
const headerPart = "Millrace-Part"

var (
	errNoLog       = errors.New("resume: no such log")
	errFenced      = errors.New("resume: another process has written to the log")
	errNoJetStream = errors.New("resume: JetStream does not answer")
	errFull        = errors.New("resume: no room for the log")
)

// journal is the logs of all calls in one JetStream stream.
type journal struct {
	js       jetstream.JetStream
	maxAge   time.Duration // of a record
	maxBytes int64
	replicas int
	maxBody  int // bytes of a message's body
	timeout  time.Duration
	bytes    prometheus.Counter
	stream   atomic.Pointer[jetstream.Stream] // of some time: for its name
}

// ensure makes the stream where it is missing. One that is there stays as it is, except for
// its subjects and what it does when it is full.
func (j *journal) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	cfg := jetstream.StreamConfig{
		Name: Stream, Subjects: []string{Subject + ">"}, Storage: jetstream.MemoryStorage,
		Description: "Millrace: logs of resumable calls", AllowDirect: true,
		MaxAge: j.maxAge, MaxBytes: j.maxBytes, Discard: jetstream.DiscardNew, Replicas: j.replicas,
	}
	_, err := j.js.CreateStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		err = j.upgrade(ctx, cfg)
	}
	if err != nil {
		return fmt.Errorf("%w: stream %s: %w", errNoJetStream, Stream, err)
	}
	return nil
}

// upgrade changes the stream that a version before has made: it had a subject for each call
// of all tenants, and removed the oldest records when it was full.
func (j *journal) upgrade(ctx context.Context, cfg jetstream.StreamConfig) error {
	s, err := j.js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	is := s.CachedInfo().Config
	if slices.Equal(is.Subjects, cfg.Subjects) && is.Discard == cfg.Discard {
		return nil
	}
	is.Subjects, is.Discard = cfg.Subjects, cfg.Discard
	_, err = j.js.UpdateStream(ctx, is)
	return err
}

// cost is what JetStream keeps for a record with a body of n bytes.
func (j *journal) cost(n int) int64 { return int64(n) + int64(j.parts(n))*messageOverhead }

// parts is the number of messages of a record.
func (j *journal) parts(n int) int { return max(1, (n+j.maxBody-1)/j.maxBody) }

// publish appends a record after stream sequence last of the log and
// returns the sequences of its own first and last message. errFenced: something else lies there, or
// nothing at all. errFull: the stream is full. Any other error leaves open whether the record is there.
func (j *journal) publish(ctx context.Context, log string, r *record, last uint64) (first, end uint64, err error) {
	return j.write(ctx, log, r.encode(), last)
}

// write is publish for a record in its form.
func (j *journal) write(ctx context.Context, log string, body []byte, last uint64) (first, end uint64, err error) {
	j.bytes.Add(float64(len(body)))
	parts := j.parts(len(body))
	for i := range parts {
		m := nats.NewMsg(Subject + log)
		m.Data = body[i*j.maxBody : min((i+1)*j.maxBody, len(body))]
		if parts > 1 {
			m.Header.Set(headerPart, fmt.Sprintf("%d/%d", i+1, parts))
		}
		if last, err = j.send(ctx, m, last); err != nil {
			return 0, 0, err
		}
		if i == 0 {
			first = last
		}
	}
	return first, last, nil
}

func (j *journal) send(ctx context.Context, m *nats.Msg, last uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	ack, err := j.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(last),
		jetstream.WithExpectStream(Stream), jetstream.WithRetryAttempts(0))
	if wrongLast(err) {
		return 0, errFenced
	}
	if full(err) {
		return 0, errFull
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errNoJetStream, err)
	}
	return ack.Sequence, nil
}

// wrongLast: a clustered server has a second code for it, without the sequence found.
func wrongLast(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && (e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// full: the stream discards new messages now. The server has no code of its own for it.
func full(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && strings.Contains(e.Description, "maximum bytes exceeded")
}

// purge removes the records of a log before a stream sequence; 0: all of them.
func (j *journal) purge(ctx context.Context, log string, before uint64) error {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s, err := j.js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(Subject + log)}
	if before > 0 {
		opts = append(opts, jetstream.WithPurgeSequence(before))
	}
	return s.Purge(ctx, opts...)
}

// newest is the stream sequence of a log's newest record; 0 when there is none.
func (j *journal) newest(ctx context.Context, log string) (uint64, error) {
	if s := j.stream.Load(); s != nil {
		once, cancel := context.WithTimeout(ctx, j.timeout)
		m, err := (*s).GetLastMsgForSubject(once, Subject+log)
		cancel()
		if err == nil {
			return m.Sequence, nil
		}
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return 0, nil
		}
	}
	seq, _, err := j.newestOf(ctx, log)
	return seq, err
}

// newestOf is newest, and when the stream was made that has it.
func (j *journal) newestOf(ctx context.Context, log string) (seq uint64, made time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s, err := j.js.Stream(ctx, Stream)
	if err == nil {
		j.stream.Store(&s)
		made = s.CachedInfo().Created
		var m *jetstream.RawStreamMsg
		if m, err = s.GetLastMsgForSubject(ctx, Subject+log); err == nil {
			return m.Sequence, made, nil
		}
	}
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, made, nil
	}
	return 0, made, fmt.Errorf("%w: %w", errNoJetStream, err)
}

// young says whether the stream was made a short time ago, or is missing: then a
// log that is not there may be one that its owner is about to write again.
func (j *journal) recentlyCreated(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s, err := j.js.Stream(ctx, Stream)
	return err != nil || time.Since(s.CachedInfo().Created) < time.Minute
}

// entry is a record with its place; without a record it is a part of one, whose
// end is not there yet.
type entry struct {
	*record
	first, last uint64 // stream sequences
	bytes       int64  // that it takes in the stream
	pending     uint64 // messages that wait behind it
}

// tail reads a log from a stream sequence on.
type tail struct {
	messages jetstream.MessagesContext
	stop     func()
	created  time.Time // when the stream was: another one has other logs, perhaps under the same sequences
	pending  uint64    // messages there were at the beginning
	part     struct {
		body  []byte
		n     int
		first uint64
	}
	bytes int64 // of the messages since the last whole record
}

func (j *journal) tail(ctx context.Context, log string, from uint64) (*tail, error) {
	create, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	cfg := jetstream.OrderedConsumerConfig{FilterSubjects: []string{Subject + log}, MaxResetAttempts: 1, InactiveThreshold: time.Minute}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	var c jetstream.Consumer
	s, err := j.js.Stream(create, Stream)
	if err == nil {
		c, err = s.OrderedConsumer(create, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, errNoLog
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoJetStream, err)
	}
	info := c.CachedInfo()
	messages, err := c.Messages()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoJetStream, err)
	}
	return &tail{messages: messages, created: s.CachedInfo().Created, pending: info.NumPending, stop: func() {
		messages.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), j.timeout)
		defer cancel()
		j.js.DeleteConsumer(ctx, Stream, c.CachedInfo().Name) //nolint:errcheck // it also ends by itself
	}}, nil
}

// next waits for the next message.
func (t *tail) next(ctx context.Context) (entry, error) {
	m, err := t.messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return entry{}, err
	}
	meta, err := m.Metadata()
	if err != nil {
		return entry{}, err
	}
	e := entry{last: meta.Sequence.Stream, pending: meta.NumPending}
	t.bytes += int64(len(m.Data())) + messageOverhead
	body, first, whole := t.join(m.Headers().Get(headerPart), m.Data(), e.last)
	if whole {
		e.first, e.bytes, t.bytes = first, t.bytes, 0
		e.record, err = decodeRecord(body)
	}
	return e, err
}

// join gathers the parts of a record. Parts whose rest is missing (their writer
// died, and wrote or was followed by something else) are dropped.
func (t *tail) join(part string, body []byte, seq uint64) (whole []byte, first uint64, ok bool) {
	if part == "" {
		t.part.n = 0
		return body, seq, true
	}
	var i, of int
	if _, err := fmt.Sscanf(part, "%d/%d", &i, &of); err != nil || i < 1 || i > of {
		t.part.n = 0
		return nil, 0, false
	}
	if i == 1 {
		t.part.body, t.part.n, t.part.first = nil, 0, seq
	}
	if i != t.part.n+1 {
		t.part.n = 0
		return nil, 0, false
	}
	t.part.body, t.part.n = append(t.part.body, body...), i
	return t.part.body, t.part.first, i == of
}

// load reads a whole log into s and returns its events. errNoLog: there is none; errGap:
// records are missing, and s has what the others say; errNotOurs, errReplaced and errOutgrown as
// of state.apply.
func (j *journal) load(ctx context.Context, log string, s *state) ([]api.Event, error) {
	newest, err := j.newest(ctx, log)
	if err != nil {
		return nil, err
	}
	if newest == 0 {
		return nil, errNoLog
	}
	t, err := j.tail(ctx, log, 0)
	if err != nil {
		return nil, err
	}
	defer t.stop()
	if t.pending == 0 {
		return nil, errNoLog
	}
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s.created = t.created
	var events []api.Event
	for {
		e, err := t.next(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errNoJetStream, err)
		}
		added, err := s.apply(e)
		if err != nil {
			return nil, err
		}
		events = append(events, added...)
		if e.pending == 0 {
			return events, s.whole()
		}
	}
}
