package deploy_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/api/responses"
	"github.com/millrace/millrace/cluster/bridge"
	"github.com/millrace/millrace/cluster/kvevents"
	"github.com/millrace/millrace/cluster/prefix"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/deploy"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/durable/log"
	"github.com/millrace/millrace/durable/objects"
	"github.com/millrace/millrace/durable/stored"
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
	{"slabs", []string{"compute"}, []string{"compute"}},
}

var natsUsers = []string{"gateway", "tokenize", "compute", "detok", "node", "front", "client"}

// nodes are the users of the account MILLRACE.
var nodes = []string{"gateway", "tokenize", "compute", "detok", "node"}

// journalAPI is what gateways need of JetStream.
var journalAPI = []string{
	"STREAM.CREATE.MILLRACE_JOURNAL", "STREAM.UPDATE.MILLRACE_JOURNAL", "STREAM.INFO.MILLRACE_JOURNAL", "STREAM.PURGE.MILLRACE_JOURNAL",
	"STREAM.MSG.GET.MILLRACE_JOURNAL", "DIRECT.GET.MILLRACE_JOURNAL", "DIRECT.GET.MILLRACE_JOURNAL.millrace.journal.t.call",
	"CONSUMER.CREATE.MILLRACE_JOURNAL.c.millrace.journal.t.call", "CONSUMER.INFO.MILLRACE_JOURNAL.c", "CONSUMER.DELETE.MILLRACE_JOURNAL.c",
	"CONSUMER.MSG.NEXT.MILLRACE_JOURNAL.c",
}

// prefixAPI is what gateways need of it to read the events of prefix caches.
var prefixAPI = []string{
	"STREAM.CREATE.MILLRACE_KV", "STREAM.INFO.MILLRACE_KV", "CONSUMER.CREATE.MILLRACE_KV.c", "CONSUMER.INFO.MILLRACE_KV.c",
	"CONSUMER.DELETE.MILLRACE_KV.c", "CONSUMER.MSG.NEXT.MILLRACE_KV.c",
}

// storeAPI is what gateways need of it for files, batches and stored responses.
func storeAPI() (subjects []string) {
	for _, stream := range []string{"OBJ_MILLRACE_FILES", "OBJ_MILLRACE_RESPONSES", "KV_MILLRACE_BATCHES", "MILLRACE_WORK",
		"MILLRACE_RESULTS"} {
		subjects = append(subjects, "STREAM.CREATE."+stream, "STREAM.UPDATE."+stream, "STREAM.INFO."+stream, "STREAM.PURGE."+stream,
			"STREAM.MSG.GET."+stream,
			"CONSUMER.CREATE."+stream+".c.x", "CONSUMER.INFO."+stream+".c", "CONSUMER.DELETE."+stream+".c")
	}
	return append(subjects, "CONSUMER.MSG.NEXT.MILLRACE_WORK.c", "CONSUMER.MSG.NEXT.MILLRACE_RESULTS.c", "DIRECT.GET.OBJ_MILLRACE_FILES.x",
		"DIRECT.GET.KV_MILLRACE_BATCHES.x")
}

// foreignAPI is what nobody may use: to end the journal, or to reach another stream.
var foreignAPI = []string{
	"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.DELETE.MILLRACE_JOURNAL", "STREAM.MSG.DELETE.MILLRACE_JOURNAL",
	"STREAM.SNAPSHOT.MILLRACE_JOURNAL", "STREAM.RESTORE.MILLRACE_JOURNAL", "STREAM.CREATE.OTHER", "STREAM.UPDATE.OTHER",
	"STREAM.INFO.OTHER", "STREAM.PURGE.OTHER", "STREAM.DELETE.OTHER", "STREAM.MSG.GET.OTHER", "DIRECT.GET.OTHER", "CONSUMER.CREATE.OTHER.c",
	"CONSUMER.LIST.MILLRACE_JOURNAL", "CONSUMER.DURABLE.CREATE.MILLRACE_JOURNAL.c", "STREAM.PEER.REMOVE.MILLRACE_JOURNAL",
	"ACCOUNT.PURGE.MILLRACE", "SERVER.REMOVE", "STREAM.DELETE.MILLRACE_KV", "STREAM.PURGE.MILLRACE_KV", "STREAM.UPDATE.MILLRACE_KV",
	"STREAM.MSG.GET.MILLRACE_KV", "DIRECT.GET.MILLRACE_KV", "STREAM.CREATE.OBJ_millrace-bodies", "STREAM.INFO.OBJ_millrace-bodies",
	"STREAM.DELETE.OBJ_MILLRACE_FILES", "STREAM.DELETE.KV_MILLRACE_BATCHES", "STREAM.DELETE.MILLRACE_WORK",
	"STREAM.MSG.DELETE.MILLRACE_RESULTS",
}

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
	messages := []any{&msg.Tokenize{}, &msg.Tokenized{}, &msg.OpenText{}, &msg.Generate{}, &msg.Cancel{}, &msg.Tokens{}, &msg.Progress{},
		&msg.Text{}, &msg.Slab{}}
	require.Len(t, messages, len(kinds))
	for i, m := range messages {
		require.Equal(t, kinds[i].kind, msg.Kind(m), "%T", m)
		require.Equal(t, "millrace.node.n1."+kinds[i].kind, bridge.Subject("n1", msg.Kind(m)))
	}
}

func TestEachRoleSendsItsOwnKindsOfMessagesOnly(t *testing.T) {
	s := natsServer(t)
	mayPublish := map[string][]string{ // beside the kinds
		"millrace.registry.beat":       nodes,
		"millrace.registry.v2.beat":    nodes,
		"millrace.registry.alive.n1":   nodes,
		"millrace.registry.gone.n1.n2": nil,
		"millrace.journal.call":        {"gateway", "node"},
		"millrace.journal.t.call":      {"gateway", "node"},
		"millrace.resume.v2.any":       {"gateway", "node"},
		"millrace.kv.n1":               {"compute", "node"},
		"millrace.limits.used":         {"gateway", "node"},
		"millrace.resume.node.n1":      {"gateway", "node"},
		"millrace.v1.chat.completions": {"client"},
		"millrace.v1.cancel.a.b":       {"client"},
		"millrace.v1.bodies.open":      {"client"},
		"_INBOX.client.x":              {"gateway", "node", "front"},
		"$JS.ACK.MILLRACE_JOURNAL.x":   nil,
		"$JS.ACK.MILLRACE_WORK.x":      {"gateway", "node"},
		"$JS.FC.KV_MILLRACE_BATCHES.x": {"gateway", "node"},
		"$O.MILLRACE_FILES.C.x":        {"gateway", "node"},
		"$KV.MILLRACE_BATCHES.t.b":     {"gateway", "node"},
		"millrace.work.line.t.b.1":     {"gateway", "node"},
		"millrace.result.t.b.1":        {"gateway", "node"},
		"$JS.FC.MILLRACE_JOURNAL.x":    nil,
		"$JS.EVENT.ADVISORY.x":         nil,
		"$SYS.REQ.SERVER.PING":         nil,
		"$SRV.PING":                    {"client"},
		"millrace.other":               nil,
		"other":                        nil,
	}
	for _, subject := range slices.Concat(journalAPI, prefixAPI, storeAPI()) {
		mayPublish["$JS.API."+subject] = []string{"gateway", "node"}
	}
	for _, subject := range foreignAPI {
		mayPublish["$JS.API."+subject] = nil
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
		"millrace.v1.chat.completions": {"front"},
		"millrace.v1.cancel.a.*":       {"front"},
		"millrace.v1.>":                {"front"},
		"$SRV.PING":                    {"front"},
		"millrace.node.n1.*":           nodes,
		"millrace.registry.v2.beat":    nodes,
		"millrace.registry.alive.n1":   nodes,
		"millrace.registry.gone.n1.*":  nodes,
		"millrace.limits.used":         {"gateway", "node"},
		"millrace.resume.v2.any":       {"gateway", "node"},
		"millrace.journal.>":           nil,
		"millrace.kv.>":                nil,
		"millrace.kv.n1":               nil,
		"_INBOX.client.>":              {"gateway", "node", "client"},
		"_INBOX.other.>":               {"gateway", "node"},
		"_INBOX.>":                     {"gateway", "node"},
		"_INBOX.*":                     {"gateway", "node"},
		"$JS.API.>":                    nil,
		"$SYS.>":                       nil,
		"*":                            nil,
		"*.>":                          nil,
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

// gateway answers over NATS, with resumable streams, as the shipped users may.
func gateway(t *testing.T, s *server.Server, e api.Engine) *natsapi.Service {
	t.Helper()
	kept, err := calls.New(natsUser(t, s, "gateway"), call.NewDirect(e), calls.Options{})
	require.NoError(t, err)
	t.Cleanup(kept.Close)
	service, err := natsapi.Start(natsUser(t, s, "front"), e, natsapi.Options{Calls: kept})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, service.Stop(t.Context())) })
	return service
}

// TestGatewaysKeepStreamsInJetStreamAndOthersDoNot: a stream that one gateway serves is read
// again at another, with no more of JetStream's API than the users have.
func TestGatewaysKeepStreamsInJetStreamAndOthersDoNot(t *testing.T) {
	s := natsServer(t)
	e := apitest.New(apitest.Say("one", " two", " three"))
	first := gateway(t, s, e)
	client := natsUser(t, s, "client")
	read := func(subject, body string) (text string) {
		inbox := client.NewRespInbox()
		sub, err := client.SubscribeSync(inbox)
		require.NoError(t, err)
		require.NoError(t, client.PublishRequest(subject, inbox, []byte(body)))
		for {
			m, err := sub.NextMsg(20 * time.Second)
			require.NoError(t, err)
			text += string(m.Data)
			if m.Header.Get(natsapi.HeaderEnd) != "" {
				require.Equal(t, "stop", m.Header.Get(natsapi.HeaderEnd), text)
				return text
			}
		}
	}
	whole := read("millrace.v1.completions", `{"prompt":"x","stream":true,"stream_resume":true,"request_id":"my"}`)
	require.NoError(t, first.Stop(t.Context()))
	gateway(t, s, e)
	require.Equal(t, whole, read("millrace.v1.streams.resume", `{"id":"cmpl-my","after":0}`))
	e.WaitIdle()

	for _, user := range []string{"tokenize", "compute", "detok", "front", "client"} {
		_, err := calls.New(natsUser(t, s, user), call.NewDirect(e), calls.Options{Timeout: 100 * time.Millisecond})
		require.ErrorContains(t, err, "JetStream", user)
	}
}

// TestGatewaysRunBatchesAndStoreResponses with the permissions that they have.
func TestGatewaysRunBatchesAndStoreResponses(t *testing.T) {
	s := natsServer(t)
	nc := natsUser(t, s, "gateway")
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	work, err := batch.OpenWork(t.Context(), nc, js, 8<<20)
	require.NoError(t, err)
	open := func(bucket, noun string) *objects.Store {
		o, err := objects.Open(t.Context(), nc, objects.Options{Bucket: bucket, Noun: noun, Keep: time.Hour, MaxBytes: 8 << 20})
		require.NoError(t, err)
		t.Cleanup(o.Close)
		return o
	}
	files, kept := open("MILLRACE_FILES", "file"), open("MILLRACE_RESPONSES", "response")
	e := apitest.New(apitest.Say("x"))
	b, err := batch.Open(t.Context(), nc, batch.Options{Engine: e, Calls: call.NewDirect(e), Files: files, JetStream: js, Work: work,
		MaxBytes: 8 << 20, Room: func() int { return 2 }})
	require.NoError(t, err)
	t.Cleanup(b.Close)
	var lines strings.Builder
	for i := range 10 {
		fmt.Fprintf(&lines, `{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`+"\n", i)
	}
	_, err = files.Put(t.Context(), "", "file-1", map[string]string{batch.FieldPurpose: "batch"}, time.Time{},
		strings.NewReader(lines.String()))
	require.NoError(t, err)
	r, err := b.Create(t.Context(), batch.Request{Endpoint: "/v1/completions", Input: "file-1", Window: time.Hour})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		r, err = b.Get(t.Context(), r.ID)
		return err == nil && r.Status == batch.Completed
	}, time.Minute, 20*time.Millisecond)
	require.Equal(t, 10, r.Counts.Completed)

	store := stored.New(stored.Options{Calls: call.NewDirect(e), Objects: kept, Work: work, Publish: js,
		Ready: func() error { return nil }})
	t.Cleanup(store.Close)
	c, err := responses.Decode([]byte(`{"input":"x","background":true}`), e.Models(), time.Now())
	require.NoError(t, err)
	_, err = store.Run(t.Context(), c)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		body, err := store.Get(t.Context(), responses.IDOf(c))
		return err == nil && strings.Contains(string(body), `"status":"completed"`)
	}, time.Minute, 20*time.Millisecond)
	require.NoError(t, store.Delete(t.Context(), responses.IDOf(c)))
	require.NoError(t, nc.LastError(), "every subject is allowed")
}

// TestGatewaysFollowWorkersPrefixCaches with the permissions that both have.
func TestGatewaysFollowWorkersPrefixCaches(t *testing.T) {
	s := natsServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	got, done := make(chan prefix.Event, 1000), make(chan struct{})
	reader := natsUser(t, s, "gateway")
	go func() {
		defer close(done)
		kvevents.Follow(ctx, reader, zerolog.Nop(), func() {}, func(_ string, e prefix.Event) { got <- e })
	}()
	worker := natsUser(t, s, "compute")
	publish := kvevents.Publisher(worker, "n1", zerolog.Nop())
	number := uint64(0)
	require.Eventually(t, func() bool {
		number++
		publish(prefix.Event{Number: number})
		return len(got) > 0
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, worker.LastError())
	cancel()
	<-done
}

// TestAClientReachesGatewaysOnly tries what deleted the journal and wrote into another caller's
// log: by itself, and by the reply subject of everything that a gateway answers.
func TestAClientReachesGatewaysOnly(t *testing.T) {
	s := natsServer(t)
	e := apitest.New(apitest.Say("x"))
	gateway(t, s, e)
	node, client := natsUser(t, s, "node"), natsUser(t, s, "client")
	js, err := jetstream.New(node)
	require.NoError(t, err)
	before, err := js.Stream(t.Context(), log.Stream)
	require.NoError(t, err)
	for _, subject := range []string{"$JS.API.STREAM.DELETE.MILLRACE_JOURNAL", "$JS.API.STREAM.PURGE.MILLRACE_JOURNAL",
		"millrace.journal.cmpl-my-2",
		"millrace.journal.t.cmpl-my-2", "millrace.node.n1.generate", "millrace.registry.v2.beat", "millrace.limits.used"} {
		require.NoError(t, client.Publish(subject, []byte(`{"node":"x"}`)))
		for _, name := range []string{"chat.completions", "models", "gateways", "streams.cancel", "cancel.a.b"} {
			require.NoError(t, client.PublishRequest("millrace.v1."+name, subject, []byte("junk")))
		}
		require.NoError(t, client.PublishRequest("$SRV.INFO", subject, nil))
	}
	_, err = client.Request("millrace.v1.models", nil, 20*time.Second) // earlier messages are processed
	require.NoError(t, err)
	after, err := js.Stream(t.Context(), log.Stream)
	require.NoError(t, err)
	require.Equal(t, before.CachedInfo().Created, after.CachedInfo().Created)
	require.Zero(t, after.CachedInfo().State.LastSeq, "nothing was ever written")
	_, err = client.Request("$JS.API.INFO", nil, 100*time.Millisecond)
	require.Error(t, err)
}

func TestAClientAsksAndIsAnsweredInItsOwnInbox(t *testing.T) {
	s := natsServer(t)
	gateway(t, s, apitest.New(apitest.Say("answer")))
	client := natsUser(t, s, "client")
	m, err := client.Request("millrace.v1.completions", []byte(`{"prompt":"x"}`), 20*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), `"text":"answer"`)
	_, err = client.Request("$SRV.PING.millrace", nil, 20*time.Second)
	require.NoError(t, err)
}

// TestThePasswordsVariablesAreNoSettings: a process that the shell starts with them starts.
func TestThePasswordsVariablesAreNoSettings(t *testing.T) {
	variables := regexp.MustCompile(`password: \$(\w+)`).FindAllStringSubmatch(deploy.NATS, -1)
	require.Len(t, variables, len(natsUsers))
	cmd := &cobra.Command{Use: "millrace"}
	for _, v := range variables {
		require.NoError(t, config.Bind(cmd, []string{v[1] + "=secret"}), v[1])
		require.ErrorIs(t, config.Bind(cmd, []string{v[1] + "S=secret"}), config.ErrUsage, v[1])
	}
}

func TestAWrongPasswordIsRefused(t *testing.T) {
	s := natsServer(t)
	for _, user := range append(natsUsers, "") {
		_, err := nats.Connect(s.ClientURL(), nats.UserInfo(user, "wrong"))
		require.ErrorIs(t, err, nats.ErrAuthorization, user)
	}
}
