// Package httpapi serves an engine over HTTP: the routes of all APIs, API keys and streams of server-sent events.
// Package codec lists the formats. See docs/api.md. The folder is named after the protocol; the package is named httpapi, because packages
// that import it import net/http too. It must not know NATS or how a call runs.
package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/document"
	"github.com/millrace/millrace/api/lmstudio"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/tracing"
)

// Options configure the handler. The zero value of a field means the default that its comment names
// last.
type Options struct {
	Logger      zerolog.Logger
	Fingerprint string          // system_fingerprint of answers that name no digest; empty
	Version     string          // of the program, for the OpenAPI document
	MaxBody     int64           // maximum size of a request's body, in bytes; 4 MiB
	PingAfter   time.Duration   // silence before a comment keeps a stream alive; 1 s
	CutOff      func() bool     // reports that this process reaches no other one, so streams must not ping; nil: never
	Keys        api.Keys        // API keys of the callers; nil: no key is needed
	Tenants     func() int      // number of tenants of the keys, which share the room for bodies; nil: 1
	Calls       call.Runner     // runs the calls; nil: the engine, without a log
	Tracer      trace.Tracer    // nil: no traces
	Responses   Responses       // the stored responses; nil: none is stored
	Routes      []batches.Route // of files and batches

	Metrics http.Handler            // at /metrics; nil: not served
	Page    http.Handler            // at / and under /web/; nil: not served
	Mounts  map[string]http.Handler // more GET paths, such as "/debug/kv"
}

func (o *Options) defaults() {
	if o.MaxBody == 0 {
		o.MaxBody = 4 << 20
	}
	if o.Tenants == nil {
		o.Tenants = func() int { return 1 }
	}
	if o.CutOff == nil {
		o.CutOff = func() bool { return false }
	}
	if o.Tracer == nil {
		o.Tracer = tracing.Off()
	}
	if o.PingAfter == 0 {
		o.PingAfter = time.Second
	}
}

// server has no state of its own between requests but the room for bodies.
type server struct {
	engine api.Engine
	opts   Options
	mux    *http.ServeMux
	bodies *bodies
}

// New returns the handler of all HTTP paths. It fails if a mount has a path that is in use.
func New(engine api.Engine, opts Options) (http.Handler, error) {
	opts.defaults()
	if opts.Calls == nil {
		opts.Calls = call.NewDirect(engine)
	}
	s := &server{engine: engine, opts: opts, mux: http.NewServeMux(), bodies: newBodies(opts.MaxBody, opts.Tenants)}
	routes := []route{
		{"/v1/streams/{id}", "GET, DELETE", s.authenticated(s.streams)},
		{"/v1/models", "GET", s.authenticated(s.models)},
		{"/v1/models/{id...}", "GET", s.authenticated(s.oneModel)},
		{"/health", "GET", s.health},
		{"/v1/health", "GET", s.health},
		{"/ping", "GET", s.health},
		{"/version", "GET", s.version},
		{"/api/v0/models", "GET", s.authenticated(s.modelsLMStudio(lmstudio.EncodeModels))},
		{"/api/v0/models/{id...}", "GET", s.authenticated(s.oneModelLMStudio)},
		{"/api/v1/models", "GET", s.authenticated(s.modelsLMStudio(lmstudio.EncodeModelsV1))},
		{"/props", "GET", s.authenticated(s.props)},
		{"/slots", "GET", s.authenticated(s.slots)},
		{"/health/live", "GET", s.live},
		{"/health/ready", "GET", s.ready},
		{"/openapi.json", "GET", lately(func() ([]byte, error) { return document.OpenAPI(opts.Version, opts.Metrics != nil) })},
	}
	routes = append(routes, s.responseRoutes()...)
	for _, r := range opts.Routes {
		routes = append(routes, route{r.Path, r.Methods, s.authenticated(uncompressed(r.Handle))})
	}
	for _, u := range codec.Unaries() {
		routes = append(routes, route{u.Path, u.Method, s.authenticated(s.unary(u.Run))})
	}
	for _, e := range codec.Endpoints() {
		routes = append(routes, route{e.Path, "POST", s.authenticated(s.generate(e.Codec))})
	}
	if opts.Metrics != nil {
		routes = append(routes, route{"/metrics", "GET", mounted(opts.Metrics)})
	}
	if opts.Page != nil {
		routes = append(routes, route{"/{$}", "GET", mounted(opts.Page)}, route{"/web/", "GET", mounted(opts.Page)})
	}
	for path, h := range opts.Mounts {
		if !strings.HasPrefix(path, "/") || slices.ContainsFunc(routes, func(r route) bool { return r.path == path }) {
			return nil, fmt.Errorf("httpapi: cannot mount at %q: not an unused path", path)
		}
		routes = append(routes, route{path, "GET", s.authenticated(mounted(h))})
	}
	for _, r := range routes {
		h := s.allow(r.method, r.handle)
		if r.method != "GET" { // health and metrics would fill the traces
			h = s.traced(r.path, h)
		}
		s.mux.Handle(r.path, h)
	}
	s.mux.Handle("/", s.allow("", func(_ http.ResponseWriter, r *http.Request) error {
		return &api.Error{Code: api.CodeNotFound, Reason: "unknown_url",
			Message: fmt.Sprintf("unknown path: %s %s", api.Cut(r.Method), api.Cut(r.URL.Path))}
	}))
	return s, nil
}

// handlerFunc answers a request or returns an error for the client. An error after the first byte of
// an answer is only logged.
type handlerFunc func(http.ResponseWriter, *http.Request) error

type route struct {
	path, method string
	handle       handlerFunc
}

func mounted(h http.Handler) handlerFunc {
	return func(w http.ResponseWriter, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}

// lately answers with a body that the first request makes.
func lately(body func() ([]byte, error)) handlerFunc {
	once := sync.OnceValues(body)
	return func(w http.ResponseWriter, _ *http.Request) error {
		made, err := once()
		if err != nil {
			return err
		}
		return writeJSON(w, made)
	}
}

// ServeHTTP gives a request its id and serves it.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = withoutSlashes(r)
	id := requestID(r.Header.Get("X-Request-Id"))
	w.Header().Set("X-Request-Id", id)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	s.mux.ServeHTTP(&response{ResponseWriter: w, requestID: id}, r)
}

// allow passes requests with one of the methods to handle, and writes and logs its error. "" allows all
// methods, and GET alone includes HEAD.
func (s *server) allow(method string, handle handlerFunc) http.Handler {
	return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		start := time.Now()
		w, ok := rw.(*response)
		if !ok { // reached without ServeHTTP
			w = &response{ResponseWriter: rw}
		}
		var err error
		if method == "" || slices.Contains(strings.Split(method, ", "), r.Method) || method == "GET" && r.Method == "HEAD" {
			err = handle(w, r)
		} else {
			w.Header().Set("Allow", method)
			err = &api.Error{Code: http.StatusMethodNotAllowed, Reason: "method_not_allowed",
				Message: fmt.Sprintf("found method %s at %s, expected %s", api.Cut(r.Method), api.Cut(r.URL.Path), method)}
		}
		if err != nil && w.status == 0 {
			writeError(w, api.AsError(err), codec.ErrorOf(r.URL.Path))
		}
		w.err = err
		s.log(w, r, start, err)
	})
}

func (s *server) log(w *response, r *http.Request, start time.Time, err error) {
	level := zerolog.DebugLevel
	if r.Method == "POST" {
		level = zerolog.InfoLevel
	}
	var e *api.Error
	if err != nil && r.Context().Err() == nil && (!errors.As(err, &e) || e.Code == api.CodeInternal) {
		level = zerolog.ErrorLevel
	}
	s.opts.Logger.WithLevel(level).
		Str("request_id", w.requestID).Str("id", w.callID).Str("key", w.keyID).
		Str("method", api.Cut(r.Method)).Str("path", api.Cut(r.URL.Path)).
		Int("status", w.status).Int64("bytes", w.bytes).
		Bool("gone", r.Context().Err() != nil).
		Dur("took", time.Since(start)).AnErr("error", api.Logged(err)).Msg("http")
}

// response records the status, size and error of an answer.
type response struct {
	http.ResponseWriter
	requestID string
	callID    string // of the generation call; its other log lines have it too
	keyID     string // id of the API key
	status    int
	bytes     int64
	err       error // that the handler returned
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap supports http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func writeError(w http.ResponseWriter, e *api.Error, encode func(*api.Error) []byte) {
	if seconds := openai.RetryAfter(e); seconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	body := encode(e)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(int(e.Code))
	w.Write(body) //nolint:errcheck // the client has disconnected
}

func writeJSON(w http.ResponseWriter, body []byte) error {
	w.Header().Set("Content-Type", "application/json")
	_, err := w.Write(body)
	return err
}
