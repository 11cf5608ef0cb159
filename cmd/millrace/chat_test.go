package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

// echoServer answers with the number of messages and the last one.
type echoServer struct {
	client.Client
	requests []client.ChatRequest
	fail     error // of the next request
}

func (s *echoServer) ChatStream(_ context.Context, r client.ChatRequest) iter.Seq2[client.Chunk, error] {
	r.Messages = append([]client.Message(nil), r.Messages...)
	s.requests = append(s.requests, r)
	err := s.fail
	s.fail = nil
	return func(yield func(client.Chunk, error) bool) {
		if err != nil {
			yield(client.Chunk{}, err)
			return
		}
		for _, text := range []string{"you said ", r.Messages[len(r.Messages)-1].Content} {
			var c client.ChunkChoice
			c.Delta.Content = text
			if !yield(client.Chunk{Choices: []client.ChunkChoice{c}}, nil) {
				return
			}
		}
		yield(client.Chunk{Usage: &client.Usage{CompletionTokens: 7}}, nil)
	}
}

// talk runs a conversation of some lines.
func talk(t *testing.T, s *echoServer, lines ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	read := lineReader(strings.NewReader(strings.Join(lines, "\n")), &out)
	err := newConversation(s, &chatOptions{system: "be kind"}, &out).run(t.Context(), read)
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
	out, err := talk(t, s, "/set temperature 0.5", "/set max_tokens 9", "/set", "one", "/retry", "/clear", "two", "/system", "three", "/set depth 1", "/dance", "/bye", "four")
	require.NoError(t, err)
	require.Len(t, s.requests, 4)
	require.InDelta(t, 0.5, *s.requests[0].Temperature, 0)
	require.Equal(t, 9, s.requests[0].MaxCompletionTokens)
	require.Equal(t, s.requests[0], s.requests[1], "an answer to the same messages")
	require.Equal(t, []string{"system be kind", "user two"}, roles(s.requests[2]))
	require.Equal(t, []string{"user three"}, roles(s.requests[3]))
	require.Contains(t, out, "temperature 0.5\ntop_p (the server's)")
	require.Contains(t, out, `error: found "depth", expected temperature`)
	require.Contains(t, out, "error: found command /dance, expected one of /system")
}

func TestAnErrorTakesTheMessageBack(t *testing.T) {
	s := &echoServer{fail: errors.New("busy")}
	_, err := talk(t, s, "one")
	require.ErrorContains(t, err, "busy", "nothing was answered: the address may be wrong")
	s = &echoServer{}
	read := lineReader(strings.NewReader("one\ntwo\nthree"), io.Discard)
	var out bytes.Buffer
	v := newConversation(s, &chatOptions{}, &out)
	n := 0
	err = v.run(t.Context(), func() (string, error) {
		if n++; n == 2 {
			s.fail = errors.New("busy")
		}
		return read()
	})
	require.NoError(t, err)
	require.Contains(t, out.String(), "error: busy")
	require.Equal(t, []string{"user one", "assistant you said one", "user three"}, roles(s.requests[2]))
}
