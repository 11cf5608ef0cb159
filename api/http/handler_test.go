package httpapi_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/api/openai"
)

const hello = `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}]`

func serve(t *testing.T, e *apitest.Engine, opts httpapi.Options) *httptest.Server {
	t.Helper()
	return serveWithin(t, e, opts, httpserver.Limits{})
}

// serveWithin serves as millrace does: within limits.
func serveWithin(t *testing.T, e *apitest.Engine, opts httpapi.Options, limits httpserver.Limits) *httptest.Server {
	t.Helper()
	if opts.Fingerprint == "" {
		opts.Fingerprint = "fp_test"
	}
	h, err := httpapi.New(e, opts)
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(nil)
	bounded := httpserver.New(h, limits, zerolog.Nop())
	srv.Listener, srv.Config = bounded.Listener(srv.Listener), bounded.Server
	srv.Start()
	t.Cleanup(func() {
		srv.Close()
		e.WaitIdle() // every stream was closed
	})
	return srv
}

func post(t *testing.T, srv *httptest.Server, path, body string) *http.Response {
	t.Helper()
	resp, err := http.Post(srv.URL+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	return resp
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(body)
}

// strict decodes into a documented type: an undocumented field is an error.
func strict(t *testing.T, body string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(v), "%s", body)
}

func TestChatAnswersWhole(t *testing.T) {
	e := apitest.New(apitest.Say("Hel", "lo <", "b>\n\"世界\" "))
	srv := serve(t, e, httpapi.Options{})
	resp := post(t, srv, "/v1/chat/completions", hello+`,"n":2,"return_token_ids":true}`)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "application/json", resp.Header.Get("Content-Type"))
	var a openai.ChatCompletion
	strict(t, read(t, resp), &a)
	require.Equal(t, "chat.completion", a.Object)
	require.Equal(t, "tiny-chat", a.Model)
	require.Equal(t, "fp_test", a.SystemFingerprint)
	require.Equal(t, e.Requests()[0].ID, a.ID)
	require.True(t, strings.HasPrefix(a.ID, "chatcmpl-"))
	require.Len(t, a.Choices, 2)
	for i, ch := range a.Choices {
		require.Equal(t, i, ch.Index)
		require.Equal(t, "assistant", ch.Message.Role)
		require.Equal(t, "Hello <b>\n\"世界\" ", *ch.Message.Content)
		require.Equal(t, "stop", ch.FinishReason)
		require.Equal(t, "null", string(ch.Logprobs))
		require.Equal(t, []int32{100, 101, 102}, ch.TokenIDs)
	}
	require.Equal(t, openai.Usage{PromptTokens: 7, CompletionTokens: 6, TotalTokens: 13}, a.Usage)
}

func TestChatStreamsAsOpenAIDoes(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hel", "", "lo\u2028\x00")), httpapi.Options{})
	resp := post(t, srv, "/v1/chat/completions", hello+`,"stream":true,"stream_options":{"include_usage":true}}`)
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	body := read(t, resp)
	var a struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(strings.SplitN(body, "\n", 2)[0], "data: ")), &a))
	body = strings.ReplaceAll(body, a.ID, "ID")
	body = created.ReplaceAllString(body, `"created":0`)
	head := `{"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny-chat","system_fingerprint":"fp_test","choices":[`
	want := `data: ` + head + `{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null}

id: 1
data: ` + head + `{"index":0,"delta":{"content":"Hel"},"logprobs":null,"finish_reason":null}],"usage":null}

id: 3
data: ` + head + `{"index":0,"delta":{"content":"lo\u2028\u0000"},"logprobs":null,"finish_reason":null}],"usage":null}

data: ` + head + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"usage":null}

id: 4
data: ` + head + `],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]

`
	require.Equal(t, want, body)
}

func TestCompletionsAnswerEveryPromptInOrder(t *testing.T) {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) { apitest.Say("<", r.Prompt, ">")(r, s) })
	srv := serve(t, e, httpapi.Options{})
	resp := post(t, srv, "/v1/completions", `{"prompt":["one","two","three"],"n":2,"logprobs":1}`)
	require.Equal(t, 200, resp.StatusCode)
	var a openai.TextCompletion
	strict(t, read(t, resp), &a)
	require.Equal(t, "text_completion", a.Object)
	texts := make([]string, 0, 6)
	for i, ch := range a.Choices {
		require.Equal(t, i, ch.Index)
		texts = append(texts, ch.Text)
	}
	require.Equal(t, []string{"<one>", "<one>", "<two>", "<two>", "<three>", "<three>"}, texts)
	require.JSONEq(t, `{"tokens":["<","three",">"],"token_logprobs":[-0.25,-0.25,-0.25],
		"top_logprobs":[{"<":-0.25},{"three":-0.25},{">":-0.25}],"text_offset":[0,1,6]}`, string(a.Choices[4].Logprobs))
	require.Equal(t, 3*7, a.Usage.PromptTokens)
	require.Equal(t, 3*2*3, a.Usage.CompletionTokens)
}

func TestEchoPutsThePromptBeforeEachChoice(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("!")), httpapi.Options{})
	for prompt, want := range map[string][]string{
		`"one"`:         {"one!", "one!"},
		`["a","b"]`:     {"a!", "a!", "b!", "b!"},
		`[104,195,169]`: {"hé!", "hé!"},
	} {
		var a openai.TextCompletion
		strict(t, read(t, post(t, srv, "/v1/completions", `{"prompt":`+prompt+`,"n":2,"echo":true}`)), &a)
		texts := []string{}
		for _, ch := range a.Choices {
			texts = append(texts, ch.Text)
		}
		require.Equal(t, want, texts)
	}
	resp := post(t, srv, "/v1/completions", `{"prompt":[999],"echo":true}`)
	require.Equal(t, 400, resp.StatusCode)
	body := read(t, post(t, srv, "/v1/completions", `{"prompt":"one","echo":true,"stream":true}`))
	require.Less(t, strings.Index(body, `"text":"one"`), strings.Index(body, `"text":"!"`))

	refused := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Finish: api.FinishError, Err: &api.Error{Code: api.CodeOverloaded, Message: "full"}, Done: true})
	})
	resp = post(t, serve(t, refused, httpapi.Options{}), "/v1/completions", `{"prompt":"one","echo":true,"stream":true}`)
	require.Equal(t, 429, resp.StatusCode)
}

func TestSeveralPromptsStreamWithOneNumberingAndOneEnd(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("a", "b")), httpapi.Options{})
	resp := post(t, srv, "/v1/completions", `{"prompt":[[1,2],[3]],"stream":true}`)
	body := read(t, resp)
	ids := 0
	finished := map[int]bool{}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "id: ") {
			ids++
			require.Equal(t, ids, atoi(t, strings.TrimSpace(line[4:])))
		}
		if data, ok := strings.CutPrefix(line, "data: {"); ok {
			var c struct {
				Choices []struct {
					Index  int
					Finish *string `json:"finish_reason"`
				}
			}
			require.NoError(t, json.Unmarshal([]byte("{"+data), &c))
			if c.Choices[0].Finish != nil {
				finished[c.Choices[0].Index] = true
			}
		}
	}
	require.Equal(t, 6, ids)
	require.Equal(t, map[int]bool{0: true, 1: true}, finished)
	require.Equal(t, 1, strings.Count(body, "[DONE]"))
}

func TestChatLogprobsCarryBytesAndAlternatives(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("é")), httpapi.Options{})
	want := `{"content":[{"token":"é","logprob":-0.25,"bytes":[195,169],"top_logprobs":[
		{"token":"é","logprob":-0.25,"bytes":[195,169]},{"token":"éb","logprob":-1.25,"bytes":[195,169,98]}]}],"refusal":null}`
	resp := post(t, srv, "/v1/chat/completions", hello+`,"logprobs":true,"top_logprobs":2}`)
	var a openai.ChatCompletion
	strict(t, read(t, resp), &a)
	require.JSONEq(t, want, string(a.Choices[0].Logprobs))

	resp = post(t, srv, "/v1/chat/completions", hello+`,"logprobs":true,"top_logprobs":2,"stream":true}`)
	body := read(t, resp)
	start := strings.Index(body, `"logprobs":{`) + len(`"logprobs":`)
	require.JSONEq(t, want, body[start:strings.Index(body[start:], `,"finish_reason"`)+start])
}

func TestARefusalHasItsOwnStatus(t *testing.T) {
	overloaded := &api.Error{Code: api.CodeOverloaded, Message: "queue full: 9 of 9", RetryAfter: 1500 * time.Millisecond}
	atOnce := apitest.New(nil)
	atOnce.Refuse = func(*api.Request) error { return overloaded }
	asEvent := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Finish: api.FinishError, Err: overloaded, Done: true})
	})
	for _, e := range []*apitest.Engine{atOnce, asEvent} {
		srv := serve(t, e, httpapi.Options{})
		for _, stream := range []string{"false", "true"} {
			resp := post(t, srv, "/v1/chat/completions", hello+`,"stream":`+stream+`}`)
			require.Equal(t, 429, resp.StatusCode)
			require.Equal(t, "2", resp.Header.Get("Retry-After"))
			require.JSONEq(t, `{"error":{"message":"queue full: 9 of 9","type":"rate_limit_error","param":null,
				"code":"rate_limit_exceeded"}}`, read(t, resp))
		}
	}
}

func TestAnErrorAfterTheFirstTokenEndsTheStreamWithoutDone(t *testing.T) {
	for name, last := range map[string]api.Event{
		"unavailable": {Finish: api.FinishError, Err: &api.Error{Code: api.CodeUnavailable, Message: "device lost"}, Done: true},
		"cancelled":   {Finish: api.FinishCancelled, Done: true},
	} {
		e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
			s.Send(api.Event{Text: "part"})
			s.Send(last)
		})
		srv := serve(t, e, httpapi.Options{})
		body := read(t, post(t, srv, "/v1/chat/completions", hello+`,"stream":true}`))
		require.Contains(t, body, `"content":"part"`)
		require.NotContains(t, body, "[DONE]")
		events := strings.Split(strings.TrimSpace(body), "\n\n")
		require.Contains(t, events[len(events)-1], `data: {"error":{"message":`)
		require.Contains(t, events[len(events)-1], `"code":"`+name+`"`)
		resp := post(t, srv, "/v1/chat/completions", hello+`}`)
		require.Equal(t, 503, resp.StatusCode)
		require.NotEmpty(t, resp.Header.Get("Retry-After"))
	}
}

func TestAClientThatLeavesIsCancelledAtOnce(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		cancelled := make(chan struct{})
		started := make(chan struct{})
		e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
			s.Send(api.Event{Text: "one"})
			close(started)
			<-s.Closed() // silent: only the client's leaving can end this
			close(cancelled)
		})
		srv := serve(t, e, httpapi.Options{})
		ctx, cancel := context.WithCancel(context.Background())
		req, err := http.NewRequestWithContext(ctx, "POST", srv.URL+"/v1/chat/completions",
			strings.NewReader(hello+`,"stream":`+stream+`}`))
		require.NoError(t, err)
		go func() {
			if resp, err := http.DefaultClient.Do(req); err == nil {
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		}()
		<-started
		cancel()
		<-cancelled
	}
}

func TestASilentStreamIsPinged(t *testing.T) {
	pinged := make(chan struct{})
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		<-pinged
		apitest.Say("late")(r, s)
	})
	var checks atomic.Int32
	srv := serve(t, e, httpapi.Options{PingAfter: 5 * time.Millisecond, CutOff: func() bool { return checks.Add(1) < 5 }})
	resp := post(t, srv, "/v1/chat/completions", hello+`,"stream":true}`)
	r := bufio.NewReader(resp.Body)
	ping, err := r.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, ": ping\n", ping)
	require.GreaterOrEqual(t, checks.Load(), int32(5), "none while the gateway was cut off")
	close(pinged)
	rest, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Regexp(t, "^(: ping\n)*data: [^\n]*\"role\":\"assistant\"[^\n]*\n\n(: ping\n)*id: 1\n", string(rest),
		"an empty line after a comment would be an event without data")
	require.Contains(t, string(rest), `"content":"late"`)
	require.True(t, strings.HasSuffix(string(rest), "data: [DONE]\n\n"))
}

// TestAStreamHasOneFingerprint, though its first chunks need nothing of the worker.
func TestAStreamHasOneFingerprint(t *testing.T) {
	for path, body := range map[string]string{"/v1/chat/completions": hello, "/v1/completions": `{"prompt":"hi","echo":true`} {
		late := make(chan struct{})
		srv := serve(t, apitest.New(func(_ *api.Request, s *apitest.Stream) {
			<-late
			s.Send(api.Event{Text: "a", Tokens: []int32{1}, Pin: &api.Pin{Numerics: "0123456789abcdef0123"}})
			s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
		}), httpapi.Options{PingAfter: 5 * time.Millisecond})
		resp := post(t, srv, path, body+`,"stream":true,"stream_options":{"include_usage":true}}`)
		close(late) // the header has come with a ping
		text := read(t, resp)
		found := regexp.MustCompile(`"system_fingerprint":"[^"]*"`).FindAllString(text, -1)
		require.GreaterOrEqual(t, len(found), 4, text)
		require.Equal(t, []string{`"system_fingerprint":"fp_0123456789abcdef"`}, slices.Compact(found))
	}
}

func TestAReaderThatStallsIsDroppedAndBlocksNobody(t *testing.T) {
	closed := make(chan struct{})
	big := strings.Repeat("x", 64<<10)
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		if r.Messages[0].Content == "hi" {
			apitest.Say("quick")(r, s)
			return
		}
		for s.Send(api.Event{Text: big}) {
		}
		close(closed)
	})
	srv := serveWithin(t, e, httpapi.Options{}, httpserver.Limits{Write: 50 * time.Millisecond})
	post(t, srv, "/v1/chat/completions", `{"messages":[{"role":"user","content":"flood"}],"stream":true}`)
	require.Equal(t, 200, post(t, srv, "/v1/chat/completions", hello+`}`).StatusCode)
	<-closed // nothing was read from the first, and it ended
}

// TestAnswersAnnounceAnEviction in every format, streamed and whole.
func TestAnswersAnnounceAnEviction(t *testing.T) {
	const digest = "0123456789abcdef0123456789abcdef"
	for numerics, want := range map[string]string{digest: "", digest + "-streaming-4-1020": "streaming-4-1020"} {
		srv := serve(t, apitest.New(func(_ *api.Request, s *apitest.Stream) {
			s.Send(api.Event{Text: "a", Tokens: []int32{1}, Pin: &api.Pin{Numerics: numerics}})
			s.Send(api.Event{Finish: api.FinishStop, Done: true})
		}), httpapi.Options{})
		for _, path := range []string{"/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses"} {
			for _, stream := range []string{"false", "true"} {
				body := hello + `,"max_tokens":5,"stream":` + stream + `}`
				if path == "/v1/responses" {
					body = `{"model":"tiny-chat","input":"hi","store":false,"stream":` + stream + `}`
				}
				resp := post(t, srv, path, body)
				text := read(t, resp)
				require.Equal(t, 200, resp.StatusCode, text)
				require.Equal(t, want, resp.Header.Get("Millrace-KV"), "%s, stream %s", path, stream)
				if path == "/v1/chat/completions" && want != "" {
					require.Contains(t, text, `"system_fingerprint":"fp_0123456789abcdef-streaming-4-1020"`)
				}
			}
		}
	}
}
