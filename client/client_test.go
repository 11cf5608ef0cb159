package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	natsapi "github.com/millrace/millrace/api/nats"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/natstest"
)

var hi = client.ChatRequest{Messages: []client.Message{{Role: "user", Content: "hi"}}}

func natsConn(t *testing.T) *nats.Conn {
	t.Helper()
	return natstest.Connect(t, natstest.Start(t, nil))
}

// onBoth runs a test over each transport, with the real servers.
func onBoth(t *testing.T, e func() *apitest.Engine, test func(*testing.T, client.Client, *apitest.Engine)) {
	t.Run("http", func(t *testing.T) {
		e := e()
		h, err := httpapi.New(e, httpapi.Options{})
		require.NoError(t, err)
		srv := httptest.NewServer(h)
		defer e.WaitIdle()
		defer srv.Close()
		c, err := client.NewHTTP(srv.URL + "/")
		require.NoError(t, err)
		defer c.Close()
		test(t, c, e)
	})
	t.Run("nats", func(t *testing.T) {
		e := e()
		nc := natsConn(t)
		s, err := natsapi.Start(nc, e, natsapi.Options{PingAfter: time.Hour})
		require.NoError(t, err)
		defer e.WaitIdle()
		defer func() { require.NoError(t, s.Stop(context.Background())) }()
		c, err := client.DialNATS(nc.ConnectedUrl())
		require.NoError(t, err)
		defer c.Close()
		test(t, c, e)
	})
}

func gather(t *testing.T, stream func(func(client.Chunk, error) bool)) (text, finish string, usage *client.Usage) {
	t.Helper()
	for chunk, err := range stream {
		require.NoError(t, err)
		for _, ch := range chunk.Choices {
			text += ch.Content()
			finish += ch.FinishReason
		}
		if chunk.Usage != nil {
			usage = chunk.Usage
		}
	}
	return text, finish, usage
}

func TestBothTransportsGiveTheSameAnswers(t *testing.T) {
	said := "Hé\u2028\"世界\"\n\x00 👩‍👩‍👧"
	parts := strings.SplitAfter(said, "")
	onBoth(t, func() *apitest.Engine { return apitest.New(apitest.Say(parts...)) }, func(t *testing.T, c client.Client, e *apitest.Engine) {
		ctx := t.Context()
		a, err := c.Chat(ctx, hi)
		require.NoError(t, err)
		require.Equal(t, said, a.Choices[0].Content())
		require.Equal(t, "stop", a.Choices[0].FinishReason)
		require.Equal(t, 7+len(parts), a.Usage.TotalTokens)

		text, finish, usage := gather(t, c.ChatStream(ctx, hi))
		require.Equal(t, said, text)
		require.Equal(t, "stop", finish)
		require.Equal(t, a.Usage, *usage)

		seed, zero, two := int64(7), 0.0, 2
		r := client.CompletionRequest{Prompts: []string{"a", "b"}, MaxTokens: 9, Logprobs: &two,
			Sampling: client.Sampling{Temperature: &zero, Seed: &seed, Stop: []string{"x"}}}
		a, err = c.Complete(ctx, r)
		require.NoError(t, err)
		require.Equal(t, said, a.Choices[1].Content())
		require.Contains(t, string(a.Choices[1].Logprobs), `"text_offset"`)
		text, _, _ = gather(t, c.CompleteStream(ctx, client.CompletionRequest{PromptTokens: []int32{4, 5}}))
		require.Equal(t, said, text)

		got := e.Requests()
		require.Equal(t, "b", got[3].Prompt)
		require.Equal(t, 9, got[3].MaxTokens)
		require.Zero(t, got[3].Sampling.Temperature)
		require.Equal(t, uint64(7), got[3].Sampling.Seed)
		require.Equal(t, []string{"x"}, got[3].Stop)
		require.Equal(t, []int32{4, 5}, got[4].PromptTokens)

		models, err := c.Models(ctx)
		require.NoError(t, err)
		require.Equal(t, []client.Model{{ID: "tiny-chat", Created: 1700000000, ContextLength: 512,
			Sampling: client.ModelSampling{RepetitionPenalty: 1}}}, models)
		ids, err := c.Tokenize(ctx, client.TokenizeRequest{Prompt: "é"})
		require.NoError(t, err)
		require.Equal(t, []int32{1, 195, 169}, ids)
		back, err := c.Detokenize(ctx, "", ids[1:])
		require.NoError(t, err)
		require.Equal(t, "é", back)
	})
}

func TestVectorsComeInTheOrderOfTheTexts(t *testing.T) {
	engine := func() *apitest.Engine {
		e := apitest.New(func(r *api.Request, s *apitest.Stream) {
			s.Send(api.Event{Extra: &api.Extra{Vector: []float32{float32(len(r.Prompt)), 0.5}}, Finish: api.FinishStop, Done: true,
				Usage: &api.Usage{PromptTokens: 1}})
		})
		e.Served[0].Embedding = api.Embedding{Width: 2, Pooling: api.PoolLast}
		return e
	}
	onBoth(t, engine, func(t *testing.T, c client.Client, _ *apitest.Engine) {
		vectors, err := c.Embed(t.Context(), client.EmbeddingRequest{Input: []string{"a", "bbb"}})
		require.NoError(t, err)
		require.Equal(t, [][]float32{{1, 0.5}, {3, 0.5}}, vectors)
		_, err = c.Embed(t.Context(), client.EmbeddingRequest{Input: []string{"a"}, Dimensions: 3})
		require.ErrorContains(t, err, "dimensions")
	})
}

func TestErrorsAreTyped(t *testing.T) {
	engine := func() *apitest.Engine {
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
		return e
	}
	onBoth(t, engine, func(t *testing.T, c client.Client, _ *apitest.Engine) {
		ctx := t.Context()
		full := &client.Error{Status: 429, Message: "full", Type: "rate_limit_error", Code: "rate_limit_exceeded",
			RetryAfter: 3 * time.Second}
		r := hi
		r.N = 2
		_, err := c.Chat(ctx, r)
		require.Equal(t, full, err)
		for _, err := range c.ChatStream(ctx, r) {
			require.Equal(t, full, err)
		}
		r = hi
		r.Model = "other"
		_, err = c.Chat(ctx, r)
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 404, e.Status)
		require.Equal(t, "model", e.Param)

		var text string
		for chunk, err := range c.ChatStream(ctx, hi) {
			if err != nil {
				require.ErrorAs(t, err, &e)
				require.Equal(t, "device lost", e.Message)
				require.Equal(t, "internal_error", e.Code)
				text += "!"
				continue
			}
			text += chunk.Choices[0].Content()
		}
		require.Equal(t, "part!", text, "text before the error is kept; the error comes once and last")
		_, err = c.Complete(ctx, client.CompletionRequest{})
		require.ErrorContains(t, err, "found 0")
	})
}

func TestLeavingTheLoopOrEndingTheContextCancels(t *testing.T) {
	for _, leave := range []string{"break", "context"} {
		closed := make(chan struct{}, 2)
		engine := func() *apitest.Engine {
			return apitest.New(func(_ *api.Request, s *apitest.Stream) {
				s.Send(api.Event{Text: "one"})
				<-s.Closed()
				closed <- struct{}{}
			})
		}
		onBoth(t, engine, func(t *testing.T, c client.Client, _ *apitest.Engine) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for chunk, err := range c.ChatStream(ctx, hi) {
				if err != nil {
					require.ErrorIs(t, err, context.Canceled)
					break
				}
				if chunk.Choices[0].Content() != "one" {
					continue
				}
				if leave == "break" {
					break
				}
				cancel()
			}
			<-closed
		})
	}
}

// answer replies to every request with the given messages.
func answer(t *testing.T, nc *nats.Conn, messages ...*nats.Msg) {
	t.Helper()
	_, err := nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		for _, out := range messages {
			out.Subject = m.Reply
			nc.PublishMsg(out)
		}
	})
	require.NoError(t, err)
}

func message(seq int, end string) *nats.Msg {
	h := nats.Header{"Millrace-Seq": {fmt.Sprint(seq)}}
	if end != "" {
		h["Millrace-End"] = []string{end}
	}
	return &nats.Msg{Header: h, Data: []byte(fmt.Sprintf(`{"choices":[{"delta":{"content":"%d"}}]}`, seq))}
}

func TestAMissingOrRepeatedNATSMessageIsAGap(t *testing.T) {
	for name, messages := range map[string][]*nats.Msg{
		"missing":    {message(1, ""), message(2, ""), message(4, "stop")},
		"repeated":   {message(1, ""), message(2, ""), message(2, ""), message(3, "stop")},
		"unnumbered": {message(1, ""), message(2, ""), {Data: []byte("{}")}},
	} {
		nc := natsConn(t)
		answer(t, nc, messages...)
		c, err := client.NewNATS(nc)
		require.NoError(t, err)
		text := ""
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			if err != nil {
				require.ErrorIs(t, err, client.ErrGap, name)
				text += "!"
				continue
			}
			text += chunk.Choices[0].Content()
		}
		require.Equal(t, "12!", text, name)
	}
}

func TestANATSStreamThatFallsSilentIsCut(t *testing.T) {
	nc := natsConn(t)
	answer(t, nc, message(1, ""))
	c, err := client.NewNATS(nc, client.WithSilence(20*time.Millisecond))
	require.NoError(t, err)
	var last error
	for _, err := range c.ChatStream(t.Context(), hi) {
		last = err
	}
	require.ErrorIs(t, last, client.ErrCut)
}

func TestWhatOneServerCannotServeNowAnotherDoes(t *testing.T) {
	e := apitest.New(apitest.Say("yes"))
	h, err := httpapi.New(e, httpapi.Options{})
	require.NoError(t, err)
	good := httptest.NewServer(h)
	defer e.WaitIdle()
	defer good.Close()
	requests := 0
	cut := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		http.Error(w, "the log cannot be reached", http.StatusServiceUnavailable)
	}))
	defer cut.Close()
	c, err := client.NewHTTP(cut.URL, client.WithServers(good.URL))
	require.NoError(t, err)
	defer c.Close()
	text, _, _ := gather(t, c.ChatStream(t.Context(), hi))
	require.Equal(t, "yes", text)
	_, err = c.Chat(t.Context(), hi)
	require.NoError(t, err)
	require.Equal(t, 1, requests, "requests to the server that does not answer")
	good.Close()
	_, err = c.Chat(t.Context(), hi)
	var said *client.Error
	require.ErrorAs(t, err, &said, "the error of a server that answered")
	require.Equal(t, http.StatusServiceUnavailable, said.Status)

	again, err := client.NewHTTP(cut.URL, client.WithServers(good.URL))
	require.NoError(t, err)
	defer again.Close()
	_, err = again.Chat(t.Context(), hi)
	require.ErrorAs(t, err, &said, "the error of the server that answered, not of the one that is gone")
}

// A server that received a resumable call and did not answer may run it, so the refusal of another one, which has just started, is not its
// end.
func TestARefusalAfterAServerThatDidNotAnswerIsTriedAgain(t *testing.T) {
	e := apitest.New(apitest.Say("yes"))
	h, err := httpapi.New(e, httpapi.Options{})
	require.NoError(t, err)
	silent := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer silent.Close()
	requests := 0
	young := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests <= 2 {
			http.Error(w, "no model is loaded yet", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	}))
	defer e.WaitIdle()
	defer young.Close()
	for _, plain := range []bool{false, true} {
		requests = 0
		options := []client.HTTPOption{client.WithServers(young.URL)}
		if plain {
			options = append(options, client.WithHTTPResume(0))
		}
		c, err := client.NewHTTP(silent.URL, options...)
		require.NoError(t, err)
		var text string
		var last error
		for chunk, err := range c.ChatStream(t.Context(), hi) {
			if last = err; err == nil && len(chunk.Choices) > 0 {
				text += chunk.Choices[0].Content()
			}
		}
		c.Close()
		if plain {
			require.ErrorIs(t, last, io.EOF, "it may have been begun, and would run twice")
			require.Zero(t, requests)
			continue
		}
		require.NoError(t, last)
		require.Equal(t, "yes", text)
		require.Equal(t, 3, requests)
	}
}

func TestANATSRequestThatNobodyHeardIsSentAgainAsTheSameOne(t *testing.T) {
	nc := natsConn(t)
	requests := make(chan string, 2)
	_, err := nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		requests <- string(m.Data)
		if len(requests) == 1 {
			return // like a server that died
		}
		out := message(1, "stop")
		out.Subject = m.Reply
		nc.PublishMsg(out)
	})
	require.NoError(t, err)
	c, err := client.NewNATS(nc, client.WithSilence(20*time.Millisecond))
	require.NoError(t, err)
	text, _, _ := gather(t, c.ChatStream(t.Context(), hi))
	require.Equal(t, "1", text)
	first, second := <-requests, <-requests
	require.Equal(t, first, second)
	require.Contains(t, first, `"request_id"`)
}

func TestANATSStreamWhoseBeginningIsLostIsAskedForAgain(t *testing.T) {
	nc := natsConn(t)
	requests := make(chan string, 2)
	_, err := nc.Subscribe("millrace.v1.chat.completions", func(m *nats.Msg) {
		requests <- string(m.Data)
		out := message(1, "stop")
		if len(requests) == 1 { // the NATS server died with the first messages
			out = message(3, "")
		}
		out.Subject = m.Reply
		nc.PublishMsg(out)
	})
	require.NoError(t, err)
	c, err := client.NewNATS(nc)
	require.NoError(t, err)
	text, _, _ := gather(t, c.ChatStream(t.Context(), hi))
	require.Equal(t, "1", text)
	first, second := <-requests, <-requests
	require.Equal(t, first, second, "the same request, whose id finds the answer")
}

func TestNobodyOnNATSIsUnavailable(t *testing.T) {
	c, err := client.NewNATS(natsConn(t))
	require.NoError(t, err)
	var e *client.Error
	_, err = c.Chat(t.Context(), hi)
	require.ErrorAs(t, err, &e)
	require.Equal(t, 503, e.Status)
	for _, err := range c.ChatStream(t.Context(), hi) {
		e = nil
		require.ErrorAs(t, err, &e)
		require.Equal(t, 503, e.Status)
	}
	big := hi
	big.Messages = []client.Message{{Role: "user", Content: strings.Repeat("x", 1<<20)}}
	_, err = c.Chat(t.Context(), big)
	require.ErrorIs(t, err, client.ErrTooLarge)
}

func TestAnHTTPStreamWithoutItsEndIsCutAndOneOutOfOrderIsAGap(t *testing.T) {
	for body, want := range map[string]error{
		"id: 1\ndata: {\"choices\":[]}\n\n":                                    client.ErrCut,
		"id: 2\ndata: {}\n\nid: 2\ndata: {}\n\ndata: [DONE]\n\n":               client.ErrGap,
		": ping\r\n\r\nid: 2\r\ndata: {}\r\n\r\nid: 3\r\ndata: [DONE]\r\n\r\n": nil,
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) }))
		c, err := client.NewHTTP(srv.URL)
		require.NoError(t, err)
		var last error
		for _, err := range c.ChatStream(t.Context(), hi) {
			last = err
		}
		require.ErrorIs(t, last, want)
		srv.Close()
	}
}

func TestOptionsAndAddressesAreChecked(t *testing.T) {
	for _, base := range []string{"", "localhost:8000", "ftp://x", "http://", "://"} {
		_, err := client.NewHTTP(base)
		require.Error(t, err, base)
	}
	_, err := client.NewHTTP("http://x", client.WithHTTPClient(&http.Client{Timeout: time.Second}))
	require.Error(t, err)
	_, err = client.NewNATS(nil, client.WithSilence(0))
	require.Error(t, err)
	_, err = client.NewNATS(natsConn(t), client.WithNATSOptions(nats.UserInfo("a", "b")))
	require.ErrorContains(t, err, "DialNATS")
	_, err = client.DialNATS("nats://me:hunter2@127.0.0.1:1")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2")
	for _, files := range [][3]string{{"missing.pem"}, {"client_test.go"}, {"", "missing.pem", "missing.pem"}, {"", "", "missing.pem"}} {
		_, err = client.NewHTTP("https://x", client.WithTLS(files[0], files[1], files[2]))
		require.Error(t, err, files)
	}
}

// TestWhatAStoppingServerDidNotTakeGoesToAnotherOne hides the refusal of a stopping server from the
// caller, for every form of request.
func TestWhatAStoppingServerDidNotTakeGoesToAnotherOne(t *testing.T) {
	for _, code := range []string{"moved", "stopping"} {
		refusal := []byte(fmt.Sprintf(`{"error":{"message":"this gateway is stopping","code":%q}}`, code))
		requests := 0
		nc := natsConn(t)
		_, err := nc.QueueSubscribe("millrace.v1.>", "q", func(m *nats.Msg) {
			if m.Subject == "millrace.v1.gateways" {
				m.Respond([]byte("{}")) // no particular gateway
				return
			}
			out := nats.NewMsg(m.Reply)
			switch requests++; {
			case requests <= 3: // a rolling restart
				out.Data, out.Header = refusal, nats.Header{"Nats-Service-Error-Code": {"503"}}
			case strings.Contains(string(m.Data), `"stream":true`):
				out = message(1, "stop")
				out.Subject = m.Reply
			default:
				out.Data = []byte(`{"tokens":[1,2]}`)
			}
			nc.PublishMsg(out)
		})
		require.NoError(t, err)
		overNATS, err := client.NewNATS(nc)
		require.NoError(t, err)
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			switch requests++; {
			case requests <= 3:
				w.WriteHeader(http.StatusServiceUnavailable)
				w.Write(refusal)
			case strings.Contains(string(body), `"stream":true`):
				io.WriteString(w, "id: 1\ndata: {\"choices\":[{\"delta\":{\"content\":\"1\"}}]}\n\ndata: [DONE]\n\n")
			default:
				io.WriteString(w, `{"tokens":[1,2]}`)
			}
		}))
		defer web.Close()
		overHTTP, err := client.NewHTTP(web.URL)
		require.NoError(t, err)
		for _, c := range []client.Client{overNATS, overHTTP} {
			requests = 0
			text, _, _ := gather(t, c.ChatStream(t.Context(), hi))
			require.Equal(t, "1", text)
			require.Equal(t, 4, requests)
			requests = 0
			ids, err := c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: "x"})
			require.NoError(t, err)
			require.Equal(t, []int32{1, 2}, ids)
			require.Equal(t, 4, requests)
		}
	}
}

// TestServersThatComeBackToNATSAreWaitedFor unsubscribes a server that has answered. A request waits
// until it subscribes again.
func TestServersThatComeBackToNATSAreWaitedFor(t *testing.T) {
	nc := natsConn(t)
	c, err := client.NewNATS(nc)
	require.NoError(t, err)
	listen := func() *nats.Subscription {
		sub, err := nc.Subscribe("millrace.v1.tokenize", func(m *nats.Msg) { m.Respond([]byte(`{"tokens":[1]}`)) })
		require.NoError(t, err)
		return sub
	}
	sub := listen()
	_, err = c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: "x"})
	require.NoError(t, err)
	require.NoError(t, sub.Unsubscribe())
	before := nc.Stats().OutMsgs
	answered := make(chan error)
	go func() {
		_, err := c.Tokenize(t.Context(), client.TokenizeRequest{Prompt: "x"})
		answered <- err
	}()
	require.Eventually(t, func() bool { return nc.Stats().OutMsgs >= before+2 }, 10*time.Second, time.Millisecond)
	listen()
	require.NoError(t, <-answered)
}

// TestARefusalInsideAStreamIsOne sends a ping before the refusal.
func TestARefusalInsideAStreamIsOne(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w,
			": ping\n\ndata: {\"error\":{\"message\":\"the queue is full\",\"type\":\"rate_limit_error\",\"code\":\"queue_full\"}}\n\n")
	}))
	defer srv.Close()
	c, err := client.NewHTTP(srv.URL)
	require.NoError(t, err)
	_, err = c.Chat(t.Context(), hi)
	var said *client.Error
	require.ErrorAs(t, err, &said)
	require.Equal(t, http.StatusTooManyRequests, said.Status)
	require.Equal(t, "queue_full", said.Code)
	require.Equal(t, time.Second, said.RetryAfter)
}

func TestToolCallsAndReasoningComeWholeAndInPieces(t *testing.T) {
	engine := func() *apitest.Engine {
		e := apitest.New(apitest.Say("<think>h", "m</think>", "<tool_", `call>{"name": "f", "arg`, `uments": {"a": 1}}</tool_call>`,
			`<tool_call>{"name": "f"}</tool_call>`))
		e.Served[0].Format = "hermes+think"
		return e
	}
	onBoth(t, engine, func(t *testing.T, c client.Client, _ *apitest.Engine) {
		r := hi
		r.Tools = []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}
		r.ToolChoice = "auto"
		a, err := c.Chat(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, "tool_calls", a.Choices[0].FinishReason)
		m := a.Choices[0].Message
		require.Equal(t, "hm", m.Reasoning)
		require.Len(t, m.ToolCalls, 2)
		require.Equal(t, client.FunctionCall{Name: "f", Arguments: `{"a": 1}`}, m.ToolCalls[0].Function)
		require.Equal(t, client.FunctionCall{Name: "f", Arguments: "{}"}, m.ToolCalls[1].Function)
		require.Equal(t, "function", m.ToolCalls[0].Type)
		require.Equal(t, 2, a.Usage.CompletionDetails.ReasoningTokens)
		r.Messages = append(r.Messages, m, client.Message{Role: "tool", ToolCallID: m.ToolCalls[0].ID, Content: "1"})
		reasoning, arguments := "", map[int]string{}
		for chunk, err := range c.ChatStream(t.Context(), r) {
			require.NoError(t, err)
			for _, ch := range chunk.Choices {
				reasoning += ch.Delta.Reasoning
				for _, call := range ch.Delta.ToolCalls {
					arguments[call.Index] += call.Function.Arguments
				}
			}
		}
		require.Equal(t, "hm", reasoning)
		require.Equal(t, map[int]string{0: `{"a": 1}`, 1: "{}"}, arguments)
	})
}
