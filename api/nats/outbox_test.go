package natsapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestNothingButAnInboxIsPublishedTo tries every kind of answer with reply subjects that would
// be writes in the service's name. The server has no permissions: the code alone refuses.
func TestNothingButAnInboxIsPublishedTo(t *testing.T) {
	release := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		<-release
		apitest.Say("x")(r, s)
	})
	srv := natstest.Start(t, &server.Options{JetStream: true})
	s, err := natsapi.Start(natstest.Connect(t, srv), e, natsapi.Options{MaxBody: 1 << 10})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Stop(t.Context())); e.WaitIdle() }()
	nc := natstest.Connect(t, srv)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MILLRACE_JOURNAL", Subjects: []string{"millrace.journal.>"}})
	require.NoError(t, err)
	var taken []*nats.Subscription
	for _, subject := range []string{"millrace.journal.>", "millrace.node.>", "$JS.API.STREAM.DELETE.>", "_INBOX", "other.>"} {
		sub, err := nc.SubscribeSync(subject)
		require.NoError(t, err)
		taken = append(taken, sub)
	}
	stream := open(t, nc, "chat.completions", hello+`,"stream":true}`)
	cancel := next(t, stream).Header.Get(natsapi.HeaderCancel)

	for _, reply := range []string{"$JS.API.STREAM.DELETE.MILLRACE_JOURNAL", "millrace.journal.cmpl-my-2", "millrace.node.n1.generate",
		"_INBOX", "_INBOX.", "_INBOX..x", "_INBOX.x.", "_INBOXES.x", "other.subject", "millrace.v1.chat.completions"} {
		ping := nats.NewMsg(cancel)
		ping.Reply = reply
		ping.Header.Set(natsapi.HeaderPing, "1")
		require.NoError(t, nc.PublishMsg(ping))
		require.NoError(t, nc.PublishRequest(cancel+"x", reply, nil))
		for subject, body := range map[string]string{
			"millrace.v1.chat.completions": hello + `}`, "millrace.v1.completions": `junk`, "millrace.v1.models": ``,
			"millrace.v1.tokenize": `{"prompt":"A"}`, "millrace.v1.gateways": ``, "millrace.v1.embeddings": strings.Repeat("x", 2<<10),
			"$SRV.PING": ``, "$SRV.INFO.millrace": ``, "$SRV.STATS": ``,
		} {
			require.NoError(t, nc.PublishRequest(subject, reply, []byte(body)))
		}
	}
	close(release)
	for next(t, stream).Header.Get(natsapi.HeaderEnd) == "" {
	}
	request(t, nc, "models", ``) // earlier requests have been handled
	require.NoError(t, nc.Flush())
	for _, sub := range taken {
		n, _, err := sub.Pending()
		require.NoError(t, err)
		require.Zero(t, n, sub.Subject)
	}
	_, err = js.Stream(t.Context(), "MILLRACE_JOURNAL")
	require.NoError(t, err, "the journal is there")
	require.Len(t, e.Requests(), 1, "what cannot be answered is not computed")
}

func TestACancelSubjectCannotBeGuessed(t *testing.T) {
	release := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		<-release
		apitest.Say("whole")(r, s)
	})
	_, nc := start(t, e, natsapi.Options{})
	seen := map[string]bool{}
	var subs []*nats.Subscription
	for range 2 {
		sub := open(t, nc, "responses", `{"input":"hi","stream":true}`) // its first message has the id
		m := next(t, sub)
		cancel := m.Header.Get(natsapi.HeaderCancel)
		require.False(t, seen[cancel])
		seen[cancel] = true
		_, id, _ := strings.Cut(string(m.Data), `"resp_`)
		id, _, _ = strings.Cut(id, `"`)
		require.NotEmpty(t, id)
		at := strings.LastIndex(cancel, ".") + 1
		require.GreaterOrEqual(t, len(cancel[at:]), 26, "128 bits")
		require.NotContains(t, cancel, id)
		for _, tried := range []string{id, "resp_" + id, "chatcmpl-" + id} {
			for i := range 3 {
				require.NoError(t, nc.Publish(fmt.Sprintf("%s%s-%d", cancel[:at], tried, i), nil))
			}
			require.NoError(t, nc.Publish(cancel[:at]+tried, nil))
		}
		subs = append(subs, sub)
	}
	request(t, nc, "models", ``)
	close(release)
	for _, sub := range subs {
		m := next(t, sub)
		for m.Header.Get(natsapi.HeaderEnd) == "" {
			m = next(t, sub)
		}
		require.Equal(t, "stop", m.Header.Get(natsapi.HeaderEnd))
	}
}

// TestMicroFindsTheService compares the answers to `nats micro` with those of the package micro.
func TestMicroFindsTheService(t *testing.T) {
	_, nc := start(t, apitest.New(nil), natsapi.Options{})
	request(t, nc, "models", ``)
	request(t, nc, "chat.completions", `junk`)
	for _, subject := range []string{"$SRV.PING", "$SRV.PING.millrace"} {
		m, err := nc.Request(subject, nil, wait)
		require.NoError(t, err)
		require.Contains(t, string(m.Data), `"type":"io.nats.micro.v1.ping_response"`)
		require.Contains(t, string(m.Data), `"name":"millrace"`)
	}
	require.Eventually(t, func() bool { // an answer is counted when it has left
		m, err := nc.Request("$SRV.STATS.millrace", nil, wait)
		require.NoError(t, err)
		text := string(m.Data)
		return strings.Contains(text, `"subject":"millrace.v1.models","queue_group":"q","num_requests":1,"num_errors":0`) &&
			strings.Contains(text, `"subject":"millrace.v1.chat.completions","queue_group":"q","num_requests":1,"num_errors":1`)
	}, wait, wait/1000)
}
