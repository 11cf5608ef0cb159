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

// headerKey is the header of an API key.
const headerKey = "Authorization"

// WithAPIKey adds an API key to every request.
func WithAPIKey(key string) HTTPOption { return WithHeader(headerKey, "Bearer "+key) }

// WithNATSAPIKey adds an API key to every request. With DialNATS it is also the connection's login, as in
// ConnectNATS.
func WithNATSAPIKey(key string) NATSOption {
	return func(t *natsTransport) error {
		t.key = key
		return WithNATSHeader(headerKey, "Bearer "+key)(t)
	}
}

// WithTLS verifies the servers' certificates with those of the PEM file ca, or with the system's for "". For
// mutual TLS, cert and key are the PEM files of the client's certificate; otherwise both are "".
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
			return errors.New("millrace: found a replaced http.DefaultTransport, expected WithHTTPClient with TLS settings instead")
		}
		transport = transport.Clone()
		transport.TLSClientConfig = c
		t.client = &http.Client{Transport: transport}
		return nil
	}
}

// WithNATSOptions adds options of the connection that DialNATS makes, such as a login
// (nats.UserCredentials, nats.NkeyOptionFromSeed, nats.UserInfo), TLS (nats.RootCAs,
// nats.ClientCert) or a prefix for answers (nats.CustomInboxPrefix).
func WithNATSOptions(options ...nats.Option) NATSOption {
	return func(t *natsTransport) error {
		if t.nc != nil {
			return errors.New("millrace: found an existing connection, expected DialNATS for options of the connection")
		}
		t.connect = append(t.connect, options...)
		return nil
	}
}
