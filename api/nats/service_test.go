package natsapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/e2e/natstest"
)

const (
	hello = `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}]`
	wait  = 10 * time.Second // for a message that must come
)

// start serves an engine and returns a client's connection, one of its own.
func start(t *testing.T, e *apitest.Engine, opts natsapi.Options) (*natsapi.Service, *nats.Conn) {
	t.Helper()
	return startWith(t, e, e, opts)
}

// startWith serves front, a decorator of e.
func startWith(t *testing.T, e *apitest.Engine, front api.Engine, opts natsapi.Options) (*natsapi.Service, *nats.Conn) {
	t.Helper()
	srv := natstest.Start(t, &server.Options{MaxPayload: 64 << 10})
	s, err := natsapi.Start(natstest.Connect(t, srv), front, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, s.Stop(ctx))
		e.WaitIdle() // every stream was closed
	})
	return s, natstest.Connect(t, srv)
}

func request(t *testing.T, nc *nats.Conn, subject, body string) *nats.Msg {
	t.Helper()
	m, err := nc.Request("millrace.v1."+subject, []byte(body), wait)
	require.NoError(t, err)
	return m
}

// open sends a request and returns the subscription for its answer.
func open(t *testing.T, nc *nats.Conn, subject, body string) *nats.Subscription {
	t.Helper()
	inbox := nats.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest("millrace.v1."+subject, inbox, []byte(body)))
	return sub
}

func next(t *testing.T, sub *nats.Subscription) *nats.Msg {
	t.Helper()
	m, err := sub.NextMsg(wait)
	require.NoError(t, err)
	return m
}

// all reads a stream to its end and checks the numbering. It leaves out pings.
func all(t *testing.T, sub *nats.Subscription) []*nats.Msg {
	t.Helper()
	var messages []*nats.Msg
	for {
		m := next(t, sub)
		if m.Header.Get(natsapi.HeaderPing) != "" {
			continue
		}
		messages = append(messages, m)
		require.Equal(t, strconv.Itoa(len(messages)), m.Header.Get(natsapi.HeaderSeq))
		if m.Header.Get(natsapi.HeaderEnd) != "" {
			return messages
		}
	}
}

func text(t *testing.T, messages []*nats.Msg) string {
	t.Helper()
	var b strings.Builder
	for _, m := range messages {
		var c struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		require.NoError(t, json.Unmarshal(m.Data, &c))
		for _, ch := range c.Choices {
			b.WriteString(ch.Delta.Content)
		}
	}
	return b.String()
}

func requireError(t *testing.T, m *nats.Msg, status int, code string) {
	t.Helper()
	var e openai.ErrorBody
	require.NoError(t, json.Unmarshal(m.Data, &e), "%s", m.Data)
	require.Equal(t, code, *e.Error.Code)
	require.Equal(t, strconv.Itoa(status), m.Header.Get(micro.ErrorCodeHeader))
	require.Equal(t, e.Error.Message, m.Header.Get(micro.ErrorHeader))
}

func TestOneRequestOneReply(t *testing.T) {
	_, nc := start(t, apitest.New(apitest.Say("Hel", "lo")), natsapi.Options{})
	var a openai.ChatCompletion
	require.NoError(t, json.Unmarshal(request(t, nc, "chat.completions", hello+`}`).Data, &a))
	require.Equal(t, "Hello", *a.Choices[0].Message.Content)
	var c openai.TextCompletion
	require.NoError(t, json.Unmarshal(request(t, nc, "completions", `{"prompt":["a","b"]}`).Data, &c))
	require.Len(t, c.Choices, 2)
	require.JSONEq(t, `{"count":1,"max_model_len":512,"tokens":[65]}`,
		string(request(t, nc, "tokenize", `{"prompt":"A","add_special_tokens":false}`).Data))
	require.JSONEq(t, `{"prompt":"A"}`, string(request(t, nc, "detokenize", `{"tokens":[65]}`).Data))
	require.Contains(t, string(request(t, nc, "models", ``).Data), `"id":"tiny-chat"`)
}

func TestVectorsAndScoresAreOneReply(t *testing.T) {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Extra: &api.Extra{Vector: []float32{float32(len(r.Prompt)), 0}}, Finish: api.FinishStop, Done: true,
			Usage: &api.Usage{PromptTokens: 1}})
	})
	e.Served[0].Embedding = api.Embedding{Width: 2, Pooling: api.PoolLast}
	_, nc := start(t, e, natsapi.Options{})
	for subject, call := range map[string][2]string{
		"embeddings":   {`{"input":["a","bb"]}`, `"embedding":[2,0]`},
		"rerank":       {`{"query":"a","documents":["bb"]}`, `"relevance_score":1`},
		"score":        {`{"text_1":"a","text_2":"bb"}`, `"score":1`},
		"ollama.embed": {`{"input":"aa"}`, `"embeddings":[[1,0]]`},
	} {
		m := request(t, nc, subject, call[0])
		require.Contains(t, string(m.Data), call[1], subject)
		require.Equal(t, "400", request(t, nc, subject, `{}`).Header.Get(micro.ErrorCodeHeader), subject)
	}
}

func TestAStreamIsNumberedAndEndsWithItsReason(t *testing.T) {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		if r.MaxTokens != 1 {
			apitest.Say("Hel", "", "lo")(r, s)
			return
		}
		s.Send(api.Event{Text: "H", Finish: api.FinishLength, Done: true, Usage: &api.Usage{}})
	})
	_, nc := start(t, e, natsapi.Options{})
	sub := open(t, nc, "chat.completions", hello+`,"stream":true,"stream_options":{"include_usage":true}}`)
	require.NotEmpty(t, next(t, sub).Header.Get(natsapi.HeaderCancel))
	messages := all(t, sub)
	require.Len(t, messages, 5) // role, Hel, lo, finish, usage
	require.Equal(t, "Hello", text(t, messages))
	require.Equal(t, "stop", messages[4].Header.Get(natsapi.HeaderEnd))
	require.Contains(t, string(messages[4].Data), `"choices":[],"usage":{"prompt_tokens":7`)
	require.NotEmpty(t, messages[0].Header.Get(natsapi.HeaderCancel), "also for a client that skips pings")
	require.Empty(t, messages[1].Header.Get(natsapi.HeaderCancel))

	messages = all(t, open(t, nc, "chat.completions", hello+`,"stream":true,"max_tokens":1}`))
	require.Equal(t, "length", messages[len(messages)-1].Header.Get(natsapi.HeaderEnd))
	messages = all(t, open(t, nc, "completions", `{"prompt":"x","stream":true}`))
	require.Contains(t, string(messages[0].Data), `"text":""`)
}

func TestEveryWayToCancelEndsTheRequest(t *testing.T) {
	for name, cancel := range map[string]func(*testing.T, *nats.Conn, *nats.Subscription, *nats.Msg){
		"to the cancel subject": func(t *testing.T, nc *nats.Conn, _ *nats.Subscription, first *nats.Msg) {
			require.NoError(t, nc.Publish(first.Header.Get(natsapi.HeaderCancel), nil))
		},
		"an answer to a message": func(t *testing.T, _ *nats.Conn, _ *nats.Subscription, first *nats.Msg) {
			require.NoError(t, first.Respond(nil))
		},
		"no interest any more": func(t *testing.T, _ *nats.Conn, sub *nats.Subscription, _ *nats.Msg) {
			require.NoError(t, sub.Unsubscribe())
		},
	} {
		t.Run(name, func(t *testing.T) {
			cancelled := make(chan struct{})
			e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
				<-s.Closed()
				close(cancelled)
			})
			_, nc := start(t, e, natsapi.Options{PingAfter: 5 * time.Millisecond})
			sub := open(t, nc, "chat.completions", hello+`,"stream":true}`)
			cancel(t, nc, sub, next(t, sub))
			<-cancelled
			if sub.IsValid() {
				for {
					m := next(t, sub)
					if m.Header.Get(natsapi.HeaderPing) == "" {
						require.Equal(t, "cancelled", m.Header.Get(natsapi.HeaderEnd))
						requireError(t, m, 503, "cancelled")
						break
					}
				}
			}
		})
	}
}

func TestASilentStreamIsPingedOutsideTheNumbering(t *testing.T) {
	pinged := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		<-pinged
		apitest.Say("late")(r, s)
	})
	_, nc := start(t, e, natsapi.Options{PingAfter: 5 * time.Millisecond})
	sub := open(t, nc, "chat.completions", hello+`,"stream":true}`)
	m := next(t, sub)
	require.Equal(t, "1", m.Header.Get(natsapi.HeaderPing))
	require.Empty(t, m.Header.Get(natsapi.HeaderSeq))
	close(pinged)
	for m.Header.Get(natsapi.HeaderPing) != "" {
		m = next(t, sub)
	}
	require.Equal(t, "1", m.Header.Get(natsapi.HeaderSeq))
}

func TestMessagesAnnounceAnEviction(t *testing.T) {
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Text: "a", Tokens: []int32{1}, Pin: &api.Pin{Numerics: "0123456789abcdef0123-streaming-4-1020"}})
		s.Send(api.Event{Finish: api.FinishStop, Done: true})
	})
	_, nc := start(t, e, natsapi.Options{})
	whole, err := nc.Request("millrace.v1.chat.completions", []byte(hello+`}`), wait)
	require.NoError(t, err)
	require.Equal(t, "streaming-4-1020", whole.Header.Get(natsapi.HeaderKV))
	sub := open(t, nc, "chat.completions", hello+`,"stream":true}`)
	require.Empty(t, next(t, sub).Header.Get(natsapi.HeaderKV), "no worker is known yet")
	for _, m := range all(t, sub) {
		require.Equal(t, "streaming-4-1020", m.Header.Get(natsapi.HeaderKV))
		require.Contains(t, string(m.Data), `"system_fingerprint":"fp_0123456789abcdef-streaming-4-1020"`)
	}
}

func TestTheFirstMessageNamesWhatWasIgnored(t *testing.T) {
	_, nc := start(t, apitest.New(apitest.Say("Hel", "lo")), natsapi.Options{})
	const offered = hello + `,"tools":[{"type":"web_search"}]`
	require.Equal(t, "tools[0] (web_search)", request(t, nc, "chat.completions", offered+`}`).Header.Get(natsapi.HeaderIgnored))
	require.Empty(t, request(t, nc, "chat.completions", hello+`}`).Header.Get(natsapi.HeaderIgnored))
	sub := open(t, nc, "chat.completions", offered+`,"stream":true}`)
	require.Equal(t, "tools[0] (web_search)", next(t, sub).Header.Get(natsapi.HeaderIgnored))
	for i, m := range all(t, sub) {
		require.Equal(t, i == 0, m.Header.Get(natsapi.HeaderIgnored) != "", "pings and the first chunk")
	}
}

func TestErrorsHaveOpenAIsShapeAndMicrosHeaders(t *testing.T) {
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Text: "part"})
		s.Send(api.Event{Finish: api.FinishError, Err: &api.Error{Code: api.CodeInternal, Message: "device lost"}, Done: true})
	})
	e.Refuse = func(r *api.Request) error {
		if r.N == 2 {
			return &api.Error{Code: api.CodeOverloaded, Message: "full", RetryAfter: 3 * time.Second}
		}
		return nil
	}
	_, nc := start(t, e, natsapi.Options{MaxBody: 1000})
	for body, want := range map[string]struct {
		status int
		code   string
	}{
		``: {400, "invalid_value"}, `junk`: {400, "invalid_value"}, "\xff": {400, "invalid_value"},
		hello + `,"temperature":NaN}`: {400, "invalid_value"}, `{"messages":[]}`: {400, "invalid_value"},
		hello + `,"max_tokens":-1}`:                            {400, "invalid_value"},
		`{"model":"x",` + hello[21:] + `}`:                     {404, "model_not_found"},
		hello + `,"n":2}`:                                      {429, "rate_limit_exceeded"},
		hello + `,"user":"` + strings.Repeat("x", 1000) + `"}`: {413, "request_too_large"},
		hello + `}`: {500, "internal_error"},
	} {
		requireError(t, request(t, nc, "chat.completions", body), want.status, want.code)
	}
	require.Equal(t, "3", request(t, nc, "chat.completions", hello+`,"n":2}`).Header.Get(natsapi.HeaderRetryAfter))

	messages := all(t, open(t, nc, "chat.completions", hello+`,"stream":true}`))
	require.Equal(t, "part", text(t, messages[:2]))
	last := messages[len(messages)-1]
	require.Equal(t, "error", last.Header.Get(natsapi.HeaderEnd))
	requireError(t, last, 500, "internal_error")
}

func TestAnAnswerAboveThePayloadLimitIsAClearError(t *testing.T) {
	_, nc := start(t, apitest.New(apitest.Say(strings.Repeat("x", 65<<10))), natsapi.Options{})
	requireError(t, request(t, nc, "chat.completions", hello+`}`), 413, "answer_too_large")
}

func TestRequestsBeyondTheSlotsAreRefusedAndTheDispatcherNeverBlocks(t *testing.T) {
	release := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		<-release
		apitest.Say("x")(r, s)
	})
	_, nc := start(t, e, natsapi.Options{MaxRequests: 3})
	subs := make([]*nats.Subscription, 4)
	for i := range subs {
		subs[i] = open(t, nc, "chat.completions", hello+`}`)
	}
	m := next(t, subs[3])
	requireError(t, m, 429, "rate_limit_exceeded")
	require.Equal(t, "1", m.Header.Get(natsapi.HeaderRetryAfter))
	close(release)
	for _, sub := range subs[:3] {
		require.Empty(t, next(t, sub).Header.Get(micro.ErrorCodeHeader))
	}
}

func TestStopLetsAnswersFinishAndThenCutsThem(t *testing.T) {
	release := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		if r.N == 2 {
			<-s.Closed()
			return
		}
		<-release
		apitest.Say("x")(r, s)
	})
	s, nc := start(t, e, natsapi.Options{})
	finishes := open(t, nc, "chat.completions", hello+`,"stream":true}`)
	cut := open(t, nc, "chat.completions", hello+`,"stream":true,"n":2}`)
	next(t, finishes)
	next(t, cut)
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan error)
	go func() { stopped <- s.Stop(ctx) }()
	close(release)
	for next(t, finishes).Header.Get(natsapi.HeaderEnd) != "stop" {
	}
	cancel()
	require.NoError(t, <-stopped)
	m := next(t, cut) // the second choice's role
	for m.Header.Get(natsapi.HeaderEnd) == "" {
		m = next(t, cut)
	}
	require.Equal(t, "cancelled", m.Header.Get(natsapi.HeaderEnd))
	require.Contains(t, string(m.Data), "the server is stopping")
	_, err := nc.Request("millrace.v1.models", nil, wait)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}

func TestTheServiceIsListedByMicro(t *testing.T) {
	_, nc := start(t, apitest.New(nil), natsapi.Options{Version: "1.2.3"})
	m, err := nc.Request("$SRV.INFO.millrace", nil, wait)
	require.NoError(t, err)
	var info micro.Info
	require.NoError(t, json.Unmarshal(m.Data, &info))
	require.Equal(t, "1.2.3", info.Version)
	subjects := map[string]bool{}
	for _, e := range info.Endpoints {
		subjects[e.Subject] = true
	}
	for _, subject := range []string{"chat.completions", "completions", "tokenize", "detokenize", "models", "embeddings"} {
		require.True(t, subjects["millrace.v1."+subject], subject)
	}
}

func TestEndpointsSayWhatTheirBodiesAre(t *testing.T) {
	for size, fits := range map[int]bool{100: true, 70 << 10: false} { // a message has 64 KiB
		schema := `"` + strings.Repeat("s", size) + `"`
		opts := natsapi.Options{Metadata: map[string]map[string]string{"/v1/embeddings": {"request": schema}}}
		block := make(chan struct{})
		e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
			<-block
			s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
		})
		_, nc := start(t, e, opts)
		answer := open(t, nc, "completions", `{"prompt":"a"}`)
		m, err := nc.Request("$SRV.INFO.millrace", nil, wait)
		require.NoError(t, err)
		var info micro.Info
		require.NoError(t, json.Unmarshal(m.Data, &info))
		for _, e := range info.Endpoints {
			if e.Name == "embeddings" {
				require.Equal(t, fits, e.Metadata["request"] == schema, "%d bytes", size)
			}
		}
		require.Eventually(t, func() bool { return strings.Contains(endpointData(t, nc, "completions"), `"running":1`) }, wait,
			time.Millisecond)
		close(block)
		next(t, answer)
		require.Eventually(t, func() bool { return strings.Contains(endpointData(t, nc, "completions"), `"running":0`) }, wait,
			time.Millisecond)
	}
}

// endpointData is the data of an endpoint in $SRV.STATS.
func endpointData(t *testing.T, nc *nats.Conn, name string) string {
	t.Helper()
	m, err := nc.Request("$SRV.STATS.millrace", nil, wait)
	require.NoError(t, err)
	var stats micro.Stats
	require.NoError(t, json.Unmarshal(m.Data, &stats))
	for _, e := range stats.Endpoints {
		if e.Name == name {
			return string(e.Data)
		}
	}
	return ""
}

// TestEachGatewayHasSubjectsOfItsOwn finds the running gateways and calls each on its own subjects.
func TestEachGatewayHasSubjectsOfItsOwn(t *testing.T) {
	a, b := apitest.New(apitest.Say("a")), apitest.New(apitest.Say("b"))
	_, nc := start(t, a, natsapi.Options{})
	other, err := natsapi.Start(nc, b, natsapi.Options{})
	require.NoError(t, err)
	inbox := nats.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	require.NoError(t, err)
	require.NoError(t, nc.PublishRequest("millrace.v1.gateways", inbox, nil))
	said := ""
	for range 2 {
		m, err := answers.NextMsg(wait)
		require.NoError(t, err)
		var at struct{ Subjects string }
		require.NoError(t, json.Unmarshal(m.Data, &at))
		before := len(a.Requests())
		for range 3 { // a queue group would spread them
			m := request(t, nc, strings.TrimPrefix(at.Subjects, "millrace.v1.")+"completions", `{"prompt":"x"}`)
			require.Contains(t, string(m.Data), `"text":`)
		}
		said += fmt.Sprint(len(a.Requests())-before, " ")
	}
	require.Contains(t, []string{"3 0 ", "0 3 "}, said)
	require.NoError(t, other.Leave())
	require.NoError(t, nc.PublishRequest("millrace.v1.gateways", inbox, nil))
	_, err = answers.NextMsg(wait)
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	pending, _, err := answers.Pending()
	require.NoError(t, err)
	require.Zero(t, pending, "one that stops is not there any more")
	require.NoError(t, other.Stop(t.Context()))
	b.WaitIdle()
}
