package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/http/httpserver"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
)

// authority signs certificates for a test.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	n    int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	a.key, a.cert = a.issue("ca", nil)
	return a
}

// issue writes name.crt and name.key, signed by the authority or by itself.
func (a *authority) issue(name string, signer *x509.Certificate) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	a.n++
	template := &x509.Certificate{
		SerialNumber: big.NewInt(a.n), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: signer == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, parentKey := signer, a.key
	if signer == nil {
		parent, parentKey = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	require.NoError(a.t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	require.NoError(a.t, err)
	for file, block := range map[string]*pem.Block{
		name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "EC PRIVATE KEY", Bytes: keyDER},
	} {
		require.NoError(a.t, os.WriteFile(a.path(file), pem.EncodeToMemory(block), 0o600))
	}
	cert, err := x509.ParseCertificate(der)
	require.NoError(a.t, err)
	return key, cert
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// client trusts the authority and shows a certificate, "" for none.
func (a *authority) client(name string) *http.Client {
	a.t.Helper()
	c := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	c.RootCAs.AddCert(a.cert)
	if name != "" {
		pair, err := tls.LoadX509KeyPair(a.path(name+".crt"), a.path(name+".key"))
		require.NoError(a.t, err)
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
}

// serveTLS serves an empty page with the settings.
func serveTLS(t *testing.T, s *config.Security) (url string, x *security) {
	t.Helper()
	x, err := openSecurity(s)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := httpserver.New(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), httpserver.Limits{}, zerolog.Nop())
	done := make(chan error, 1)
	go func() { done <- x.serve(server, l) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-done, http.ErrServerClosed)
	})
	return x.scheme() + l.Addr().String(), x
}

func TestTLSReadsARenewedCertificate(t *testing.T) {
	a := newAuthority(t)
	_, first := a.issue("server", a.cert)
	url, x := serveTLS(t, &config.Security{TLSCert: a.path("server.crt"), TLSKey: a.path("server.key")})
	serial := func() *big.Int {
		resp, err := a.client("").Get(url)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.TLS.PeerCertificates[0].SerialNumber
	}
	require.Equal(t, first.SerialNumber, serial())
	_, second := a.issue("server", a.cert)
	changed, err := x.cert.Reload(time.Now())
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, second.SerialNumber, serial())
	require.NoError(t, os.WriteFile(a.path("server.crt"), []byte("broken"), 0o600))
	_, err = x.cert.Reload(time.Now())
	require.ErrorContains(t, err, "server.crt")
	require.Equal(t, second.SerialNumber, serial(), "the good one stays")
}

func TestMutualTLSTakesSignedClientsOnly(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", a.cert)
	a.issue("friend", a.cert)
	a.issue("stranger", nil)
	url, _ := serveTLS(t, &config.Security{
		TLSCert: a.path("server.crt"), TLSKey: a.path("server.key"), TLSClientCA: a.path("ca.crt"),
	})
	resp, err := a.client("friend").Get(url)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	for _, name := range []string{"", "stranger"} {
		_, err := a.client(name).Get(url) //nolint:bodyclose // there is none
		require.Error(t, err, name)
	}
}

// natsSettings are those of an embedded server with users.
func natsSettings(t *testing.T) *config.Serve {
	t.Helper()
	path := filepath.Join(t.TempDir(), "users.conf")
	require.NoError(t, os.WriteFile(path, []byte(`accounts { A: { jetstream: enabled, users: [{ user: asker, password: "a secret" }] } }`),
		0o600))
	return &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20,
		Security: config.Security{NATSAuthFile: path}}
}

func TestTheEmbeddedNATSServerAsksForAUserAndForTLS(t *testing.T) {
	a := newAuthority(t)
	a.issue("server", a.cert)
	s := natsSettings(t)
	s.Cert, s.Key = a.path("server.crt"), a.path("server.key")
	to, err := openNATS(t.Context(), s, nil, zerolog.Nop())
	require.NoError(t, err, "our own connection needs no password")
	defer to.stop()
	conn := to.nodes
	sub, err := conn.SubscribeSync("hello")
	require.NoError(t, err)
	require.NoError(t, conn.Flush())
	url := conn.ConnectedUrl()
	_, err = nats.Connect(url, nats.RootCAs(a.path("ca.crt")))
	require.ErrorIs(t, err, nats.ErrAuthorization)
	_, err = nats.Connect(url, nats.UserInfo("asker", "a secret"))
	require.Error(t, err, "the certificate is not known")
	other, err := nats.Connect(url, nats.UserInfo("asker", "a secret"), nats.RootCAs(a.path("ca.crt")))
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, other.Publish("hello", []byte("there")))
	m, err := sub.NextMsg(10 * time.Second)
	require.NoError(t, err, "both are in the one account")
	require.Equal(t, "there", string(m.Data))
}

func TestAnAuthFileWithoutUsersIsRefused(t *testing.T) {
	s := natsSettings(t)
	require.NoError(t, os.WriteFile(s.NATSAuthFile, []byte("debug: false\n"), 0o600))
	_, err := openNATS(t.Context(), s, nil, zerolog.Nop())
	require.ErrorContains(t, err, "found no user")
	require.ErrorIs(t, err, config.ErrUsage)
}

func TestAnErrorOfNATSHidesThePassword(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it would wait
	_, err := openNATS(ctx, &config.Serve{NATS: "nats://me:hunter2@127.0.0.1:1,nats://127.0.0.1:1"}, nil, zerolog.Nop())
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")
	require.Contains(t, err.Error(), "127.0.0.1:1")
}

func TestNoSecretAndNoPromptIsInTheLogOfAFullRun(t *testing.T) {
	key, entry := auth.NewKey("acme")
	line, err := entry.Line()
	require.NoError(t, err)
	keys := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(keys, []byte(line), 0o600))
	s := natsSettings(t)
	s.APIKeys, s.PingInterval = keys, time.Minute
	var logged apitest.Log
	log := zerolog.New(&logged).Level(zerolog.TraceLevel)
	secure, err := openSecurity(&s.Security)
	require.NoError(t, err)
	to, err := openNATS(t.Context(), s, secure.keys, log)
	require.NoError(t, err)
	defer to.stop()
	conn := to.nodes
	engine := secure.guard(apitest.New(apitest.Say("the", " answer", " is secret")))
	service, err := natsapi.Start(conn, engine, natsapi.Options{Logger: log, Keys: secure.callers(), PingAfter: s.PingInterval})
	require.NoError(t, err)
	handler, err := httpHandler(engine, &gateway{store: &storage{}}, &lateEngine{}, secure, nil, s, log)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := httpserver.New(handler, httpserver.Limits{}, log)
	done := make(chan error, 1)
	go func() { done <- secure.serve(server, l) }()

	const prompt = "my hidden question"
	for _, k := range []string{key, key + "0", ""} {
		for _, stream := range []string{"", `,"stream":true`, `,"temperature":9`} {
			body := `{"messages":[{"role":"user","content":"` + prompt + `"}]` + stream + `}`
			req, err := http.NewRequest("POST", "http://"+l.Addr().String()+"/v1/chat/completions", strings.NewReader(body))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer "+k)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, errors.Join(err, resp.Body.Close()))
			m := nats.NewMsg("millrace.v1.chat.completions")
			m.Data = []byte(body)
			m.Header.Set(natsapi.HeaderKey, "Bearer "+k)
			_, err = conn.RequestMsg(m, 10*time.Second)
			require.NoError(t, err)
		}
	}
	require.NoError(t, server.Close())
	require.ErrorIs(t, <-done, http.ErrServerClosed)
	require.NoError(t, service.Stop(t.Context()))
	text := logged.String()
	require.Contains(t, text, entry.ID, "the key's id is there")
	require.GreaterOrEqual(t, strings.Count(text, "\n"), 18)
	for _, secret := range []string{key[len(key)-52:], prompt, "is secret", "a secret", entry.Hash} {
		require.NotContains(t, text, secret)
	}
}

func TestKeysCreatePrintsTheKeyApartFromItsLine(t *testing.T) {
	code, stdout, stderr := millrace(t, nil, "keys", "create", "--tenant", "acme", "--concurrent", "3")
	require.Equal(t, 0, code, stderr)
	key := strings.TrimSpace(stderr[strings.LastIndex(stderr, " "):])
	require.NotContains(t, stdout, key)
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(stdout), 0o600))
	r, err := auth.Open(path)
	require.NoError(t, err)
	k, err := r.Authenticate("Bearer " + key)
	require.NoError(t, err)
	require.Equal(t, 3, r.Key(k.KeyID()).Concurrent)
	for _, args := range [][]string{{"keys", "create"}, {"keys", "create", "--tenant", "a", "--weight", "1001"}} {
		code, _, stderr := millrace(t, nil, args...)
		require.Equal(t, 2, code, stderr)
	}
}
