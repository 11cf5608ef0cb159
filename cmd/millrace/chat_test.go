package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

// echoServer answers with the number of messages and the last one.
type echoServer struct {
	client.Client
	requests []client.ChatRequest
	fail     error       // of the next request
	pieces   func(n int) // is called before each piece of an answer
}

func (s *echoServer) ChatStream(ctx context.Context, r client.ChatRequest) iter.Seq2[client.Chunk, error] {
	r.Messages = append([]client.Message(nil), r.Messages...)
	s.requests = append(s.requests, r)
	err := s.fail
	s.fail = nil
	return func(yield func(client.Chunk, error) bool) {
		if err != nil {
			yield(client.Chunk{}, err)
			return
		}
		for i, text := range []string{"you said ", r.Messages[len(r.Messages)-1].Content} {
			if s.pieces != nil {
				s.pieces(i)
			}
			if ctx.Err() != nil {
				yield(client.Chunk{}, ctx.Err())
				return
			}
			var c client.ChunkChoice
			c.Delta.Content = text
			if !yield(client.Chunk{Choices: []client.ChunkChoice{c}}, nil) {
				return
			}
		}
		yield(client.Chunk{Usage: &client.Usage{CompletionTokens: 7}}, nil)
	}
}

func (s *echoServer) Models(context.Context) ([]client.Model, error) {
	return []client.Model{{ID: "echo", Sampling: client.ModelSampling{TopP: 0.9, TopK: 40, RepetitionPenalty: 1}}}, nil
}

// talk runs a conversation of some lines.
func talk(t *testing.T, s *echoServer, lines ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	read := newReader(strings.NewReader(strings.Join(lines, "\n")), &out)
	err := newConversation(s, "", "be kind", &out).run(t.Context(), read)
	return out.String(), err
}

func roles(r client.ChatRequest) (list []string) {
	for _, m := range r.Messages {
		list = append(list, m.Role+" "+m.Content)
	}
	return list
}

func TestAConversationKeepsItsMessages(t *testing.T) {
	s := &echoServer{}
	out, err := talk(t, s, "one", "", "two")
	require.NoError(t, err)
	require.Contains(t, out, "you said one\n(7 tokens, the first after 0.00 s")
	require.Equal(t, []string{"system be kind", "user one"}, roles(s.requests[0]))
	require.Equal(t, []string{"system be kind", "user one", "assistant you said one", "user two"}, roles(s.requests[1]))
}

func TestCommandsChangeTheConversation(t *testing.T) {
	s := &echoServer{}
	out, err := talk(t, s, "/set temperature 0.5", "/set max_tokens 9", "/set", "one", "/retry", "/clear", "two", "/system", "three",
		"/set depth 1", "/dance", "/bye", "four")
	require.NoError(t, err)
	require.Len(t, s.requests, 4)
	require.InDelta(t, 0.5, *s.requests[0].Temperature, 0)
	require.Equal(t, 9, s.requests[0].MaxCompletionTokens)
	require.Equal(t, s.requests[0], s.requests[1], "an answer to the same messages")
	require.Equal(t, []string{"system be kind", "user two"}, roles(s.requests[2]))
	require.Equal(t, []string{"user three"}, roles(s.requests[3]))
	require.Contains(t, out,
		"temperature 0.5\ntop_p 0.9 (the server's)\ntop_k 40 (the server's)\nmin_p 0 (the server's)\nmax_tokens 9\nseed (the server's)\n")
	require.Contains(t, out, `error: found "depth", expected temperature`)
	require.Contains(t, out, "error: found command /dance, expected one of /system")
}

func TestAnErrorTakesTheMessageBack(t *testing.T) {
	s := &echoServer{fail: errors.New("busy")}
	_, err := talk(t, s, "one")
	require.ErrorContains(t, err, "busy", "nothing was answered: the address may be wrong")
	s = &echoServer{}
	read := newReader(strings.NewReader("one\ntwo\nthree"), io.Discard)
	var out bytes.Buffer
	v := newConversation(s, "", "", &out)
	n := 0
	err = v.run(t.Context(), func(prompt string) (string, error) {
		if n++; n == 2 {
			s.fail = errors.New("busy")
		}
		return read(prompt)
	})
	require.NoError(t, err)
	require.Contains(t, out.String(), "error: busy")
	require.Equal(t, []string{"user one", "assistant you said one", "user three"}, roles(s.requests[2]))
}

func TestSettingsAreCheckedAtOnce(t *testing.T) {
	s := &echoServer{}
	out, err := talk(t, s, "/set temperature 9", "/set top_k 2.5", "/set top_k -7", "/set max_tokens 0", "/set min_p x", "/set seed 1",
		"/set temperature 1", "one", "/set temperature", "/set seed", "two")
	require.NoError(t, err)
	for _, want := range []string{
		"error: temperature: found 9, expected 0 to 2", `error: found top_k "2.5", expected an integer`,
		"error: top_k: found -7, expected -1 or 0", "error: found max_tokens 0, expected at least 1",
		`error: found min_p "x", expected a number`, "temperature is the server's",
	} {
		require.Contains(t, out, want)
	}
	require.InDelta(t, 1, *s.requests[0].Temperature, 0)
	require.EqualValues(t, 1, *s.requests[0].Seed)
	require.Zero(t, s.requests[0].TopK)
	require.Nil(t, s.requests[1].Temperature)
	require.Nil(t, s.requests[1].Seed)
}

func TestAMessageOfSeveralLines(t *testing.T) {
	s := &echoServer{}
	out, err := talk(t, s, `one \`, `two\`, "three", `"""four`, "", `/five \`, `six"""`, `"""seven"""`, `"""`, "eight", `"""`, `"""nine`,
		"ten")
	require.NoError(t, err, out)
	var got []string
	for _, r := range s.requests {
		got = append(got, r.Messages[len(r.Messages)-1].Content)
	}
	require.Equal(t, []string{"one \ntwo\nthree", "four\n\n/five \\\nsix", "seven", "eight", "nine\nten"}, got)
}

// TestCtrlCEndsTheAnswer and keeps what is there of it.
func TestCtrlCEndsTheAnswer(t *testing.T) {
	s := &echoServer{}
	var out bytes.Buffer
	v := newConversation(s, "", "", &out)
	var interrupt context.CancelFunc
	v.interruptible = func(ctx context.Context) (context.Context, context.CancelFunc) {
		ctx, interrupt = context.WithCancel(ctx)
		return ctx, interrupt
	}
	s.pieces = func(n int) {
		if len(s.requests) == 1 && n == 1 || len(s.requests) == 2 && n == 0 {
			interrupt()
		}
	}
	require.NoError(t, v.run(t.Context(), newReader(strings.NewReader("one\ntwo\nthree"), &out)))
	require.Contains(t, out.String(), "you said \n(stopped)\n")
	require.Equal(t, []string{"user one", "assistant you said ", "user three"}, roles(s.requests[2]),
		"an answer without text leaves nothing")
}

// TestTheSecondCtrlCAtThePromptEnds the program.
func TestTheSecondCtrlCAtThePromptEnds(t *testing.T) {
	s := &echoServer{}
	var out bytes.Buffer
	inputs := []string{"^C", "one", "^C", "^C", "two"}
	err := newConversation(s, "", "", &out).run(t.Context(), func(string) (string, error) {
		line := inputs[0]
		inputs = inputs[1:]
		if line == "^C" {
			return "", errInterrupted
		}
		return line, nil
	})
	require.NoError(t, err)
	require.Len(t, s.requests, 1)
	require.Equal(t, []string{"two"}, inputs)
	require.Contains(t, out.String(), "(another Ctrl-C, or Ctrl-D, ends the program)")
}

func TestAConversationIsSavedAndLoaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "talk.json")
	s := &echoServer{}
	out, err := talk(t, s, "/set temperature 0.5", "one", "/save "+file, "/save", "/load", "/load /nonexistent/x")
	require.NoError(t, err)
	for _, want := range []string{"3 messages are in " + file, "expected /save FILE", "expected /load FILE", "no such file"} {
		require.Contains(t, out, want)
	}
	s = &echoServer{}
	out, err = talk(t, s, "/load "+file, "two")
	require.NoError(t, err)
	require.Contains(t, out, "user: one\nassistant: you said one\n(3 messages of "+file+")")
	require.Equal(t, []string{"system be kind", "user one", "assistant you said one", "user two"}, roles(s.requests[0]))
	require.InDelta(t, 0.5, *s.requests[0].Temperature, 0)

	for text, want := range map[string]string{
		"{}": "found no messages", "x": "found no messages",
		`{"messages": [{"role": "tool", "content": "x"}]}`:                   `found a message of role "tool"`,
		`{"messages": [{"role": "user", "content": "x"}], "temperature": 7}`: "temperature: found 7",
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		out, err := talk(t, s, "/load "+file)
		require.NoError(t, err)
		require.Contains(t, out, "error: "+file+": "+want)
	}
}

// TestChatWaitsForAServerThatStarts: nobody listens, then the model loads, then it is served.
func TestChatWaitsForAServerThatStarts(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	o := serverOptions{url: "http://" + address}
	_, err = o.await(t.Context(), io.Discard, 0)
	require.ErrorContains(t, err, "found no server at http://"+address)
	require.ErrorContains(t, err, `expected one: "millrace serve" starts it, and --url names another`)

	answers := make(chan string, 3)
	for _, answer := range []string{"503", `{"data": []}`, `{"data": [{"id": "m"}]}`} {
		answers <- answer
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer := <-answers
		if answer == "503" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		io.WriteString(w, answer) //nolint:errcheck // the client notices
	})}
	t.Cleanup(func() { server.Close() })
	var out notified
	out.on = func(text string) { // the first attempt has failed
		if strings.HasPrefix(text, "waiting for the server at") {
			l, err := net.Listen("tcp", address)
			require.NoError(t, err)
			go server.Serve(l) //nolint:errcheck // it is closed
		}
	}
	c, err := o.await(t.Context(), &out, time.Minute)
	require.NoError(t, err)
	c.Close()
	require.Empty(t, answers)
	require.Equal(t, "waiting for the server at http://"+address+"\nwaiting for the server's model at http://"+address+"\n", out.String())

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, server.Close())
	_, err = o.await(ctx, io.Discard, time.Minute)
	require.ErrorIs(t, err, context.Canceled)
}

// notified calls a function for each part that is written to it.
type notified struct {
	strings.Builder
	on func(string)
}

// Write implements io.Writer.
func (n *notified) Write(p []byte) (int, error) {
	n.on(string(p))
	return n.Builder.Write(p)
}

func TestChatEndsAtAServerThatRefuses(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }))
	defer s.Close()
	o := serverOptions{url: s.URL}
	_, err := o.await(t.Context(), io.Discard, time.Hour)
	require.ErrorContains(t, err, "401")
	o.url = "ftp://x"
	_, err = o.await(t.Context(), io.Discard, time.Hour)
	require.ErrorContains(t, err, "expected one like http://host:port")
}

// TestATerminalShowsMarkdownAndReasoning.
func TestATerminalShowsMarkdownAndReasoning(t *testing.T) {
	var out bytes.Buffer
	v := newConversation(nil, "", "", &out)
	for styled, want := range map[bool]string{true: "\x1b[2mHm.\x1b[0m\n\na \x1b[0m\x1b[1mb\x1b[0m", false: "a **b**"} {
		out.Reset()
		v.styled = styled
		a := v.newAnswer()
		a.reasoning("Hm.")
		a.content("a **b**")
		a.end()
		require.Equal(t, want, out.String())
		require.Equal(t, "a **b**", a.text.String())
	}
}
