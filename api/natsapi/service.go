// Package natsapi serves an engine as a NATS micro service: OpenAI's JSON in a
// request, the same JSON in the reply, many messages when it streams. See
// docs/api.md for subjects, headers and endings. It must not know HTTP or how a call runs.
package natsapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai/wire"
	"github.com/millrace/millrace/tracing"
)

// Headers of the messages of a stream.
const (
	HeaderSeq        = "Millrace-Seq"           // 1, 2, ... without a gap
	HeaderEnd        = "Millrace-End"           // on the last message: stop, length, cancelled or error
	HeaderCancel     = "Millrace-Cancel"        // on the first: a message to this subject cancels
	HeaderPing       = "Millrace-Ping"          // a sign of life, no part of the numbering
	HeaderInterval   = "Millrace-Ping-Interval" // on the first of a resumable stream: seconds of silence before a sign of life
	HeaderRetryAfter = "Retry-After"            // seconds, with errors 429 and 503
	HeaderID         = "Millrace-Id"            // on the first of a resumable stream: what to resume
	HeaderBody       = "Millrace-Body"          // of a request: the id of its body, which came in parts
	HeaderPart       = "Millrace-Part"          // of a request's part its offset, of an answer's its number: 2/3
	HeaderAccept     = "Millrace-Accept"        // of a request: "parts", for an answer above a message's size
	HeaderKey        = "Authorization"          // of a request: "Bearer KEY"
)

// Options of the service. The zero value of each has the default that its
// comment names.
type Options struct {
	Logger      zerolog.Logger
	Version     string        // semantic version in `nats micro ls`; 0.0.0
	Fingerprint string        // system_fingerprint: what computes the answers
	MaxBody     int           // bytes of a request; 4 MiB
	MaxRequests int           // answered at once; 1024
	PingAfter   time.Duration // silence before a stream's sign of life; 1 s
	Keys        api.Keys      // of the callers; nil: everybody may call
	Calls       call.Runner   // of the calls; nil: directly at the engine
	Tracer      trace.Tracer  // nil: no traces
}

func (o *Options) defaults() {
	if o.Version == "" {
		o.Version = "0.0.0"
	}
	if o.MaxBody == 0 {
		o.MaxBody = 4 << 20
	}
	if o.MaxRequests == 0 {
		o.MaxRequests = 1024
	}
	if o.Tracer == nil {
		o.Tracer = tracing.Off()
	}
	if o.PingAfter == 0 {
		o.PingAfter = time.Second
	}
}

// subjects is before the name of each operation.
const subjects = "millrace.v1."

// flushTimeout is for messages to leave, and for what the server sent before to come.
const flushTimeout = 5 * time.Second

// Service answers requests from Start until Stop.
type Service struct {
	nc          *nats.Conn
	out         outbox
	engine      api.Engine
	opts        Options
	discovery   *discovery
	cancel      *nats.Subscription // of every stream's cancel subject
	prefix      string             // of the cancel subjects
	ownSubjects string             // of the subjects that are this service's alone

	uploads *uploads
	slots   chan struct{} // one for each request that is being answered
	ctx     context.Context
	end     context.CancelCauseFunc

	stopOnce sync.Once
	stopErr  error

	mu      sync.Mutex
	running map[string]running // by cancel subject
}

// Why an answer was cut short.
var (
	errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}
	errNoReader  = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "nobody listens any more"}
	// errReaderAway is errNoReader of a resumable stream: who was only away, as behind a restart of NATS, goes on.
	errReaderAway = &api.Error{Code: api.CodeUnavailable, Reason: "moved", Message: "nobody listened for a moment: the stream goes on where it is asked for"}
	errStopping   = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "the server is stopping"}
)

// Start adds the service to the connection, which stays the caller's.
func Start(nc *nats.Conn, engine api.Engine, opts Options) (*Service, error) {
	opts.defaults()
	if opts.Calls == nil {
		opts.Calls = call.NewDirect(engine)
	}
	name := strings.ToLower(rand.Text())
	s := &Service{nc: nc, out: outbox{nc}, engine: engine, opts: opts,
		prefix:      subjects + "cancel." + name + ".",
		ownSubjects: subjects + "at." + name + ".",
		slots:       make(chan struct{}, opts.MaxRequests),
		uploads:     newUploads(&opts),
		running:     map[string]running{}}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	if err := s.subscribe(); err != nil {
		s.end(err)
		return nil, errors.Join(fmt.Errorf("natsapi: %w", err), s.unsubscribe())
	}
	return s, nil
}

func (s *Service) subscribe() (err error) {
	if s.cancel, err = s.nc.Subscribe(s.prefix+"*", s.onCancel); err != nil {
		return err
	}
	s.discovery = &discovery{out: s.out, started: time.Now().UTC(),
		id:        micro.ServiceIdentity{Name: serviceName, ID: nuid.Next(), Version: s.opts.Version, Metadata: map[string]string{}},
		endpoints: s.endpoints()}
	for _, e := range s.discovery.endpoints {
		if err := e.listen(s.nc, s.handle(e)); err != nil {
			return fmt.Errorf("%s: %w", e.subject, err)
		}
	}
	if err := s.discovery.listen(); err != nil {
		return err
	}
	return s.nc.Flush()
}

func (s *Service) endpoints() []*endpoint {
	list := []*endpoint{ // of the queue group
		{name: "chat-completions", subject: "chat.completions", answer: s.generate(wire.DecodeChat)},
		{name: "completions", subject: "completions", answer: s.generate(wire.DecodeCompletion)},
		{name: "streams-resume", subject: "streams.resume", answer: s.resumeStream},
		{name: "tokenize", subject: "tokenize", answer: s.unary(call.NewUnary(wire.DecodeTokenize, api.Engine.Tokenize, wire.EncodeTokenize))},
		{name: "detokenize", subject: "detokenize", answer: s.unary(call.NewUnary(wire.DecodeDetokenize, call.Detokenize, wire.EncodeDetokenize))},
		{name: "bodies-open", subject: "bodies.open", answer: s.openBody},
	}
	for _, e := range list { // the same of this gateway alone
		list = append(list, &endpoint{name: e.name + "-here", subject: s.ownSubjects + e.subject, answer: e.answer, unqueued: true})
		e.subject = subjects + e.subject
	}
	return append(list,
		&endpoint{name: "bodies-part-here", subject: s.ownSubjects + "bodies.part", answer: s.addPart, unqueued: true},
		&endpoint{name: "gateways", subject: subjects + "gateways", answer: s.gateway, unqueued: true},
		&endpoint{name: "streams-cancel", subject: subjects + "streams.cancel", answer: s.cancelStream},
		&endpoint{name: "models", subject: subjects + "models", answer: s.unary(models)},
		&endpoint{name: "embeddings", subject: subjects + "embeddings", answer: s.unary(embeddings)})
}

// gateway answers a client that has lost a gateway: who answers is there, while a queue
// group sends requests to one that was stopped as well.
func (s *Service) gateway(_ context.Context, r *reply, _ []byte) {
	r.single(fmt.Appendf(nil, `{"subjects":%q}`, s.ownSubjects))
}

// Leave has new requests go to other services: when it returns, those that the NATS
// server sent here have come, and no more will. What is being answered goes on.
func (s *Service) Leave() error {
	return errors.Join(s.discovery.leave(), s.nc.FlushTimeout(flushTimeout))
}

// Stop takes no more requests, waits for those that are being answered until ctx
// ends, and then cancels them. Later calls return what the first did.
func (s *Service) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Service) stop(ctx context.Context) error {
	err := s.Leave()
	for range cap(s.slots) { // holding every slot: nothing runs
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			s.end(errStopping)
			s.slots <- struct{}{}
		}
	}
	s.end(errStopping)
	return errors.Join(err, s.unsubscribe(), s.nc.FlushTimeout(flushTimeout))
}

func (s *Service) unsubscribe() error {
	if s.cancel == nil {
		return nil
	}
	return s.cancel.Unsubscribe()
}

// handle answers each request in a goroutine of its own: the dispatcher of the
// subscription never waits. What comes when all slots are taken is refused, and what cannot be
// answered is not computed.
func (s *Service) handle(e *endpoint) nats.MsgHandler {
	return func(m *nats.Msg) {
		to, err := toInbox(m.Reply)
		if err != nil {
			s.opts.Logger.Debug().Str("subject", m.Subject).Err(err).Msg("nats: request dropped")
			return
		}
		r := &reply{nc: s.nc, out: s.out, to: to, request: m.Header}
		ctx, err := s.authenticate(m, r)
		if err != nil {
			r.fail(err)
			e.count(0, err)
			return
		}
		select {
		case s.slots <- struct{}{}:
		default:
			r.fail(&api.Error{Code: api.CodeOverloaded, RetryAfter: time.Second,
				Message: fmt.Sprintf("%d requests are being answered, no more fit", cap(s.slots))})
			e.count(0, r.err)
			return
		}
		go func() {
			defer func() { <-s.slots }()
			start := time.Now()
			ctx, span := s.span(ctx, m)
			defer endSpan(span, r)
			if body, err := s.body(m, r.key); err != nil {
				r.fail(err)
			} else {
				e.answer(ctx, r, body)
			}
			took := time.Since(start)
			e.count(took, r.err)
			s.opts.Logger.Info().Str("subject", m.Subject).Str("id", r.callID).Str("key", r.key).
				Uint64("messages", r.seq).Dur("took", took).AnErr("error", r.err).Msg("nats")
		}()
	}
}

// authenticate is the context of a request with a valid API key. Without a file of keys
// everything is open.
func (s *Service) authenticate(m *nats.Msg, r *reply) (context.Context, error) {
	if s.opts.Keys == nil {
		return s.ctx, nil
	}
	k, err := s.opts.Keys.Authenticate(m.Header.Get(HeaderKey))
	if err != nil {
		return nil, err
	}
	r.key = k.KeyID()
	return api.WithCaller(s.ctx, k), nil
}

// unary serves a subject that gives one answer.
func (s *Service) unary(f call.Unary) func(context.Context, *reply, []byte) {
	return func(ctx context.Context, r *reply, body []byte) {
		if answer, err := f(ctx, s.engine, body); err != nil {
			r.fail(err)
		} else {
			r.single(answer)
		}
	}
}

func models(ctx context.Context, engine api.Engine, _ []byte) ([]byte, error) {
	return wire.EncodeModels(api.Visible(ctx, engine.Models()))
}

func embeddings(context.Context, api.Engine, []byte) ([]byte, error) {
	return nil, &api.Error{Code: api.CodeNotFound, Reason: "not_supported",
		Message: "embeddings are not supported yet"}
}

// onCancel: a client's own cancel, the server's notice that nobody listens on the
// reply subject any more (see reply.send), or a question whether the stream runs.
func (s *Service) onCancel(m *nats.Msg) {
	s.mu.Lock()
	stream, ok := s.running[m.Subject]
	s.mu.Unlock()
	switch {
	case m.Header.Get(HeaderPing) != "":
		h := nats.Header{}
		if !ok {
			h[HeaderEnd] = []string{string(api.FinishError)}
		}
		s.out.respond(m, &nats.Msg{Header: h}) //nolint:errcheck // the asker asks again
	case !ok:
	case m.Header.Get("Status") != "":
		stream.cancel(stream.noReader)
	default:
		stream.cancel(errCancelled)
	}
}

// running is a stream that can be cancelled: with gone when nobody listens any more.
type running struct {
	cancel   context.CancelCauseFunc
	noReader error
}

// cancellable gives a stream its cancel subject until forget is called. The subject is
// random: NATS lets every client publish to it, so only who has read the stream knows it.
func (s *Service) cancellable(ctx context.Context, noReader error) (_ context.Context, subject string, forget func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	subject = s.prefix + strings.ToLower(rand.Text())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[subject] = running{cancel, noReader}
	return ctx, subject, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.running, subject)
		cancel(nil)
	}
}
