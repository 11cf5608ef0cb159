package main

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
)

// lateEngine is an engine that is still loading. The interfaces answer with 503 until the model is
// in memory; then /health/ready turns 200.
type lateEngine struct {
	loaded atomic.Pointer[engine]
	joined atomic.Bool // the NATS interface is there too
	leaves atomic.Bool // see leave
}

func (l *lateEngine) get() (*engine, error) {
	if e := l.loaded.Load(); e != nil {
		return e, nil
	}
	return nil, &api.Error{Code: api.CodeUnavailable, RetryAfter: time.Second, Message: "the model is still loading"}
}

func (l *lateEngine) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	e, err := l.get()
	if err != nil {
		return nil, err
	}
	return e.Submit(ctx, r)
}

func (l *lateEngine) Models() []api.Model {
	e, err := l.get()
	if err != nil {
		return nil
	}
	return e.Models()
}

func (l *lateEngine) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	e, err := l.get()
	if err != nil {
		return nil, err
	}
	return e.Tokenize(ctx, r)
}

func (l *lateEngine) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	e, err := l.get()
	if err != nil {
		return "", err
	}
	return e.Detokenize(ctx, model, tokens)
}

// leave keeps serving for the delay while the process is not ready, so that load balancers remove
// it before it refuses requests.
func (l *lateEngine) leave(delay time.Duration, log zerolog.Logger) {
	l.leaves.Store(true)
	log.Info().Dur("delay", delay).Msg("leaving")
	<-time.After(delay)
}

// closing ends the connection after each answer while the process drains, so that the next request
// reaches another process.
func (l *lateEngine) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.leaves.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// Ready is that of a gateway: over NATS too.
func (l *lateEngine) Ready() error {
	if l.leaves.Load() {
		return &api.Error{Code: api.CodeUnavailable, RetryAfter: time.Second, Message: "the server is about to stop"}
	}
	if err := l.serves(); err != nil {
		return err
	}
	if !l.joined.Load() {
		return &api.Error{Code: api.CodeUnavailable, RetryAfter: time.Second, Message: "the NATS interface is not there yet"}
	}
	return nil
}

// serves is nil when the engine can take a request.
func (l *lateEngine) serves() error {
	e, err := l.get()
	if err != nil {
		return err
	}
	return e.Ready()
}

// idleRoom is how many sequences of the lowest priority may run now.
func (l *lateEngine) idleRoom() int {
	e := l.loaded.Load()
	if e == nil || l.leaves.Load() {
		return 0
	}
	return e.IdleRoom()
}

// cutOff says whether this process reaches no other: its NATS connection is silent.
func (l *lateEngine) cutOff() bool {
	e := l.loaded.Load()
	return e != nil && e.Partitioned()
}

// lateHandler answers while the process waits for its NATS server: it lives, and is not ready.
type lateHandler struct{ handler atomic.Pointer[http.Handler] }

func (l *lateHandler) set(h http.Handler) { l.handler.Store(&h) }

func (l *lateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h := l.handler.Load(); h != nil {
		(*h).ServeHTTP(w, r)
		return
	}
	if r.URL.Path == "/health/live" {
		return
	}
	w.Header().Set("Retry-After", "1")
	http.Error(w, "the NATS server is not there yet", http.StatusServiceUnavailable)
}
