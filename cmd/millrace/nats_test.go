package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/deploy"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/e2e/natstest"
)

// shipped sets the variables of the shipped configuration, each user's password to its name, and
// writes the file.
func shipped(t *testing.T) (path string, environ []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`user: (\w+), password: \$(\w+)`).FindAllStringSubmatch(deploy.NATS, -1) {
		t.Setenv(m[2], m[1])
		environ = append(environ, m[2]+"="+m[1])
	}
	require.Len(t, environ, 7)
	return secret(t, "millrace.conf", []byte(deploy.NATS)), environ
}

// serveYes serves an engine that says yes over a gateway's connections, resumable streams included.
func serveYes(t *testing.T, to *links) {
	t.Helper()
	e := apitest.New(apitest.Say("yes"))
	kept, err := calls.New(to.nodes, call.NewDirect(e), calls.Options{})
	require.NoError(t, err)
	t.Cleanup(kept.Close)
	service, err := natsapi.Start(to.front, e, natsapi.Options{Calls: kept})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Stop(t.Context())) })
}

func TestTheShippedConfigurationStartsAsDocumented(t *testing.T) {
	path, environ := shipped(t)
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole(),
		Security: config.Security{NATSAuthFile: path}}
	to, err := openNATS(t.Context(), s, nil, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(to.stop)
	serveYes(t, to)
	url := to.nodes.ConnectedUrl()
	asker := connect(t, url, nats.UserInfo("client", "client"), nats.CustomInboxPrefix("_INBOX.client"))
	require.Contains(t, complete(t, asker, ""), "yes")
	code, stdout, stderr := millrace(t, environ, "request", "millrace.v1.completions", `{"prompt":"x","stream":true,"stream_resume":true}`,
		"--nats", strings.Replace(url, "://", "://client:client@", 1), "--inbox-prefix", "_INBOX.client")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "yes")
	_, err = nats.Connect(url)
	require.ErrorIs(t, err, nats.ErrAuthorization)
}

func TestAnAuthFileHasOneAccountOrTheTwo(t *testing.T) {
	s := natsSettings(t)
	s.Roles = gatewayRole()
	for text, want := range map[string]string{
		`accounts { A: { users: [{user: a, password: a}] }, B: {} }`:             "found the accounts A, B, expected one, or MILLRACE and CLIENTS",
		`accounts { MILLRACE: { users: [{user: a, password: a}] }, B: {} }`:      "expected one, or MILLRACE and CLIENTS",
		`accounts { MILLRACE: { users: [{user: a, password: a}] }, CLIENTS: {}}`: "",
		`accounts { A: { users: [{user: a, password: a}] } }`:                    "",
		`authorization { users: [{user: a, password: a}] }`:                      "",
	} {
		require.NoError(t, os.WriteFile(s.NATSAuthFile, []byte(text), 0o600))
		to, err := openNATS(t.Context(), s, nil, zerolog.Nop())
		if want != "" {
			require.ErrorIs(t, err, config.ErrUsage, text)
			names := err.Error()
			require.True(t, strings.Contains(names, want) || strings.Contains(names, "found the accounts B, A"), names)
			continue
		}
		require.NoError(t, err, text)
		to.stop()
	}
}

// TestAGatewayHasAUserInEachAccountOfAnotherServer tries what --nats-clients may be.
func TestAGatewayHasAUserInEachAccountOfAnotherServer(t *testing.T) {
	path, _ := shipped(t)
	o, err := server.ProcessConfigFile(path)
	require.NoError(t, err)
	_, public, seed := pair(t, nkeys.CreateUser)
	for _, u := range o.Users {
		if u.Username == "front" {
			o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: public, Account: u.Account, Permissions: u.Permissions})
		}
	}
	url := natstest.Start(t, o).ClientURL()
	as := func(user string) string { return strings.Replace(url, "://", "://"+user+":"+user+"@", 1) }
	for name, clients := range map[string]string{"user": as("front"), "nkey": secret(t, "front.nk", seed)} {
		t.Run(name, func(t *testing.T) {
			to, err := openNATS(t.Context(), &config.Serve{NATS: as("gateway"), Roles: gatewayRole(),
				Security: config.Security{NATSClients: clients}}, nil, zerolog.Nop())
			require.NoError(t, err)
			t.Cleanup(to.stop)
			serveYes(t, to)
			require.Contains(t, complete(t, connect(t, as("client"), nats.CustomInboxPrefix("_INBOX.client")), ""), "yes")
		})
	}
	for want, clients := range map[string]string{
		"no such file":          filepath.Join(t.TempDir(), "none"),
		"neither a URL nor":     secret(t, "junk", []byte("junk")),
		"Authorization Violati": as("nobody"),
	} {
		_, err := openNATS(t.Context(), &config.Serve{NATS: as("gateway"), Roles: gatewayRole(),
			Security: config.Security{NATSClients: clients}},
			nil, zerolog.Nop())
		require.ErrorContains(t, err, want)
	}
	_, err = openNATS(t.Context(), &config.Serve{NATS: as("client"), Roles: gatewayRole()}, nil, zerolog.Nop())
	require.ErrorContains(t, err, "expected the login of a node")
	to, err := openNATS(t.Context(), &config.Serve{NATS: as("compute"), Roles: config.Roles{Names: []string{"compute"}}}, nil,
		zerolog.Nop())
	require.NoError(t, err)
	require.Nil(t, to.front, "a worker has no clients")
	to.stop()
}

// started runs a command: stop ends it, ended waits for its end and gives its exit code and log.
func started(t *testing.T, args ...string) (stop context.CancelFunc, ended func() (int, string)) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	code := make(chan int, 1)
	go func() { code <- run(ctx, args, nil, io.Discard, log) }()
	return cancel, func() (int, string) {
		n := <-code
		text, err := os.ReadFile(log.Name())
		require.NoError(t, err)
		require.NoError(t, log.Close())
		return n, string(text)
	}
}

func freePort(t *testing.T) (address string, port int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String(), l.Addr().(*net.TCPAddr).Port
}

// get is a page's status and text; 0 when nobody answers yet.
func get(url string) (int, string) {
	resp, err := http.Get(url) //nolint:noctx // of a test
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text)
}

func TestAProcessWaitsForItsNATSServerAndIsNotReady(t *testing.T) {
	t.Chdir(t.TempDir())
	listen, _ := freePort(t)
	at, port := freePort(t)
	stop, ended := started(t, "serve", "--roles", "gateway", "--nats", "nats://"+at, "--listen", listen, "--grace", "0s", "--drain-delay",
		"0s")
	require.Eventually(t, func() bool { status, _ := get("http://" + listen + "/health/live"); return status == 200 }, 20*time.Second,
		10*time.Millisecond)
	status, text := get("http://" + listen + "/health/ready")
	require.Equal(t, 503, status)
	require.Contains(t, text, "NATS")
	status, _ = get("http://" + listen + "/v1/models")
	require.Equal(t, 503, status)
	natstest.Start(t, &server.Options{Port: port, JetStream: true})
	require.Eventually(t, func() bool {
		_, text := get("http://" + listen + "/health/ready")
		return !strings.Contains(text, "NATS server is not there")
	},
		20*time.Second, 10*time.Millisecond)
	stop()
	code, log := ended()
	require.Equal(t, 0, code, log)
	require.Contains(t, log, "the NATS server is not there yet")
}

func TestAProcessThatWaitsForNATSEndsWhenTold(t *testing.T) {
	t.Chdir(t.TempDir())
	listen, _ := freePort(t)
	at, _ := freePort(t)
	stop, ended := started(t, "serve", "--roles", "gateway", "--nats", "nats://"+at, "--listen", listen)
	require.Eventually(t, func() bool { status, _ := get("http://" + listen + "/health/live"); return status == 200 }, 20*time.Second,
		10*time.Millisecond)
	stop()
	code, log := ended()
	require.Equal(t, 0, code, log)
}

func TestARefusedLoginEndsTheProcess(t *testing.T) {
	t.Chdir(t.TempDir())
	url, _ := nkeyServer(t)
	listen, _ := freePort(t)
	_, ended := started(t, "serve", "--roles", "gateway", "--nats", url, "--listen", listen)
	code, log := ended()
	require.Equal(t, 1, code)
	require.Contains(t, log, "expected the login of a node")
}

func TestAWorkersDebugPagesNeedAKey(t *testing.T) {
	ring, keys := keyring(t, "acme")
	ask := func(h http.Handler, path, header string) int {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Authorization", header)
		h.ServeHTTP(w, r)
		return w.Code
	}
	h := workerHandler(&lateEngine{}, ring)
	require.Equal(t, 401, ask(h, "/debug/kv", ""))
	require.Equal(t, 401, ask(h, "/debug/kv", "Bearer "+keys[0]+"a"))
	require.Equal(t, 503, ask(h, "/debug/kv", "Bearer "+keys[0]), "the model is not loaded")
	require.Equal(t, 200, ask(h, "/health/live", ""))
	require.Equal(t, 503, ask(h, "/metrics", ""), "open, as everywhere")
	require.Equal(t, 503, ask(workerHandler(&lateEngine{}, nil), "/debug/kv", ""))
}
