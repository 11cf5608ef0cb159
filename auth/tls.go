package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Certificate is a server's side of TLS, from files that are read again.
type Certificate struct {
	cert, key, clientCA string // paths
	text                []byte // as read last
	current             atomic.Pointer[tls.Config]
}

// OpenCertificate reads a certificate and its key. With clientCA, which may be
// "", clients need a certificate that it signed.
func OpenCertificate(cert, key, clientCA string) (*Certificate, error) {
	c := &Certificate{cert: cert, key: key, clientCA: clientCA}
	if _, err := c.Reload(time.Now()); err != nil {
		return nil, err
	}
	return c, nil
}

// Reload implements Reloader.
func (c *Certificate) Reload(time.Time) (changed bool, err error) {
	var files [3][]byte
	for i, path := range []string{c.cert, c.key, c.clientCA} {
		if path == "" {
			continue
		}
		if files[i], err = os.ReadFile(path); err != nil {
			return false, err
		}
	}
	text := bytes.Join(files[:], []byte{0})
	if c.current.Load() != nil && bytes.Equal(text, c.text) {
		return false, nil
	}
	pair, err := tls.X509KeyPair(files[0], files[1])
	if err != nil {
		return false, fmt.Errorf("%s, %s: %w", c.cert, c.key, err)
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, Certificates: []tls.Certificate{pair},
	}
	if c.clientCA != "" {
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		if !config.ClientCAs.AppendCertsFromPEM(files[2]) {
			return false, fmt.Errorf("%s: found no certificate in PEM form", c.clientCA)
		}
	}
	c.text = text
	c.current.Store(config)
	return true, nil
}

// Config is for a server. Each connection takes the files as read last.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return c.current.Load(), nil },
	}
}
