package client_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/durable/log"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestBodiesAboveAMessagesSizeTravelInParts sends a prompt of 200,000 tokens and receives an
// answer of the same size.
func TestBodiesAboveAMessagesSizeTravelInParts(t *testing.T) {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Text: r.Messages[0].Content, Tokens: []int32{1}})
		s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 200_000}})
	})
	url := jetStream(t).ClientURL()
	newGateway(t, url, e)
	c, err := client.DialNATS(url)
	require.NoError(t, err)
	defer c.Close()
	long := strings.Repeat("many words and ", 200_000) // 3 MB
	ask := client.ChatRequest{Messages: []client.Message{{Role: "user", Content: long}}}
	a, err := c.Chat(t.Context(), ask)
	require.NoError(t, err)
	require.Equal(t, long, a.Choices[0].Content())
	const letters = 400_000 // an id for each makes the answer larger than a message; more letters are slow under the race detector
	ids, err := c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: long[:letters]})
	require.NoError(t, err)
	require.Len(t, ids, letters+1)
	ask.Messages[0].Content = long[:1_200_000]           // still more than a message
	for _, err := range c.ChatStream(t.Context(), ask) { // a chunk cannot be divided
		if err != nil {
			require.ErrorContains(t, err, "of a NATS message")
		}
	}
	nc, err := nats.Connect(url)
	require.NoError(t, err)
	defer nc.Close()
	m := nats.NewMsg("millrace.v1.chat.completions")
	m.Header.Set(natsapi.HeaderBody, "unknown")
	m, err = nc.RequestMsg(m, 10*time.Second)
	require.NoError(t, err)
	require.Contains(t, string(m.Data), `"code":"body_not_found"`)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		require.Equal(t, log.Stream, name, "nothing else is kept in JetStream")
	}
}

// TestABodysGatewayMayDieWhileItsPartsCome kills the gateway of an upload. The client sends the parts to
// another gateway, for streams and for answers in one piece.
func TestABodysGatewayMayDieWhileItsPartsCome(t *testing.T) {
	t.Parallel() // it waits most of its time
	for name, ask := range map[string]func(client.Client, string) (string, error){
		"stream": func(c client.Client, text string) (string, error) {
			a, err := c.Complete(t.Context(), client.CompletionRequest{Prompt: text})
			if err != nil {
				return "", err
			}
			return a.Choices[0].Text, nil
		},
		"whole": func(c client.Client, text string) (string, error) {
			ids, err := c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: text})
			return fmt.Sprint(len(ids)), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := apitest.New(func(r *api.Request, s *apitest.Stream) { apitest.Say(fmt.Sprint(len(r.Prompt)+1))(r, s) })
			url := natstest.Start(t, &server.Options{JetStream: true, MaxPayload: 64 << 10}).ClientURL()
			gateways := []gateway{newGateway(t, url, e)}
			watch, err := nats.Connect(url)
			require.NoError(t, err)
			defer watch.Close()
			m, err := watch.Request("millrace.v1.gateways", nil, 10*time.Second)
			require.NoError(t, err)
			gateways = append(gateways, newGateway(t, url, e))
			var parts atomic.Int32
			_, err = watch.Subscribe("millrace.v1.at.*.bodies.part", func(part *nats.Msg) {
				if parts.Add(1) != 3 {
					return
				}
				if strings.Contains(string(m.Data), strings.TrimSuffix(part.Subject, "bodies.part")) {
					gateways[0].kill()
				} else {
					gateways[1].kill()
				}
			})
			require.NoError(t, err)
			require.NoError(t, watch.Flush())
			c, err := client.DialNATS(url)
			require.NoError(t, err)
			defer c.Close()
			_, err = c.Models(t.Context())
			require.NoError(t, err)
			text := strings.Repeat("x", 300_000)
			got, err := ask(c, text)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint(len(text)+1), got)
			require.Greater(t, parts.Load(), int32(3+4), "it was sent again")
		})
	}
}

// TestALargeBodyIsWaitedForLonger expects one request, since another one makes a busy server busier.
func TestALargeBodyIsWaitedForLonger(t *testing.T) {
	t.Parallel() // it waits most of its time
	nc := natstest.Connect(t, natstest.Start(t, &server.Options{MaxPayload: 8 << 20}))
	var requests atomic.Int32
	_, err := nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		requests.Add(1)
		out := message(1, "stop")
		out.Subject = m.Reply
		time.AfterFunc(2*time.Second, func() { nc.PublishMsg(out) })
	})
	require.NoError(t, err)
	c, err := client.NewNATS(nc)
	require.NoError(t, err)
	long := client.ChatRequest{Messages: []client.Message{{Role: "user", Content: strings.Repeat("word ", 500_000)}}}
	text, _, _ := gather(t, c.ChatStream(t.Context(), long))
	require.Equal(t, "1", text)
	require.EqualValues(t, 1, requests.Load())
}

// TestAServerMayDieWithARequest has a server that receives a request and never answers it.
func TestAServerMayDieWithARequest(t *testing.T) {
	t.Parallel() // it waits most of its time
	nc := natstest.Connect(t, natstest.Start(t, &server.Options{}))
	var requests atomic.Int32
	_, err := nc.Subscribe("millrace.v1.tokenize", func(m *nats.Msg) {
		if requests.Add(1) > 1 {
			m.Respond([]byte(`{"tokens":[7]}`)) //nolint:errcheck // the client would ask again
		}
	})
	require.NoError(t, err)
	c, err := client.NewNATS(nc)
	require.NoError(t, err)
	ids, err := c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: "x"})
	require.NoError(t, err)
	require.Equal(t, []int32{7}, ids)
	require.EqualValues(t, 2, requests.Load())
}
