package log

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
	"golang.org/x/sync/singleflight"

	"github.com/millrace/millrace/durable"
)

// Names in JetStream.
const (
	// Stream is the stream with the logs of all calls. The subject of a log is Subject, the tenant's
	// token, a dot and the call's id.
	Stream = "MILLRACE_JOURNAL"
	// Subject is the beginning of every log's subject.
	Subject = "millrace.journal."
)

// bodyLimit is the largest body of a message, in bytes. A NATS connection keeps a buffer of the size of the largest
// message that it sent.
const bodyLimit = 512 << 10

// messageOverhead is the most that JetStream stores for a message in addition to its body, in bytes:
// the subject, the headers for the condition of a write, and its own fields.
const messageOverhead = 256

// headerPart is a header of the messages of a record that needs several. Its value is like "2/5".
const headerPart = "Millrace-Part"

// Why a log cannot be read or written.
var (
	ErrNoLog       = errors.New("durable: found no log")
	ErrFenced      = errors.New("durable: another process has written to the log")
	ErrNoJetStream = errors.New("durable: JetStream is unavailable")
	ErrFull        = errors.New("durable: the stream of logs is full")
)

// journal reads and writes the logs of all calls, in one JetStream stream.
type journal struct {
	js       jetstream.JetStream
	maxAge   time.Duration // of a record
	maxBytes int64
	replicas int
	maxBody  int // bytes in the body of a message
	timeout  time.Duration
	bytes    prometheus.Counter
	stream   atomic.Pointer[jetstream.Stream] // to read messages by subject; the stream may be a newer one of that name
	created  singleflight.Group               // requests for the stream's creation
	first    time.Time                        // creation of the stream that this process found at its start
	loads    loads
}

// open creates the stream if it is missing, and notes when it was created.
func (j *journal) open(ctx context.Context) error {
	return durable.Settle(ctx, j.timeout, func(ctx context.Context) (err error) {
		if err = j.ensure(ctx); err == nil {
			j.first, err = j.creation(ctx)
		}
		return err
	})
}

// ensure creates the stream if it is missing. The configuration of an existing stream stays as it is.
func (j *journal) ensure(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	cfg := jetstream.StreamConfig{
		Name: Stream, Subjects: []string{Subject + ">"}, Storage: jetstream.MemoryStorage,
		Description: "Millrace: logs of resumable calls", AllowDirect: true,
		MaxAge: j.maxAge, MaxBytes: j.maxBytes, Discard: jetstream.DiscardNew, Replicas: j.replicas,
	}
	_, err := j.js.CreateStream(ctx, cfg)
	if err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("%w: stream %s: %w", ErrNoJetStream, Stream, err)
	}
	return nil
}

// cost returns the bytes that JetStream stores for a record with a body of n bytes.
func (j *journal) cost(n int) int64 { return int64(n) + int64(j.parts(n))*messageOverhead }

// parts returns the number of messages for a record with a body of n bytes.
func (j *journal) parts(n int) int { return max(1, (n+j.maxBody-1)/j.maxBody) }

// publish appends a record on the condition that the log's last stream sequence is last. It returns the
// sequences of the record's first and last message. The error is ErrFenced if the condition fails, and
// ErrFull if the stream is full. After any other error the record may or may not be in the log.
func (j *journal) publish(ctx context.Context, log string, r *Record, last uint64) (first, end uint64, err error) {
	return j.write(ctx, log, r.encode(), last)
}

// write is publish for an encoded record.
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
	if durable.WrongLast(err) {
		return 0, ErrFenced
	}
	if full(err) {
		return 0, ErrFull
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoJetStream, err)
	}
	return ack.Sequence, nil
}

// full reports whether err means that the stream is full. The server has no code for it.
func full(err error) bool {
	var e *jetstream.APIError
	return errors.As(err, &e) && strings.Contains(e.Description, "maximum bytes exceeded")
}

// purge removes the records of a log before a stream sequence. 0 removes all of them.
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

// newest returns the stream sequence of a log's newest record, or 0 if there is none.
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

// oldest returns the stream sequence of a log's oldest record, or 0 if there is none.
func (j *journal) oldest(ctx context.Context, log string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	if j.stream.Load() == nil {
		if _, err := j.creation(ctx); err != nil {
			return 0, notThere(err)
		}
	}
	m, err := (*j.stream.Load()).GetMsg(ctx, 1, jetstream.WithGetMsgSubject(Subject+log))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return 0, j.absent(ctx, *j.stream.Load(), log)
	}
	if errors.Is(err, nats.ErrNoResponders) { // the stream is gone, or the server is not there yet
		if _, gone := j.creation(ctx); gone != nil {
			err = gone
		}
	}
	if err != nil {
		return 0, notThere(err)
	}
	return m.Sequence, nil
}

// absent returns nil if a log that a read did not find is not there. Any replica of a stream answers reads, and one that has started again
// does not have all records yet. The leader has: it decides. A request for the stream's state, which is for the leader, is answered by
// others too while there is none, and by a server that has just started again and was the first leader.
func (j *journal) absent(ctx context.Context, s jetstream.Stream, log string) error {
	if s.CachedInfo().Config.Replicas < 2 {
		return nil
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(Subject+log))
	if err != nil {
		return notThere(err)
	}
	if n := info.State.Subjects[Subject+log]; n > 0 {
		return fmt.Errorf("%w: a replica lacks the %d records of a log", ErrNoJetStream, n)
	}
	if !byLeader(info.Cluster) {
		return fmt.Errorf("%w: a replica without records answered in place of the leader", ErrNoJetStream)
	}
	return nil
}

// byLeader says whether the state of a stream is that of its leader. The replicas that a server names are the others; nil: it is alone.
func byLeader(c *jetstream.ClusterInfo) bool {
	return c == nil || c.Leader != "" && !slices.ContainsFunc(c.Replicas, func(p *jetstream.PeerInfo) bool { return p.Name == c.Leader })
}

// notThere returns nil for an error that says that there is no log, and an error of JetStream for any other.
func notThere(err error) error {
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrNoJetStream, err)
}

// newestOf is newest and also returns when the stream was created.
func (j *journal) newestOf(ctx context.Context, log string) (seq uint64, created time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s, err := j.js.Stream(ctx, Stream)
	if err == nil {
		j.stream.Store(&s)
		created = s.CachedInfo().Created
		var m *jetstream.RawStreamMsg
		if m, err = s.GetLastMsgForSubject(ctx, Subject+log); err == nil {
			return m.Sequence, created, nil
		}
	}
	return 0, created, notThere(err)
}

// creation returns when the stream was created. Callers at the same time share a request: a gateway
// takes over many calls at once.
func (j *journal) creation(ctx context.Context) (time.Time, error) {
	answer := j.created.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), j.timeout)
		defer cancel()
		s, err := j.js.Stream(ctx, Stream)
		if err != nil {
			return time.Time{}, err
		}
		j.stream.Store(&s)
		return s.CachedInfo().Created, nil
	})
	select {
	case a := <-answer:
		return a.Val.(time.Time), a.Err
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	}
}

// recentlyCreated reports whether the stream was created within a time or is missing. Then the
// owner of a missing log may be about to write it again.
func (j *journal) recentlyCreated(ctx context.Context, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	s, err := j.js.Stream(ctx, Stream)
	return err != nil || time.Since(s.CachedInfo().Created) < within
}

// recentlyLost reports whether a stream that this process has used is gone since a minute at most.
func (j *journal) recentlyLost(ctx context.Context) bool {
	if !j.recentlyCreated(ctx, time.Minute) {
		return false
	}
	created, err := j.creation(ctx)
	return err != nil || !created.Equal(j.first)
}

// Entry is a record with its position in the stream. Without a record it is a part of one that is not
// complete yet.
type Entry struct {
	*Record
	first, last uint64 // stream sequences
	bytes       int64  // size in the stream
	Pending     uint64 // number of messages after it
}

// unreadFor is how long the server keeps the consumer of a tail that has ended. A request for its
// removal would hold up those that read the next logs.
const unreadFor = 10 * time.Second

// Bounds of the messages that a tail requests at once. On a busy machine each request takes a while.
const (
	leastPull = 500
	mostPull  = 8192
)

// Tail reads logs, beginning at a stream sequence.
type Tail struct {
	messages jetstream.MessagesContext
	created  time.Time // creation of the stream: another stream has other logs, perhaps with the same sequences
	Pending  uint64    // number of messages in the logs when the tail began
	assembly           // of the log, if there is one
}

// tail returns a reader of logs from a stream sequence on; 0 is the beginning. ErrNoLog means that there
// is no stream.
func (j *journal) tail(ctx context.Context, from uint64, logs ...string) (*Tail, error) {
	create, cancel := context.WithTimeout(ctx, j.timeout)
	defer cancel()
	cfg := jetstream.OrderedConsumerConfig{MaxResetAttempts: 1, InactiveThreshold: unreadFor}
	for _, log := range logs {
		cfg.FilterSubjects = append(cfg.FilterSubjects, Subject+log)
	}
	if from > 0 {
		cfg.DeliverPolicy, cfg.OptStartSeq = jetstream.DeliverByStartSequencePolicy, from
	}
	var c jetstream.Consumer
	created, err := j.creation(create) // before the consumer: a log of a later stream is then not taken for one of this
	if err == nil {
		c, err = j.js.OrderedConsumer(create, Stream, cfg)
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, ErrNoLog
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJetStream, err)
	}
	info := c.CachedInfo()
	messages, err := c.Messages(jetstream.PullMaxMessages(int(min(max(info.NumPending, leastPull), mostPull))))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoJetStream, err)
	}
	return &Tail{messages: messages, created: created, Pending: info.NumPending}, nil
}

// Stop ends the reader.
func (t *Tail) Stop() { t.messages.Stop() }

// Next waits for the next message of the log.
func (t *Tail) Next(ctx context.Context) (Entry, error) {
	m, err := t.messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return Entry{}, err
	}
	return t.add(m)
}

// assembly makes entries of the messages of a log.
type assembly struct {
	part struct {
		body  []byte
		n     int
		first uint64
	}
	bytes int64 // size of the messages since the last whole record
}

// add adds the log's next message.
func (a *assembly) add(m jetstream.Msg) (Entry, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Entry{}, err
	}
	e := Entry{last: meta.Sequence.Stream, Pending: meta.NumPending}
	a.bytes += int64(len(m.Data())) + messageOverhead
	body, first, whole := a.join(m.Headers().Get(headerPart), m.Data(), e.last)
	if whole {
		e.first, e.bytes, a.bytes = first, a.bytes, 0
		e.Record, err = decodeRecord(body)
	}
	return e, err
}

// join joins the parts of a record. It drops the parts of an incomplete record, whose writer died or
// was fenced.
func (a *assembly) join(part string, body []byte, seq uint64) (whole []byte, first uint64, ok bool) {
	if part == "" {
		a.part.n = 0
		return body, seq, true
	}
	var i, of int
	if _, err := fmt.Sscanf(part, "%d/%d", &i, &of); err != nil || i < 1 || i > of {
		a.part.n = 0
		return nil, 0, false
	}
	if i == 1 {
		a.part.body, a.part.n, a.part.first = nil, 0, seq
	}
	if i != a.part.n+1 {
		a.part.n = 0
		return nil, 0, false
	}
	a.part.body, a.part.n = append(a.part.body, body...), i
	return a.part.body, a.part.first, i == of
}
