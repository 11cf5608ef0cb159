// Package natsapi serves an engine as a NATS micro service: OpenAI's JSON in a
// request, the same JSON in the reply, many messages when it streams. See
// docs/api.md for subjects, headers and endings. The folder is named after the
// protocol; the package is named natsapi, because packages that import it import
// the client of NATS, package nats, too. It must not know HTTP or how a call runs.
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
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/tracing"
)

// Headers of the messages of a stream.
const (
	HeaderSeq        = "Millrace-Seq"           // 1, 2, ... without a gap
	HeaderEnd        = "Millrace-End"           // on the last message: stop, length, cancelled or error
	HeaderCancel     = "Millrace-Cancel"        // on the first: a message to this subject cancels
	HeaderKV         = "Millrace-KV"            // from the first event on: what the workers lose of keys and values, see api.Pin
	HeaderIgnored    = "Millrace-Ignored"       // on the first: the parts of the request that have no effect, see call.Call
	HeaderPing       = "Millrace-Ping"          // a ping, which has no number
	HeaderInterval   = "Millrace-Ping-Interval" // on the first of a resumable stream: seconds of silence before a ping
	HeaderRetryAfter = "Retry-After"            // seconds, with errors 429 and 503
	HeaderID         = "Millrace-Id"            // on the first of a resumable stream: the id to resume it with
	HeaderBody       = "Millrace-Body"          // of a request: the id of its body, which arrived in parts
	HeaderPart       = "Millrace-Part"          // of a part of a request: its offset; of a part of an answer: its number, such as 2/3
	HeaderAccept     = "Millrace-Accept"        // of a request: "parts" accepts an answer larger than a message
	HeaderKey        = "Authorization"          // of a request: "Bearer KEY"
)

// Options configure the service. The zero value of a field means the default that its comment names
// last.
type Options struct {
	Logger      zerolog.Logger
	Version     string        // semantic version in `nats micro ls`; 0.0.0
	Fingerprint string        // system_fingerprint of answers that name no digest; empty
	MaxBody     int           // maximum size of a request, in bytes; 4 MiB
	MaxRequests int           // requests answered at the same time; 1024
	PingAfter   time.Duration // silence before a stream's ping; 1 s
	Keys        api.Keys      // API keys of the callers; nil: no key is needed
	Tenants     func() int    // number of tenants of the keys, which share MaxRequests; nil: 1
	Calls       call.Runner   // runs the calls; nil: the engine, without a log

	// Metadata describes the endpoints in $SRV.INFO, by the path that each is over HTTP, such as the schemas of its bodies. It is left out
	// where NATS takes no message of that size.
	Metadata map[string]map[string]string

	Tracer trace.Tracer // nil: no traces
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
	if o.Tenants == nil {
		o.Tenants = func() int { return 1 }
	}
	if o.Tracer == nil {
		o.Tracer = tracing.Off()
	}
	if o.PingAfter == 0 {
		o.PingAfter = time.Second
	}
}

// subjects is the prefix of the service's subjects.
const subjects = "millrace.v1."

// flushTimeout is the maximum wait for a round trip to the NATS server.
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
	ownSubjects string             // prefix of the subjects that only this gateway has

	uploads  *uploads
	answered *requests
	ctx      context.Context
	end      context.CancelCauseFunc

	stopOnce sync.Once
	stopErr  error

	mu      sync.Mutex
	running map[string]running // by cancel subject
}

// The reasons for an incomplete answer.
var (
	errCancelled = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "cancelled by the client"}
	errNoReader  = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "no reader on the reply subject"}
	// errReaderAway replaces errNoReader for a resumable stream. The reader can return, for example
	// after a restart of NATS.
	errReaderAway = &api.Error{Code: api.CodeUnavailable, Reason: "moved",
		Message: "no reader on the reply subject for a moment: resume the stream"}
	errStopping = &api.Error{Code: api.CodeUnavailable, Reason: "cancelled", Message: "the server is stopping"}
)

// Start adds the service to a connection. The caller closes the connection after Stop.
func Start(nc *nats.Conn, engine api.Engine, opts Options) (*Service, error) {
	opts.defaults()
	if opts.Calls == nil {
		opts.Calls = call.NewDirect(engine)
	}
	name := strings.ToLower(rand.Text())
	s := &Service{nc: nc, out: outbox{nc}, engine: engine, opts: opts,
		prefix:      subjects + "cancel." + name + ".",
		ownSubjects: subjects + "at." + name + ".",
		answered:    newRequests(opts.MaxRequests, opts.Tenants),
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
	var list []*endpoint // of the queue group
	for _, e := range codec.Endpoints() {
		if e.Subject != "" {
			list = append(list, &endpoint{name: strings.ReplaceAll(e.Subject, ".", "-"), subject: e.Subject, answer: s.generate(e.Codec),
				metadata: s.opts.Metadata[e.Path]})
		}
	}
	for _, u := range codec.Unaries() {
		if u.Subject != "" {
			list = append(list, &endpoint{name: strings.ReplaceAll(u.Subject, ".", "-"), subject: u.Subject, answer: s.unary(u.Run),
				metadata: s.opts.Metadata[u.Path]})
		}
	}
	list = append(list, []*endpoint{
		{name: "streams-resume", subject: "streams.resume", answer: s.resumeStream},
		{name: "bodies-open", subject: "bodies.open", answer: s.openBody},
	}...)
	for _, e := range list { // the same endpoints on this gateway's own subjects
		list = append(list, &endpoint{name: e.name + "-here", subject: s.ownSubjects + e.subject, answer: e.answer, unqueued: true})
		e.subject = subjects + e.subject
	}
	return append(list,
		&endpoint{name: "bodies-part-here", subject: s.ownSubjects + "bodies.part", answer: s.addPart, unqueued: true},
		&endpoint{name: "gateways", subject: subjects + "gateways", answer: s.gateway, unqueued: true},
		&endpoint{name: "streams-cancel", subject: subjects + "streams.cancel", answer: s.cancelStream},
		&endpoint{name: "models", subject: subjects + "models", answer: s.unary(models)})
}

// gateway returns this gateway's own subjects. A client that has lost its gateway sends this request to
// all gateways, because a queue group may still choose one that is stopped.
func (s *Service) gateway(_ context.Context, r *reply, _ []byte) {
	r.single(fmt.Appendf(nil, `{"subjects":%q}`, s.ownSubjects))
}

// Leave sends new requests to other gateways. When it returns, all requests for this one have arrived.
// Their answers continue.
func (s *Service) Leave() error {
	return errors.Join(s.discovery.leave(), s.nc.FlushTimeout(flushTimeout))
}

// Stop accepts no more requests. It waits for running answers until ctx ends, and then cancels them.
// Later calls return the result of the first.
func (s *Service) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() { s.stopErr = s.stop(ctx) })
	return s.stopErr
}

func (s *Service) stop(ctx context.Context) error {
	err := s.Leave()
	s.answered.close(ctx, func() { s.end(errStopping) })
	s.end(errStopping)
	return errors.Join(err, s.unsubscribe(), s.nc.FlushTimeout(flushTimeout))
}

func (s *Service) unsubscribe() error {
	if s.cancel == nil {
		return nil
	}
	return s.cancel.Unsubscribe()
}

// handle answers each request in its own goroutine, so the dispatcher of the subscription never waits.
// It refuses requests when the tenant has no place, and drops those whose reply subject is not an inbox.
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
		tenant := api.TenantFrom(ctx)
		if err := s.answered.enter(tenant); err != nil {
			r.fail(err)
			e.count(0, r.err)
			return
		}
		e.running.Add(1)
		go func() {
			defer s.answered.leave(tenant)
			defer e.running.Add(-1)
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
				Uint64("messages", r.seq).Dur("took", took).AnErr("error", api.Logged(r.err)).Msg("nats")
		}()
	}
}

// authenticate checks the API key of a request and returns a context with its caller. Without a file
// of keys it accepts all requests.
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

// unary serves a subject with one answer and no stream.
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
	return openai.EncodeModels(api.Visible(ctx, engine.Models()))
}

// onCancel handles the messages on cancel subjects: a cancellation by the client, the NATS server's
// notice that a reply subject has no reader (see reply.send), or a ping that checks whether the stream
// runs.
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
		s.out.respond(m, &nats.Msg{Header: h}) //nolint:errcheck // the client sends its request again
	case !ok:
	case m.Header.Get("Status") != "":
		stream.cancel(stream.noReader)
	default:
		stream.cancel(errCancelled)
	}
}

// running is a stream that can be cancelled. noReader is the cause if it has no reader.
type running struct {
	cancel   context.CancelCauseFunc
	noReader error
}

// cancellable gives a stream its cancel subject until forget is called. NATS lets every client publish
// to it, so it is random: only readers of the stream know it.
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
