package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"

	"github.com/nats-io/nats.go"
)

const headerKey = "Authorization"

// WithAPIKey sends an API key with every request.
func WithAPIKey(key string) HTTPOption { return WithHeader(headerKey, "Bearer "+key) }

// WithNATSAPIKey sends an API key with every request. With DialNATS it is also the connection's login,
// as ConnectNATS has it.
func WithNATSAPIKey(key string) NATSOption {
	return func(t *natsTransport) error {
		t.key = key
		return WithNATSHeader(headerKey, "Bearer "+key)(t)
	}
}

// WithTLS checks the servers' certificates with those of a PEM file ("": the system's), and
// shows a certificate of our own where cert and key name its PEM files.
func WithTLS(ca, cert, key string) HTTPOption {
	return func(t *httpTransport) error {
		c := &tls.Config{MinVersion: tls.VersionTLS12}
		if ca != "" {
			text, err := os.ReadFile(ca)
			if err != nil {
				return fmt.Errorf("millrace: %w", err)
			}
			c.RootCAs = x509.NewCertPool()
			if !c.RootCAs.AppendCertsFromPEM(text) {
				return fmt.Errorf("millrace: %s: found no certificate, expected PEM", ca)
			}
		}
		if cert != "" || key != "" {
			pair, err := tls.LoadX509KeyPair(cert, key)
			if err != nil {
				return fmt.Errorf("millrace: %w", err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			return errors.New("millrace: http.DefaultTransport was replaced: expected WithHTTPClient with its TLS instead")
		}
		transport = transport.Clone()
		transport.TLSClientConfig = c
		t.client = &http.Client{Transport: transport}
		return nil
	}
}

// WithNATSOptions are options of the connection that DialNATS makes: who we are
// (nats.UserCredentials, nats.NkeyOptionFromSeed, nats.UserInfo), TLS (nats.RootCAs,
// nats.ClientCert), a prefix of our own for answers (nats.CustomInboxPrefix).
func WithNATSOptions(options ...nats.Option) NATSOption {
	return func(t *natsTransport) error {
		if t.nc != nil {
			return errors.New("millrace: options of a NATS connection are for DialNATS: this one is made already")
		}
		t.connect = append(t.connect, options...)
		return nil
	}
}
