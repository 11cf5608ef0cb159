package deploy_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/cluster/bridge"
	"github.com/millrace/millrace/e2e/natstest"
)

const natsConfig = "nats/millrace.conf"

// kinds of messages between nodes, and who sends and who gets them.
var kinds = []struct {
	kind     string
	from, to []string
}{
	{"tokenize", []string{"gateway"}, []string{"tokenize"}},
	{"tokenized", []string{"tokenize"}, []string{"gateway"}},
	{"open", []string{"gateway"}, []string{"detok"}},
	{"generate", []string{"gateway"}, []string{"compute"}},
	{"cancel", []string{"gateway", "detok"}, []string{"compute"}},
	{"tokens", []string{"compute"}, []string{"detok"}},
	{"progress", []string{"compute"}, []string{"gateway"}},
	{"text", []string{"detok"}, []string{"gateway"}},
}

var natsUsers = []string{"gateway", "tokenize", "compute", "detok", "node", "client"}

// natsServer runs the committed configuration. Its users' passwords are their names.
func natsServer(t *testing.T) *server.Server {
	t.Helper()
	for _, user := range natsUsers {
		t.Setenv("MILLRACE_NATS_"+strings.ToUpper(user), user)
	}
	o, err := server.ProcessConfigFile(natsConfig)
	require.NoError(t, err)
	o.StoreDir = t.TempDir()
	return natstest.Start(t, o)
}

func natsUser(t *testing.T, s *server.Server, user string) *nats.Conn {
	t.Helper()
	return natstest.Connect(t, s, nats.UserInfo(user, user), nats.CustomInboxPrefix("_INBOX."+user),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
}

// allowed says whether the server let the connection do something: its
// complaint comes before the answer to the flush.
func allowed(t *testing.T, s *server.Server, user string, do func(*nats.Conn) error) bool {
	t.Helper()
	c := natsUser(t, s, user)
	defer c.Close()
	require.NoError(t, do(c))
	require.NoError(t, c.Flush())
	err := c.LastError()
	require.True(t, err == nil || errors.Is(err, nats.ErrPermissionViolation), "%v", err)
	return err == nil
}

func TestTheKindsAreThoseOfTheMessages(t *testing.T) {
	messages := []any{&msg.Tokenize{}, &msg.Tokenized{}, &msg.OpenText{}, &msg.Generate{}, &msg.Cancel{}, &msg.Tokens{}, &msg.Progress{}, &msg.Text{}}
	require.Len(t, messages, len(kinds))
	for i, m := range messages {
		require.Equal(t, kinds[i].kind, msg.Kind(m), "%T", m)
		require.Equal(t, "millrace.node.n1."+kinds[i].kind, bridge.Subject("n1", msg.Kind(m)))
	}
}

func TestEachRoleSendsItsOwnKindsOfMessagesOnly(t *testing.T) {
	s := natsServer(t)
	mayPublish := map[string][]string{ // beside the kinds
		"millrace.registry.beat":       {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.registry.alive.n1":   {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.registry.gone.n1.n2": nil,
		"millrace.journal.call":        {"gateway", "node"},
		"millrace.resume.any":          {"gateway", "node"},
		"millrace.limits.used":         {"gateway", "node"},
		"millrace.resume.node.n1":      {"gateway", "node"},
		"millrace.v1.chat.completions": {"client"},
		"millrace.v1.cancel.a.b":       {"client"},
		"_INBOX.client.x":              {"gateway", "node"},
		"$JS.API.STREAM.NAMES":         {"gateway", "node"},
		"$SRV.PING":                    {"client"},
		"millrace.other":               nil,
	}
	for _, k := range kinds {
		mayPublish["millrace.node.n1."+k.kind] = append([]string{"node"}, k.from...)
	}
	for subject, users := range mayPublish {
		for _, user := range natsUsers {
			got := allowed(t, s, user, func(c *nats.Conn) error { return c.Publish(subject, nil) })
			require.Equal(t, slices.Contains(users, user), got, "%s publishes to %s", user, subject)
		}
	}
	maySubscribe := map[string][]string{
		"millrace.v1.chat.completions": {"gateway", "node"},
		"millrace.node.n1.*":           {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.registry.beat":       {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.registry.alive.n1":   {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.registry.gone.n1.*":  {"gateway", "tokenize", "compute", "detok", "node"},
		"millrace.limits.used":         {"gateway", "node"},
		"_INBOX.client.>":              {"gateway", "node", "client"},
		"_INBOX.>":                     {"gateway", "node"},
		">":                            nil,
	}
	for subject, users := range maySubscribe {
		for _, user := range natsUsers {
			got := allowed(t, s, user, func(c *nats.Conn) error { _, err := c.SubscribeSync(subject); return err })
			require.Equal(t, slices.Contains(users, user), got, "%s subscribes to %s", user, subject)
		}
	}
}

func TestEachRoleGetsItsOwnKindsOfMessagesOnly(t *testing.T) {
	s := natsServer(t)
	sender := natsUser(t, s, "node")
	for _, role := range []string{"gateway", "tokenize", "compute", "detok"} {
		c := natsUser(t, s, role)
		sub, err := c.SubscribeSync("millrace.node.n1.*") // as a node does
		require.NoError(t, err)
		require.NoError(t, c.Flush())
		var want, got []string
		for _, k := range kinds {
			require.NoError(t, sender.Publish("millrace.node.n1."+k.kind, nil))
			if slices.Contains(k.to, role) {
				want = append(want, k.kind)
			}
		}
		require.NoError(t, sender.Flush())
		require.NoError(t, c.Flush())
		for {
			m, err := sub.NextMsg(time.Millisecond) // what there is has come before the flush's answer
			if err != nil {
				break
			}
			got = append(got, strings.TrimPrefix(m.Subject, "millrace.node.n1."))
		}
		require.Equal(t, want, got, role)
	}
}

func TestGatewaysKeepStreamsInJetStreamAndOthersDoNot(t *testing.T) {
	s := natsServer(t)
	for _, user := range natsUsers {
		js, err := jetstream.New(natsUser(t, s, user), jetstream.WithDefaultTimeout(time.Second))
		require.NoError(t, err)
		_, err = js.CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"millrace.journal.*"}})
		if user != "gateway" && user != "node" {
			require.Error(t, err, user)
			continue
		}
		require.NoError(t, err, user)
		_, err = js.Publish(t.Context(), "millrace.journal.a", []byte(user))
		require.NoError(t, err, user)
	}
}

func TestAClientAsksAndIsAnsweredInItsOwnInbox(t *testing.T) {
	s := natsServer(t)
	gateway, client := natsUser(t, s, "gateway"), natsUser(t, s, "client")
	_, err := gateway.Subscribe("millrace.v1.models", func(m *nats.Msg) { m.Respond([]byte("answer")) }) //nolint:errcheck // the client would wait
	require.NoError(t, err)
	require.NoError(t, gateway.Flush())
	m, err := client.Request("millrace.v1.models", nil, 10*time.Second)
	require.NoError(t, err)
	require.Equal(t, "answer", string(m.Data))
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	s := natsServer(t)
	for _, user := range append(natsUsers, "") {
		_, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, "wrong"))
		require.ErrorIs(t, err, nats.ErrAuthorization, user)
	}
}
