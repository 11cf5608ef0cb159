package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/document"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/api/web"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cmd/millrace/trim"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/durable/batchapi"
	"github.com/millrace/millrace/durable/calls"
)

// answersEnd is how long clients have, after the engine has ended, to take the
// last of their answers.
const answersEnd = 5 * time.Second

func newServe(a *app) *cobra.Command {
	var s config.Serve
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a model over HTTP and NATS",
		Long: `Serve a model over OpenAI-style HTTP with server-sent events and as a NATS micro service, with a chat
page at /. MODEL is what --model is: a folder, a GGUF file, or the name of a model that "millrace pull" has
downloaded. The default is the demo model.

A NATS server is embedded unless --nats names another one. After Ctrl-C or SIGTERM the process refuses new
requests, lets running ones end within --grace, and exits with 0.

--roles gives a process a part of the pipeline: gateway (HTTP and NATS), tokenize, compute or detok. Any
number of processes on the same NATS server serve together. Each may start and stop at any time. Instead of
compute, a process may be prefill, which begins sequences, or decode, which continues them.`,
		Example: `  millrace serve
  millrace serve Qwen/Qwen3-0.6B
  millrace serve --model DIR --listen 127.0.0.1:8080 --kv-memory 2GiB
  millrace serve --roles gateway --nats nats://127.0.0.1:4222 --listen 127.0.0.1:8080
  millrace serve --roles compute --nats nats://127.0.0.1:4222 --listen 127.0.0.1:8081 --model DIR`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := s.Validate(); err != nil {
				return err
			}
			s.DataDirNamed = cmd.Flags().Changed("data-dir")
			if err := nameModel(&s); err != nil {
				return err
			}
			return serve(cmd.Context(), &s, a.log, func(string) {})
		},
	}
	takesModel(cmd)
	s.Register(cmd.Flags())
	briefHelp(cmd, "model", "served-model-name", "weights", "kv-memory", "max-batch-size", "listen", "api-keys", "nats", "roles",
		"data-dir")
	return cmd
}

// nameModel finds the model that the roles need, and names it in the API as it was named by the user.
func nameModel(s *config.Serve) error {
	if !s.Roles.NeedsModel() { // a gateway learns the models from workers
		s.Model = ""
		return nil
	}
	path, id, err := findModel(s.Model)
	s.Model, s.ServedModelName = path, cmp.Or(s.ServedModelName, id)
	return err
}

// serve runs until ctx ends or a part fails, such as the device. The interfaces answer with 503 while
// the model loads. ready is called with the address once they serve it.
func serve(ctx context.Context, s *config.Serve, log zerolog.Logger, ready func(url string)) error {
	begin := time.Now()
	late := &lateEngine{}
	secure, err := openSecurity(&s.Security)
	if err != nil {
		return err
	}
	engine := secure.guard(late)
	tracer, stopTracing, err := openTracing(ctx, s, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("%w: --listen takes another address; a second server also needs another --nats-listen, or --nats to join the first",
			err)
	}
	var handler lateHandler // until there is a NATS server the process only lives
	server := httpserver.New(secure.access(s).Handler(late.closing(&handler)), httpserver.Limits{}, log)
	stopped := ctx // from outside; a part that fails ends the group's
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	fail := func(err error) error { // before everything runs
		cancel()
		if stopped.Err() != nil {
			err = nil // SIGTERM came before NATS did
		}
		return errors.Join(err, server.Close(), group.Wait())
	}
	group.Go(func() error {
		if err := secure.serve(server, listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	loading := beginLoading(s, log) // meanwhile
	to, err := openNATS(ctx, s, secure.keys, log)
	if err != nil {
		loading.abandon()
		return fail(err)
	}
	defer to.stop()
	conn := to.nodes
	var gw gateway
	var service atomic.Pointer[natsapi.Service]
	if s.Roles.Has(cluster.Gateway) {
		if gw, err = openGateway(ctx, conn, engine, late, secure, tracer, s, log); err != nil {
			loading.abandon()
			return fail(err)
		}
		defer gw.stop()
		handler.set(gw.http)
	} else {
		handler.set(workerHandler(late, secure.callers()))
	}
	group.Go(func() error { return secure.watch(ctx, log) })
	group.Go(func() error { trim.Run(ctx, log); return nil })
	loaded := make(chan struct{})
	if s.Roles.Has(cluster.Gateway) {
		group.Go(func() error {
			schemas, err := document.Schemas()
			if err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-loaded:
			}
			if !untilReady(ctx, late) {
				return nil
			}
			joined, err := natsapi.Start(to.front, engine, natsapi.Options{
				Logger: log, Fingerprint: fingerprint(), MaxBody: int(s.BodyLimit), PingAfter: s.PingInterval,
				Keys: secure.callers(), Tenants: secure.tenants, Calls: gw.calls, Tracer: tracer, Metadata: schemas,
			})
			service.Store(joined)
			late.joined.Store(err == nil)
			return err
		})
	}
	group.Go(func() error {
		e, err := openEngine(s, loading, to, tracer, log)
		if err != nil {
			return err
		}
		e.metrics.Registry().MustRegister(server)
		if gw.kept != nil {
			e.metrics.Registry().MustRegister(gw.kept)
		}
		late.loaded.Store(e)
		close(loaded)
		log.Info().Str("http", secure.scheme()+listener.Addr().String()).Str("nats", conn.ConnectedUrlRedacted()).
			Str("model", e.modelID).Strs("roles", s.Roles.Names).Dur("took", time.Since(begin)).Msg("ready")
		ready(secure.scheme() + listener.Addr().String())
		group.Go(func() error { e.storePacked(ctx, log); return nil })
		return e.Wait(ctx)
	})
	group.Go(func() error {
		<-ctx.Done()
		left := leaveGroup(service.Load()) // first of all: what is refused from here on another gateway would have served
		if stopped.Err() != nil && s.Roles.Has(cluster.Gateway) {
			late.leave(s.DrainDelay, log)
		}
		if gw.store != nil {
			gw.store.leave()
		}
		handOver(context.WithoutCancel(ctx), gw.kept, s)
		return errors.Join(left, shutdown(late, server, service.Load(), s.Grace, log))
	})
	return group.Wait()
}

// gateway is what a process with the gateway's role has beside its NATS service.
type gateway struct {
	http  http.Handler
	calls call.Runner  // of all interfaces
	kept  *calls.Calls // keeps answers; nil: none are kept
	store *storage
	stop  func()
}

// openGateway opens the limits that hold for all gateways, what runs calls, and the HTTP interface.
func openGateway(ctx context.Context, conn *nats.Conn, engine api.Engine, late *lateEngine, secure *security, tracer trace.Tracer,
	s *config.Serve, log zerolog.Logger) (
	g gateway, err error) {
	if s.APIKeys == config.NoKeys {
		log.Warn().Str("http", s.Listen).Msg("no API keys: everybody who reaches this address may ask (--api-keys none)")
	}
	stopSharing, err := secure.share(conn, log)
	if err != nil {
		return gateway{}, err
	}
	direct := call.NewDirect(engine)
	g = gateway{calls: direct, stop: stopSharing}
	if g.kept, err = openDurable(conn, direct, secure.keys, s, log); err == nil {
		if g.kept != nil {
			g.calls = g.kept
		}
		g.store = openStorage(ctx, conn, engine, g.calls, late, secure.keys, s, log)
		g.calls = secure.guardCalls(g.store.calls)
		g.stop = func() {
			g.store.leave()
			if g.kept != nil {
				g.kept.Close()
			}
			g.store.close()
			stopSharing()
		}
		g.http, err = httpHandler(engine, &g, late, secure, tracer, s, log)
	}
	if err != nil {
		g.stop()
		return gateway{}, err
	}
	return g, nil
}

// readyPoll is the interval at which a starting process checks that it can serve.
const readyPoll = 20 * time.Millisecond

// untilReady waits until the process can serve. It returns false if ctx ends first. The process joins
// the NATS queue group of the gateways after that, because it would refuse requests that others
// can serve.
func untilReady(ctx context.Context, late *lateEngine) bool {
	for late.serves() != nil {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(readyPoll):
		}
	}
	return true
}

// shutdown ends the engine, so that every stream gets its end, and then the interfaces.
func shutdown(late *lateEngine, server *httpserver.Server, service *natsapi.Service, grace time.Duration, log zerolog.Logger) error {
	var errs []error
	left := make(chan error, 1)
	go func() { left <- endNATS(service, grace+answersEnd) }()
	if e := late.loaded.Load(); e != nil {
		log.Info().Int("requests", e.Running()).Dur("grace", grace).Msg("shutting down")
		errs = append(errs, e.shutdown(grace))
	}
	ctx, cancel := context.WithTimeout(context.Background(), answersEnd)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil { // a client that does not read
		errs = append(errs, server.Close())
	}
	return errors.Join(append(errs, <-left)...)
}

// leaveGroup leaves the NATS queue group, so that new requests go to other gateways.
func leaveGroup(service *natsapi.Service) error {
	if service == nil {
		return nil
	}
	return service.Leave()
}

// endNATS waits for what is being answered over NATS.
func endNATS(service *natsapi.Service, within time.Duration) error {
	if service == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return service.Stop(ctx)
}

// fingerprint is the system_fingerprint of an answer whose digest is not known yet.
func fingerprint() string { return "millrace-" + version }

// loaded serves what there is once the model is loaded.
func loaded(late *lateEngine, h func(*engine, http.ResponseWriter, *http.Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e, err := late.get()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		h(e, w, r)
	})
}

func serveMetrics(e *engine, w http.ResponseWriter, r *http.Request) {
	h := e.metrics.Handler()
	if e.vllmNames {
		h = e.metrics.VLLMHandler()
	}
	h.ServeHTTP(w, r)
}

// workerHandler is what a process without the gateway's role answers.
func workerHandler(late *lateEngine, keys api.Keys) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health/live", func(http.ResponseWriter, *http.Request) {})
	ready := loaded(late, func(e *engine, w http.ResponseWriter, _ *http.Request) {
		if err := e.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	mux.Handle("GET /health/ready", ready)
	mux.Handle("GET /health", ready)
	mux.Handle("GET /metrics", loaded(late, serveMetrics))
	mux.Handle("GET "+kvPath, keyed(keys, kvState(late)))
	mux.Handle("GET "+pipelinePath, keyed(keys, pipelineState(late)))
	mux.Handle("GET /web/", web.Handler()) // the files of the pages at both paths
	return debugPages(mux)
}

// keyed serves requests with a valid API key; without keys all.
func keyed(keys api.Keys, h http.Handler) http.Handler {
	if keys == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, err := keys.Authenticate(r.Header.Get("Authorization"))
		if err != nil {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r.WithContext(api.WithCaller(r.Context(), caller)))
	})
}

func httpHandler(served api.Engine, g *gateway, late *lateEngine, secure *security, tracer trace.Tracer, s *config.Serve,
	log zerolog.Logger) (http.Handler, error) {
	o := httpapi.Options{
		Logger: log, Fingerprint: fingerprint(), Version: version,
		MaxBody: int64(s.BodyLimit), PingAfter: s.PingInterval, CutOff: late.cutOff, Keys: secure.callers(), Tenants: secure.tenants,
		Calls: g.calls, Tracer: tracer,
		Routes:  batchapi.Routes(g.store.files, g.store.batches),
		Page:    web.Handler(),
		Metrics: loaded(late, serveMetrics),
		Mounts:  map[string]http.Handler{kvPath: kvState(late), pipelinePath: pipelineState(late)},
	}
	if g.store.responses != nil {
		o.Responses = g.store.responses
	}
	h, err := httpapi.New(served, o)
	if err != nil {
		return nil, err
	}
	return debugPages(h), nil
}
