package main

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
)

// rereadEvery is the time between looks at the files of keys and certificates.
const rereadEvery = 2 * time.Second

// security is who may ask, and how the HTTP server proves who it is.
type security struct {
	keys *auth.Keyring     // nil: everybody may ask
	cert *auth.Certificate // nil: no TLS
}

func openSecurity(s *config.Security) (*security, error) {
	x := &security{}
	var err error
	if s.APIKeys != "" {
		if x.keys, err = auth.Open(s.APIKeys); err != nil {
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

// guard puts the keys' limits before an engine.
func (x *security) guard(e api.Engine) api.Engine {
	if x.keys == nil {
		return e
	}
	return auth.Guard(e)
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

// serve answers HTTP, with TLS if there is a certificate.
func (x *security) serve(server *http.Server, l net.Listener) error {
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
