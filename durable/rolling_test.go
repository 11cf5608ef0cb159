package durable

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestAnAnswerThatTheVersionBeforeBeganIsNotContinued has the logs of a dead gateway of an early version: its stream evicts, has
// subjects without tenants, and its records have no identity and no pin. Its queries do not name a log. An answer that has
// begun is read up to where it stopped. A call without output is run.
func TestAnAnswerThatTheVersionBeforeBeganIsNotContinued(t *testing.T) {
	srv := natstest.Start(t, &server.Options{JetStream: true})
	nc, err := nats.Connect(srv.ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: Stream, Subjects: []string{Subject + "*"},
		Storage: jetstream.MemoryStorage, AllowDirect: true, MaxBytes: 1 << 20, Discard: jetstream.DiscardOld})
	require.NoError(t, err)
	const body = `{"prompt":"one","stream":true,"stream_resume":true,"request_id":"mine"}`
	old := []*record{
		{token: 7, call: &callRecord{kind: call.Completion, body: []byte(body), id: "cmpl-mine", tenant: "t", model: "tiny-chat", arrival: time.Now(), owner: "gone"}},
		{token: 7, events: []api.Event{{Seq: 1, Text: "a", Tokens: []int32{100}}}},
	}
	for _, r := range old {
		_, err = js.Publish(t.Context(), Subject+"cmpl-mine", r.encode())
		require.NoError(t, err)
	}
	fresh := *old[0].call
	fresh.id = "cmpl-fresh"
	_, err = js.Publish(t.Context(), Subject+fresh.id, (&record{token: 7, call: &fresh}).encode())
	require.NoError(t, err)
	paused := make(chan struct{})
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Text: "b", Tokens: []int32{101}})
		<-paused
		s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
	})
	c, err := New(nc, call.NewDirect(e), Options{Watch: 20 * time.Millisecond, Answer: time.Second, Rejoin: 100 * time.Millisecond, DecodeOld: openai.DecodeWithID})
	require.NoError(t, err)
	defer c.Close()
	s, err := js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	require.Equal(t, []string{Subject + ">"}, s.CachedInfo().Config.Subjects)
	require.Equal(t, jetstream.DiscardNew, s.CachedInfo().Config.Discard)
	require.Equal(t, int64(1<<20), s.CachedInfo().Config.MaxBytes, "other settings do not change")

	as := func(tenant string) context.Context {
		return api.WithCaller(t.Context(), &auth.Key{Entry: &auth.Entry{Tenant: tenant}})
	}
	_, err = c.Attach(as("another"), "cmpl-mine")
	require.Equal(t, api.CodeNotFound, api.AsError(err).Code)
	decoded, err := openai.DecodeCompletion([]byte(body), e.Models(), time.Now())
	require.NoError(t, err)
	r, err := c.Run(as("t"), decoded)
	require.NoError(t, err, "the same request is the same call")
	defer r.Close()
	events := r.Events(t.Context())
	require.Equal(t, "a", (<-events).Text)
	end := <-events
	require.True(t, end.Done)
	require.Equal(t, "no_equal_worker", api.AsError(end.Err).Reason, "its digests are not known")
	require.Empty(t, e.Requests())

	begun, err := c.Attach(as("t"), fresh.id)
	require.NoError(t, err)
	defer begun.Close()
	answer := begun.Events(t.Context())
	require.Equal(t, "b", (<-answer).Text)
	question, err := json.Marshal(map[string]any{"id": fresh.id})
	require.NoError(t, err)
	m, err := nc.Request(peerSubject+c.node, question, 5*time.Second)
	require.NoError(t, err)
	require.JSONEq(t, `{"owns":true}`, string(m.Data))

	theirs, err := c.Run(as("another"), decoded)
	require.NoError(t, err, "the id is free for another tenant")
	defer theirs.Close()
	close(paused)
	require.True(t, (<-answer).Done)
	for range theirs.Events(t.Context()) { //nolint:revive // read to the end
	}
	require.Len(t, e.Requests(), 2)
}

// TestAnAnswerInTheFormOfTheVersionBeforeContinues has the log of a dead gateway of the previous version,
// which has the body of the call instead of the decoded call.
func TestAnAnswerInTheFormOfTheVersionBeforeContinues(t *testing.T) {
	nc, err := nats.Connect(natstest.Start(t, &server.Options{JetStream: true}).ClientURL())
	require.NoError(t, err)
	defer nc.Close()
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Text: "b", Tokens: []int32{101}})
		s.Send(api.Event{Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 3, CompletionTokens: 2}})
	})
	c, err := New(nc, call.NewDirect(e), Options{Watch: 20 * time.Millisecond, Answer: time.Second, DecodeOld: openai.DecodeWithID})
	require.NoError(t, err)
	defer c.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	const body = `{"prompt":"one","max_tokens":9,"stream":true,"stream_resume":true,"request_id":"mine"}`
	pin := &api.Pin{Numerics: "n", Text: "t", Prompt: "p"}
	for _, r := range []*record{
		{log: logID{1}, token: 7, call: &callRecord{kind: call.Completion, body: []byte(body), id: "cmpl-mine", model: "tiny-chat", arrival: time.Now(), owner: "gone"}},
		{log: logID{1}, token: 7, events: []api.Event{{Seq: 1, Text: "a", Tokens: []int32{100}, Pin: pin}}},
	} {
		_, err = js.Publish(t.Context(), Subject+logName("", "cmpl-mine"), r.encode())
		require.NoError(t, err)
	}

	again, err := openai.DecodeCompletion([]byte(body), e.Models(), time.Now())
	require.NoError(t, err)
	r, err := c.Run(t.Context(), again)
	require.NoError(t, err, "the same request is the same call")
	defer r.Close()
	text := ""
	for ev := range r.Events(t.Context()) {
		require.Nil(t, api.Failure(ev))
		text += ev.Text
	}
	require.Equal(t, "ab", text)
	rest := e.Requests()[0]
	require.Equal(t, &api.Progress{Pin: *pin, Choices: []api.ChoiceProgress{{Tokens: []int32{100}}}}, rest.Takeover)
	require.Equal(t, again.Requests[0].Sampling, rest.Sampling, "the seed is derived from the ID")

	other, err := openai.DecodeCompletion([]byte(`{"prompt":"two","max_tokens":9,"stream":true,"stream_resume":true,"request_id":"mine"}`), e.Models(), time.Now())
	require.NoError(t, err)
	_, err = c.Run(t.Context(), other)
	require.Equal(t, "request_id_in_use", api.AsError(err).Reason)
}
