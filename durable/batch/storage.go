package batch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/objects"
)

// storage is what batches need of JetStream.
type storage interface {
	// create stores a new record.
	create(ctx context.Context, r *Record) error
	// get returns a record. The error of an unknown one is a 404.
	get(ctx context.Context, tenant, id string) (*Record, error)
	// change applies f to the newest record until nobody else changed it meanwhile. An error of f changes nothing.
	change(ctx context.Context, tenant, id string, f func(*Record) error) (*Record, error)
	// watch calls f with each record and each change, until ctx ends.
	watch(ctx context.Context, f func(*Record)) error

	// enqueue puts a line into the queue, unless it is there.
	enqueue(ctx context.Context, r *Record, line int, text []byte) error
	// take returns up to n lines of the queue. There may be none.
	take(ctx context.Context, r *Record, n int) ([]task, error)
	// queued returns the number of lines in the queue, with those that run.
	queued(ctx context.Context, r *Record) (int, error)
	// empty removes the lines of a batch from the queue.
	empty(ctx context.Context, r *Record) error

	// put stores a line's result durably, unless there is one. It reports whether it stored it.
	put(ctx context.Context, r *Record, line int, ok bool, result []byte) (bool, error)
	// result returns a line's result, nil if there is none.
	result(ctx context.Context, r *Record, line int) (body []byte, ok bool, err error)
	// follow calls f with each result, from the first one on, until it returns false or ctx ends.
	follow(ctx context.Context, r *Record, f func(line int, ok bool) bool) error
	// recorded calls f with each result that there is now.
	recorded(ctx context.Context, r *Record, f func(line int, ok bool)) error
	// forget removes the results and the queue of a batch that has ended.
	forget(ctx context.Context, r *Record) error
}

// task is a line that the queue has given out.
type task struct {
	line  int
	text  []byte
	tries int // how often it was given out, with this time
	msg   lease
}

// lease is what the worker of a task does with it. Without a sign of life for Options.Lease another worker gets the task.
type lease interface {
	InProgress() error
	Ack() error
	Nak() error
}

// Names in JetStream.
const (
	Records = "MILLRACE_BATCHES" // key-value bucket
	Work    = "MILLRACE_WORK"    // work queue: LineSubject, the tenant's token, the batch and the line
	Results = "MILLRACE_RESULTS" // results: ResultSubject and the same

	WorkSubject   = "millrace.work."
	LineSubject   = WorkSubject + "line."
	ResultSubject = "millrace.result."
)

const requestTime = 5 * time.Second

// headerStatus says whether a result is an answer or an error.
const (
	headerStatus = "Millrace-Status"
	statusOK     = "ok"
)

type stored struct {
	js      jetstream.JetStream
	records jetstream.KeyValue
	work    jetstream.Stream
	results jetstream.Stream
	lease   time.Duration

	consumers sync.Map // of the queue, by batch: jetstream.Consumer
}

// keepRecords is how long a batch can be read.
const keepRecords = 30 * 24 * time.Hour

// OpenWork creates the work queue if it is missing.
func OpenWork(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, bytes int64) (jetstream.Stream, error) {
	s, err := createStream(ctx, js, jetstream.StreamConfig{
		Name: Work, Subjects: []string{WorkSubject + ">"}, Description: "Millrace: lines of batches and responses in the background",
		Retention: jetstream.WorkQueuePolicy,
		Storage:   jetstream.FileStorage, MaxAge: MaxWindow + time.Hour, MaxBytes: bytes, Discard: jetstream.DiscardNew,
		Replicas: objects.Replicas(nc),
	})
	if err != nil {
		return nil, fmt.Errorf("batch: stream %s: %w", Work, err)
	}
	return s, nil
}

// createStream creates or updates a stream.
func createStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (s jetstream.Stream, err error) {
	err = durable.Settle(ctx, requestTime, func(ctx context.Context) (err error) {
		s, err = js.CreateOrUpdateStream(ctx, cfg)
		return err
	})
	return s, err
}

func openStorage(ctx context.Context, nc *nats.Conn, opts *Options) (_ *stored, err error) {
	js := opts.JetStream
	s := &stored{js: js, work: opts.Work, lease: opts.Lease}
	const small = 64 << 20 // records
	// The stream of a key-value bucket. CreateKeyValue also requests the account's limits, which no role may.
	if _, err = createStream(ctx, js, jetstream.StreamConfig{
		Name: "KV_" + Records, Subjects: []string{"$KV." + Records + ".>"}, Description: "Millrace: batches", MaxMsgsPerSubject: 1,
		AllowRollup: true, DenyDelete: true,
		AllowDirect: true, Discard: jetstream.DiscardNew, MaxAge: keepRecords, MaxBytes: small, Storage: jetstream.FileStorage,
		Replicas: objects.Replicas(nc),
	}); err == nil {
		err = durable.Settle(ctx, requestTime, func(ctx context.Context) (err error) {
			s.records, err = js.KeyValue(ctx, Records)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("batch: bucket %s: %w", Records, err)
	}
	if s.results, err = createStream(ctx, js, jetstream.StreamConfig{
		// read at the leader: a replica may lack the newest
		Name: Results, Subjects: []string{ResultSubject + ">"}, Description: "Millrace: results of batches' lines",
		Storage: jetstream.FileStorage,
		MaxAge:  keepRecords, MaxBytes: opts.MaxBytes, Discard: jetstream.DiscardNew, Replicas: objects.Replicas(nc),
	}); err != nil {
		return nil, fmt.Errorf("batch: stream %s: %w", Results, err)
	}
	return s, nil
}

func recordKey(tenant, id string) string { return durable.TenantToken(tenant) + "." + id }

func (r *Record) subject(prefix string, line int) string {
	return prefix + recordKey(r.Tenant, r.ID) + "." + strconv.Itoa(line)
}

func (r *Record) subjects(prefix string) string { return prefix + recordKey(r.Tenant, r.ID) + ".*" }

func notFound(id string) *api.Error {
	return &api.Error{Code: api.CodeNotFound, Reason: "batch_not_found",
		Message: fmt.Sprintf("no batch %s: it does not exist or has expired", api.Quote(id))}
}

func (s *stored) create(ctx context.Context, r *Record) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	body, err := json.Marshal(r)
	if err == nil {
		r.revision, err = s.records.Create(ctx, recordKey(r.Tenant, r.ID), body)
	}
	return err
}

func (s *stored) get(ctx context.Context, tenant, id string) (*Record, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	e, err := s.records.Get(ctx, recordKey(tenant, id))
	if errors.Is(err, jetstream.ErrKeyNotFound) || errors.Is(err, jetstream.ErrInvalidKey) {
		return nil, notFound(id)
	}
	if err != nil {
		return nil, err
	}
	return decode(e)
}

func decode(e jetstream.KeyValueEntry) (*Record, error) {
	r := &Record{revision: e.Revision()}
	return r, json.Unmarshal(e.Value(), r)
}

func (s *stored) change(ctx context.Context, tenant, id string, f func(*Record) error) (*Record, error) {
	for {
		r, err := s.get(ctx, tenant, id)
		if err != nil {
			return nil, err
		}
		if err := f(r); err != nil {
			return r, err
		}
		body, err := json.Marshal(r)
		if err != nil {
			return nil, err
		}
		once, cancel := context.WithTimeout(ctx, requestTime)
		revision, err := s.records.Update(once, recordKey(tenant, id), body, r.revision)
		cancel()
		if err == nil {
			r.revision = revision
			return r, nil
		}
		if !durable.WrongLast(err) {
			return nil, err
		}
	}
}

func (s *stored) watch(ctx context.Context, f func(*Record)) error {
	w, err := s.records.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return err
	}
	defer w.Stop() //nolint:errcheck // the connection may be gone
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case e, open := <-w.Updates():
			if !open {
				return nats.ErrConnectionClosed
			}
			if e == nil { // the end of what there was
				continue
			}
			if r, err := decode(e); err == nil {
				f(r)
			}
		}
	}
}

// publishNew publishes a message on the condition that its subject has none.
func (s *stored) publishNew(ctx context.Context, stream string, m *nats.Msg) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	_, err := s.js.PublishMsg(ctx, m, jetstream.WithExpectLastSequencePerSubject(0), jetstream.WithExpectStream(stream))
	if durable.WrongLast(err) {
		return false, nil
	}
	return err == nil, err
}

func (s *stored) enqueue(ctx context.Context, r *Record, line int, text []byte) error {
	m := nats.NewMsg(r.subject(LineSubject, line))
	m.Data = text
	_, err := s.publishNew(ctx, Work, m)
	return err
}

// consumer returns the batch's consumer of the queue.
func (s *stored) consumer(ctx context.Context, r *Record) (jetstream.Consumer, error) {
	if c, ok := s.consumers.Load(r.ID); ok {
		return c.(jetstream.Consumer), nil
	}
	const forgotten = 24 * time.Hour // a consumer that no gateway has used for this time; the next use makes it again
	c, err := s.work.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: r.ID, FilterSubject: r.subjects(LineSubject), AckPolicy: jetstream.AckExplicitPolicy, AckWait: s.lease,
		InactiveThreshold: forgotten,
	})
	if err == nil {
		s.consumers.Store(r.ID, c)
	}
	return c, err
}

func (s *stored) take(ctx context.Context, r *Record, n int) ([]task, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	c, err := s.consumer(ctx, r)
	if err != nil {
		return nil, err
	}
	batch, err := c.FetchNoWait(n)
	if err != nil {
		s.consumers.Delete(r.ID)
		return nil, err
	}
	var tasks []task
	for m := range batch.Messages() {
		line, err := lineOf(m.Subject())
		meta, metaErr := m.Metadata()
		if err != nil || metaErr != nil {
			m.Term() //nolint:errcheck // not ours; it would come again
			continue
		}
		tasks = append(tasks, task{line: line, text: m.Data(), tries: int(meta.NumDelivered), msg: m})
	}
	if err := batch.Error(); err != nil {
		s.consumers.Delete(r.ID) // it may be gone
		return tasks, err
	}
	return tasks, nil
}

// lineOf returns the line of a subject.
func lineOf(subject string) (int, error) {
	return strconv.Atoi(subject[strings.LastIndexByte(subject, '.')+1:])
}

func (s *stored) queued(ctx context.Context, r *Record) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	c, err := s.consumer(ctx, r)
	if err != nil {
		return 0, err
	}
	info, err := c.Info(ctx)
	if err != nil {
		s.consumers.Delete(r.ID)
		return 0, err
	}
	return int(info.NumPending) + info.NumAckPending, nil
}

func (s *stored) empty(ctx context.Context, r *Record) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return s.work.Purge(ctx, jetstream.WithPurgeSubject(r.subjects(LineSubject)))
}

func (s *stored) put(ctx context.Context, r *Record, line int, ok bool, result []byte) (bool, error) {
	m := nats.NewMsg(r.subject(ResultSubject, line))
	m.Data = result
	m.Header.Set(headerStatus, "error")
	if ok {
		m.Header.Set(headerStatus, statusOK)
	}
	return s.publishNew(ctx, Results, m)
}

func (s *stored) result(ctx context.Context, r *Record, line int) (body []byte, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	m, err := s.results.GetLastMsgForSubject(ctx, r.subject(ResultSubject, line))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	return m.Data, m.Header.Get(headerStatus) == statusOK, nil
}

// headers returns a consumer of the results of a batch, without their bodies.
func (s *stored) headers(ctx context.Context, r *Record) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	return s.results.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{r.subjects(ResultSubject)}, HeadersOnly: true, InactiveThreshold: time.Minute,
	})
}

func (s *stored) follow(ctx context.Context, r *Record, f func(line int, ok bool) bool) error {
	c, err := s.headers(ctx, r)
	if err != nil {
		return err
	}
	return each(ctx, c, func(m jetstream.Msg) (more bool, err error) {
		more = true
		if line, err := lineOf(m.Subject()); err == nil {
			more = f(line, succeeded(m))
		}
		return more, nil
	})
}

func (s *stored) recorded(ctx context.Context, r *Record, f func(line int, ok bool)) error {
	c, err := s.headers(ctx, r)
	if err != nil || c.CachedInfo().NumPending == 0 {
		return err
	}
	return each(ctx, c, func(m jetstream.Msg) (more bool, err error) {
		if line, err := lineOf(m.Subject()); err == nil {
			f(line, succeeded(m))
		}
		meta, err := m.Metadata()
		return err == nil && meta.NumPending > 0, err
	})
}

// each calls f with the messages of a consumer, until it wants no more or returns an error.
func each(ctx context.Context, c jetstream.Consumer, f func(jetstream.Msg) (more bool, err error)) error {
	in, err := c.Messages()
	if err != nil {
		return err
	}
	defer in.Stop()
	for {
		m, err := in.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if more, err := f(m); !more || err != nil {
			return err
		}
	}
}

func succeeded(m jetstream.Msg) bool { return m.Headers().Get(headerStatus) == statusOK }

func (s *stored) forget(ctx context.Context, r *Record) error {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	s.consumers.Delete(r.ID)
	err := s.work.DeleteConsumer(ctx, r.ID)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = nil
	}
	return errors.Join(err, s.work.Purge(ctx, jetstream.WithPurgeSubject(r.subjects(LineSubject))),
		s.results.Purge(ctx, jetstream.WithPurgeSubject(r.subjects(ResultSubject))))
}
