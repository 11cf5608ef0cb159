package main

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
)

// rereadEvery is the interval of reading the files of keys and certificates again.
const rereadEvery = 2 * time.Second

// security has the API keys, and the certificate of the HTTP server.
type security struct {
	keys *auth.Keyring     // nil: no key is required
	cert *auth.Certificate // nil: no TLS
}

func openSecurity(s *config.Security) (*security, error) {
	x := &security{}
	var err error
	if path := s.KeysFile(); path != "" {
		if x.keys, err = auth.Open(path); err != nil {
			return nil, config.Usagef("--api-keys: %w", err)
		}
	}
	if s.TLSCert != "" {
		if x.cert, err = auth.OpenCertificate(s.TLSCert, s.TLSKey, s.TLSClientCA); err != nil {
			return nil, config.Usagef("--tls-cert: %w", err)
		}
	}
	return x, nil
}

// callers returns the keys for the interfaces, nil without any.
func (x *security) callers() api.Keys {
	if x.keys == nil {
		return nil // and not a nil *auth.Keyring
	}
	return x.keys
}

// access is what the HTTP server accepts before keys are checked.
func (x *security) access(s *config.Serve) *httpserver.Access {
	return &httpserver.Access{Trust: x.trust(s), Origins: s.CORSOrigins, Error: codec.ErrorOf}
}

// trust is what the HTTP server goes by.
func (x *security) trust(s *config.Serve) httpserver.Trust {
	switch {
	case x.keys != nil:
		return httpserver.ByKey
	case s.LocalOnly():
		return httpserver.Machine
	}
	return httpserver.Everybody
}

// guard puts the keys' limits before an engine.
func (x *security) guard(e api.Engine) api.Engine {
	if x.keys == nil {
		return e
	}
	return auth.Guard(e)
}

// guardCalls charges resumed calls to their keys.
func (x *security) guardCalls(r call.Runner) call.Runner {
	if x.keys == nil {
		return r
	}
	return auth.GuardCalls(r)
}

// tenants returns the number of tenants that share what the server has.
func (x *security) tenants() int {
	if x.keys == nil {
		return 1
	}
	return x.keys.Tenants()
}

// watch reads the files again until ctx ends.
func (x *security) watch(ctx context.Context, log zerolog.Logger) error {
	tick := func(r auth.Reloader, what string) {
		t := time.NewTicker(rereadEvery)
		go func() {
			defer t.Stop()
			auth.Watch(ctx, t.C, r, what, log)
		}()
	}
	if x.keys != nil {
		tick(x.keys, "API keys")
	}
	if x.cert != nil {
		tick(x.cert, "certificates")
	}
	<-ctx.Done()
	return nil
}

// limitsSubject is where gateways tell each other what keys have used.
const limitsSubject = "millrace.limits.used"

// share makes the keys' limits those of all gateways, until stop is called.
func (x *security) share(conn *nats.Conn, log zerolog.Logger) (stop func(), err error) {
	if x.keys == nil {
		return func() {}, nil
	}
	self := nuid.Next()
	sub, err := conn.Subscribe(limitsSubject, func(m *nats.Msg) {
		if err := x.keys.Hear(time.Now(), self, m.Data); err != nil {
			log.Warn().Err(err).Msg("what another gateway said of keys is lost")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", limitsSubject, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var published sync.WaitGroup
	published.Go(func() {
		tick := time.NewTicker(auth.NewsEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if data := x.keys.News(self); data != nil {
				if err := conn.Publish(limitsSubject, data); err != nil {
					log.Debug().Err(err).Msg("cannot publish the use of API keys") // the connection says why
				}
			}
		}
	})
	return func() {
		cancel()
		published.Wait()
		_ = sub.Unsubscribe() // the connection may be gone
	}, nil
}

// serve answers HTTP, with TLS if there is a certificate.
func (x *security) serve(server *httpserver.Server, l net.Listener) error {
	if x.cert == nil {
		return server.Serve(l)
	}
	server.TLSConfig = x.cert.Config()
	return server.ServeTLS(l, "", "")
}

// scheme is that of the HTTP server's address.
func (x *security) scheme() string {
	if x.cert == nil {
		return "http://"
	}
	return "https://"
}
