package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/durable/calls"
)

// keyring has a new key for each tenant.
func keyring(t *testing.T, tenants ...string) (ring *auth.Keyring, keys []string) {
	t.Helper()
	var file strings.Builder
	for _, tenant := range tenants {
		key, entry := auth.NewKey(tenant)
		line, err := entry.Line()
		require.NoError(t, err)
		file.WriteString(line)
		keys = append(keys, key)
	}
	ring, err := auth.Open(secret(t, "keys.yaml", []byte(file.String())))
	require.NoError(t, err)
	return ring, keys
}

// gatewayRole is that of a process that serves clients.
func gatewayRole() config.Roles { return config.Roles{Names: []string{"gateway"}} }

// keyedServer is a gateway with an embedded NATS server and API keys. It answers "yes".
func keyedServer(t *testing.T, tenants ...string) (url string, s *config.Serve, keys []string, to *links) {
	t.Helper()
	s = &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole()}
	ring, keys := keyring(t, tenants...)
	to, err := openNATS(t.Context(), s, ring, zerolog.Nop())
	require.NoError(t, err)
	t.Cleanup(to.stop)
	e := apitest.New(apitest.Say("yes"))
	kept, err := calls.New(to.nodes, call.NewDirect(auth.Guard(e)), calls.Options{})
	require.NoError(t, err, "JetStream is the nodes'")
	t.Cleanup(kept.Close)
	service, err := natsapi.Start(to.front, auth.Guard(e), natsapi.Options{Keys: ring, Calls: kept})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Stop(t.Context())) })
	return to.nodes.ConnectedUrl(), s, keys, to
}

// connect is a quiet connection until the test ends.
func connect(t *testing.T, url string, options ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, append(options, nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))...)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// mayHear says whether a connection may subscribe; a refusal stays the connection's last error.
func mayHear(t *testing.T, url, subject string, options ...nats.Option) bool {
	t.Helper()
	nc := connect(t, url, options...)
	defer nc.Close()
	_, err := nc.SubscribeSync(subject)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	if nc.LastError() != nil {
		require.ErrorIs(t, nc.LastError(), nats.ErrPermissionViolation)
	}
	return nc.LastError() == nil
}

func complete(t *testing.T, nc *nats.Conn, key string) string {
	t.Helper()
	m := nats.NewMsg("millrace.v1.completions")
	m.Data = []byte(`{"prompt":"x"}`)
	m.Header.Set(natsapi.HeaderKey, "Bearer "+key)
	answer, err := nc.RequestMsg(m, 20*time.Second)
	require.NoError(t, err)
	return string(answer.Data)
}

// everything is what a connection would subscribe to in order to read what is not its own.
var everything = []string{">", "*", "*.>", "*.*", "millrace.>", "millrace.v1.>", "millrace.v1.chat.completions", "millrace.v1.cancel.>",
	"millrace.node.>",
	"millrace.registry.>", "millrace.journal.>", "millrace.limits.used", "$JS.API.>", "$JS.>", "$SYS.>", "$SRV.PING", "_INBOX_.>"}

func TestAConnectionWithoutCredentialsIsAClient(t *testing.T) {
	url, _, keys, to := keyedServer(t, "acme")
	for _, subject := range everything {
		require.False(t, mayHear(t, url, subject), subject)
		require.False(t, mayHear(t, url, subject, nats.Token(keys[0])), "%s with a key", subject)
	}
	nc := connect(t, url)
	require.Contains(t, complete(t, nc, keys[0]), `"text":"yes"`, "as the nats tool does it")
	require.Contains(t, complete(t, nc, ""), "invalid_api_key")
	leaked, err := to.nodes.SubscribeSync(">")
	require.NoError(t, err)
	require.NoError(t, to.nodes.Flush())
	for _, subject := range []string{"$JS.API.STREAM.DELETE.MILLRACE_JOURNAL", "millrace.journal.cmpl-my-2", "millrace.node.n1.generate",
		cluster.BeatSubject, "millrace.limits.used", "_INBOX.x.y"} {
		require.NoError(t, nc.Publish(subject, []byte("{}")))
		require.NoError(t, nc.PublishRequest("millrace.v1.models", subject, nil))
	}
	complete(t, nc, keys[0])
	require.NoError(t, to.nodes.Flush())
	n, _, err := leaked.Pending()
	require.NoError(t, err)
	require.Zero(t, n, "nothing of clients passes to nodes")
}

// TestAKeysAnswersAreItsOwn: neither another key's client nor one without credentials receives them.
func TestAKeysAnswersAreItsOwn(t *testing.T) {
	url, _, keys, _ := keyedServer(t, "acme", "other")
	mine := client.InboxPrefix(keys[0])
	for _, subject := range []string{mine + ".>", mine + ".a", mine + ".*", mine + ".*.*"} {
		require.True(t, mayHear(t, url, subject, nats.Token(keys[0])), subject)
		require.False(t, mayHear(t, url, subject, nats.Token(keys[1])), subject)
		require.False(t, mayHear(t, url, subject), subject)
	}
	for _, subject := range []string{mine, "_INBOX.>", "_INBOX.*", "_INBOX.*.>", "_INBOX.key.>", "_INBOX.key.*", "_INBOX.*.*.*",
		"_INBOX.key.*.*", "_INBOX.x.y"} {
		require.False(t, mayHear(t, url, subject, nats.Token(keys[1])), subject)
	}
	// whatever else may be subscribed to does not bring them
	nobody := connect(t, url)
	var subs []*nats.Subscription
	for _, subject := range []string{"_INBOX.>", "_INBOX.*.>", "_INBOX.*.*", "_INBOX.*.*.*", "_INBOX.*.*.*.*", "_INBOX.*.*.>"} {
		sub, err := nobody.SubscribeSync(subject)
		require.NoError(t, err)
		subs = append(subs, sub)
	}
	require.NoError(t, nobody.Flush())
	c, err := client.DialNATS(url, client.WithNATSAPIKey(keys[0]))
	require.NoError(t, err)
	defer c.Close()
	a, err := c.Complete(t.Context(), client.CompletionRequest{Prompt: "x"})
	require.NoError(t, err)
	require.Equal(t, "yes", a.Choices[0].Text)
	code, stdout, stderr := millrace(t, nil, "request", "millrace.v1.completions", `{"prompt":"x"}`, "--nats", url, "--api-key", keys[0])
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, `"text":"yes"`)
	require.Contains(t, complete(t, connect(t, url, nats.Token(keys[0]), nats.CustomInboxPrefix(mine)), keys[0]), "yes")
	require.NoError(t, nobody.Flush())
	for _, sub := range subs {
		n, _, err := sub.Pending()
		require.NoError(t, err)
		require.Zero(t, n, sub.Subject)
	}
}

func TestAWrongKeyIsNoLoginAndAPlainError(t *testing.T) {
	url, s, keys, _ := keyedServer(t, "acme")
	for _, option := range []nats.Option{nats.Token(keys[0] + "a"), nats.Token("x"), nats.UserInfo("node", ""),
		nats.UserInfo("node", "node"),
		nats.UserInfo("client", "client"), nats.UserInfo("", "x")} {
		_, err := nats.Connect(url, option)
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	_, _, seed := pair(t, nkeys.CreateUser)
	option, err := nats.NkeyOptionFromSeed(secret(t, "other.nk", seed))
	require.NoError(t, err)
	_, err = nats.Connect(url, option)
	require.ErrorIs(t, err, nats.ErrAuthorization)
	text, err := os.ReadFile(filepath.Join(s.DataDir, seedFile))
	require.NoError(t, err)
	known, err := nats.NkeyOptionFromSeed(secret(t, "node.nk", text))
	require.NoError(t, err)
	_, err = nats.Connect(url, known, func(o *nats.Options) error {
		o.SignatureCB = func([]byte) ([]byte, error) { return []byte("forged"), nil }
		return nil
	})
	require.ErrorIs(t, err, nats.ErrAuthorization, "the public key alone is no login")

	c, err := client.DialNATS(url, client.WithNATSAPIKey(keys[0]+"a"))
	require.NoError(t, err)
	defer c.Close()
	_, err = c.Models(t.Context())
	var said *client.Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, 401, said.Status)
}

func TestOtherProcessesJoinWithTheSeedOfTheDataDirectory(t *testing.T) {
	url, s, keys, to := keyedServer(t, "acme")
	seed := filepath.Join(s.DataDir, seedFile)
	info, err := os.Stat(seed)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	_, err = openNATS(t.Context(), &config.Serve{NATS: url, Roles: gatewayRole()}, nil, zerolog.Nop())
	require.ErrorIs(t, err, nats.ErrPermissionViolation, "without the seed it is a client")
	require.ErrorContains(t, err, "--nats-nkey with nats-node.nk of that process's --data-dir")

	with := &config.Serve{NATS: url, Roles: gatewayRole(), Security: config.Security{NATSClient: config.NATSClient{NKey: seed}}}
	other, err := openNATS(t.Context(), with, nil, zerolog.Nop())
	require.NoError(t, err)
	defer other.stop()
	received, err := to.nodes.SubscribeSync("millrace.node.n1.generate")
	require.NoError(t, err)
	require.NoError(t, to.nodes.Flush())
	require.NoError(t, other.nodes.Publish("millrace.node.n1.generate", nil))
	_, err = received.NextMsg(20 * time.Second)
	require.NoError(t, err, "both are in the nodes' account")
	e := apitest.New(apitest.Say("here"))
	service, err := natsapi.Start(other.front, e, natsapi.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, service.Stop(t.Context())) }()
	require.Eventually(t, func() bool { // the queue group chooses
		return strings.Contains(complete(t, connect(t, url), keys[0]), "here")
	}, 20*time.Second, time.Millisecond, "its other connection is in the clients'")

	code, _, stderr := millrace(t, nil, "nodes", "--nats", url, "--heartbeat", "1ms")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, seedFile)
	code, _, stderr = millrace(t, nil, "nodes", "--nats", url, "--heartbeat", "1ms", "--nats-nkey", seed)
	require.Equal(t, 0, code, stderr)
}

func TestTheSeedStaysAtAnotherStart(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole()}
	ring, _ := keyring(t, "acme")
	var seeds [2]string
	for i := range seeds {
		to, err := openNATS(t.Context(), s, ring, zerolog.Nop())
		require.NoError(t, err)
		to.stop()
		text, err := os.ReadFile(filepath.Join(s.DataDir, seedFile))
		require.NoError(t, err)
		seeds[i] = string(text)
	}
	require.Equal(t, seeds[0], seeds[1])
}

func TestABrokenSeedFileIsNamed(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20}
	path := filepath.Join(s.DataDir, seedFile)
	require.NoError(t, os.WriteFile(path, []byte("nonsense"), 0o600))
	ring, _ := keyring(t, "acme")
	_, err := openNATS(t.Context(), s, ring, zerolog.Nop())
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "expected an NKey seed")
}

// TestClientsLeaveConnectionsForNodes: at their limit clients are refused, and a node still joins.
func TestClientsLeaveConnectionsForNodes(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20}
	ring, keys := keyring(t, "acme")
	o, err := natsServerOptions(s)
	require.NoError(t, err)
	o.MaxConn = 8
	e, err := launchNATS(o, s, ring, zerolog.Nop())
	require.NoError(t, err)
	defer e.server.Shutdown()
	url := e.server.ClientURL()
	for _, option := range []nats.Option{nats.Name("anonymous"), nats.Token(keys[0])} {
		for err = nil; err == nil; {
			var nc *nats.Conn
			if nc, err = nats.Connect(url, option); err == nil {
				t.Cleanup(nc.Close)
			}
		}
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	require.Eventually(t, func() bool { return e.server.NumClients() <= 6 }, 10*time.Second, time.Millisecond) // of those refused, none is left
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(s.DataDir, seedFile))
	require.NoError(t, err)
	connect(t, url, nkey)
	connect(t, url, e.front...)
}

func TestTheEmbeddedServersLimitsAreBelowTheFileLimit(t *testing.T) {
	for files, want := range map[uint64]int{0: 16, 256: 64, 1024: 256, 1 << 20: natsMostConnections, 1 << 63: natsMostConnections} {
		require.Equal(t, want, natsConnections(files), files)
	}
	o, err := natsServerOptions(&config.Serve{NATSListen: "127.0.0.1:0", BodyLimit: 1 << 40})
	require.NoError(t, err)
	require.EqualValues(t, natsMostPayload, o.MaxPayload)
	require.Positive(t, o.MaxSubs)
	require.Less(t, o.MaxPending, int64(64<<20))
	require.LessOrEqual(t, o.WriteDeadline, 10*time.Second)
	require.LessOrEqual(t, o.PingInterval, 30*time.Second)
}

// TestWithoutKeysLocalProcessesAreTrusted: make run, and the README's cluster and examples.
func TestWithoutKeysLocalProcessesAreTrusted(t *testing.T) {
	s := &config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20, Roles: gatewayRole()}
	to, err := openNATS(t.Context(), s, nil, zerolog.Nop())
	require.NoError(t, err)
	defer to.stop()
	url := to.nodes.ConnectedUrl()
	service, err := natsapi.Start(to.front, apitest.New(apitest.Say("yes")), natsapi.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, service.Stop(t.Context())) }()
	other, err := openNATS(t.Context(), &config.Serve{NATS: url, Roles: gatewayRole()}, nil, zerolog.Nop())
	require.NoError(t, err)
	other.stop()
	require.Contains(t, complete(t, connect(t, url), ""), "yes")
	require.Contains(t, complete(t, connect(t, url, nats.Token("any")), ""), "yes")
	code, stdout, stderr := millrace(t, nil, "request", "millrace.v1.completions", `{"prompt":"x"}`, "--nats", url, "--api-key",
		"mr-0123456789ab-x")
	require.Equal(t, 0, code, stderr)
	require.Contains(t, stdout, "yes")
	code, _, stderr = millrace(t, nil, "nodes", "--nats", url, "--heartbeat", "1ms")
	require.Equal(t, 0, code, stderr)
	_, err = os.Stat(filepath.Join(s.DataDir, seedFile))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestAClientsViolationsDoNotFloodTheLog: each is a line of the server.
func TestAClientsViolationsDoNotFloodTheLog(t *testing.T) {
	var logged apitest.Log
	ring, _ := keyring(t, "acme")
	e, err := startNATS(&config.Serve{NATSListen: "127.0.0.1:0", DataDir: t.TempDir(), BodyLimit: 1 << 20}, ring, zerolog.New(&logged))
	require.NoError(t, err)
	defer e.server.Shutdown()
	nc := connect(t, e.server.ClientURL())
	for range 5000 {
		require.NoError(t, nc.Publish("millrace.node.n1.generate", nil))
	}
	require.NoError(t, nc.Flush())
	lines := strings.Count(logged.String(), "Violation")
	require.Positive(t, lines)
	require.Less(t, lines, 1000)
}
