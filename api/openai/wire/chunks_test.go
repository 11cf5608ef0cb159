package wire

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func FuzzStringsRoundTrip(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "世界 👩‍👩‍👧 مرحبا", "\u2028\u2029\ufffd\uffff", "\xff\xc3(\xed\xa0\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		quoted := appendString(nil, s)
		var got string
		if err := json.Unmarshal(quoted, &got); err != nil {
			t.Fatalf("%q became %q: %v", s, quoted, err)
		}
		if want := strings.ToValidUTF8(s, "\ufffd"); utf8.ValidString(s) && got != want {
			t.Fatalf("%q came back as %q", s, got)
		}
		if len([]rune(got)) != len([]rune(s)) || !utf8.Valid(quoted) {
			t.Fatalf("%q came back as %q", s, got)
		}
	})
}

func TestLogprobsThatJSONCannotHold(t *testing.T) {
	inf := float32(math.Inf(-1))
	nan := float32(math.NaN())
	tokens := []api.TokenLogprob{
		{Text: "a", Bytes: []byte("a"), Logprob: nan},
		{Text: "\ufffd", Bytes: []byte{0xe2, 0x80}, Logprob: inf, Top: []api.TokenLogprob{
			{Text: "\ufffd", Bytes: []byte{0xe2, 0x80}, Logprob: -1e-7}, {Text: "\ufffd", Bytes: []byte{0xff}, Logprob: inf}}},
	}
	raw, offset := appendCompletionLogprobs(nil, tokens, 40)
	require.Equal(t, 42, offset)
	require.JSONEq(t, `{"tokens":["a","bytes:\\xe2\\x80"],"token_logprobs":[null,-9999],
		"top_logprobs":[null,{"bytes:\\xe2\\x80":-1e-7,"bytes:\\xff":-9999}],"text_offset":[40,41]}`, string(raw))
	require.JSONEq(t, `{"content":[{"token":"a","logprob":-9999,"bytes":[97],"top_logprobs":[]},
		{"token":"\ufffd","logprob":-9999,"bytes":[226,128],"top_logprobs":[
			{"token":"\ufffd","logprob":-1e-7,"bytes":[226,128]},{"token":"\ufffd","logprob":-9999,"bytes":[255]}]}],
		"refusal":null}`, string(appendChatLogprobs(nil, tokens)))
}

// scripted hands out events and then io.EOF.
type scripted struct {
	events []api.Event
	closed int
}

func (s *scripted) Next(context.Context) (api.Event, error) {
	if len(s.events) == 0 {
		return api.Event{}, io.EOF
	}
	ev := s.events[0]
	s.events = s.events[1:]
	return ev, nil
}

func (s *scripted) Close() { s.closed++ }

type scriptedEngine struct {
	api.Engine
	streams []*scripted
	next    int
	fail    error // of the last Submit
}

func (e *scriptedEngine) Submit(context.Context, *api.Request) (api.Stream, error) {
	if e.next == len(e.streams) {
		return nil, e.fail
	}
	e.next++
	return e.streams[e.next-1], nil
}

func TestARefusedPromptClosesThoseBeforeIt(t *testing.T) {
	e := &scriptedEngine{streams: []*scripted{{}, {}}, fail: api.Invalid("prompt", "too long")}
	c := &Call{N: 1, Requests: []*api.Request{{}, {}, {}}}
	_, err := c.Run(t.Context(), e)
	require.ErrorIs(t, err, e.fail)
	require.Equal(t, 1, e.streams[0].closed)
	require.Equal(t, 1, e.streams[1].closed)
}

func TestAnAnswerWithoutAnEndIsAnError(t *testing.T) {
	for name, events := range map[string][]api.Event{
		"cut":             {{Seq: 1, Text: "a"}},
		"choice too high": {{Seq: 1, Text: "a", Choice: 1, Done: true}},
		"choice negative": {{Seq: 1, Text: "a", Choice: -1, Done: true}},
	} {
		c := &Call{N: 1, Requests: []*api.Request{{}}}
		s := &scripted{events: events}
		out, err := c.Run(t.Context(), &scriptedEngine{streams: []*scripted{s}})
		require.NoError(t, err)
		_, err = c.Collect(t.Context(), out, "fp")
		require.Error(t, err, name)
		require.Equal(t, api.CodeInternal, AsError(err).Code, name)
		for range out { // ends: the pump is gone
		}
		require.Equal(t, 1, s.closed, name)
	}
}

func TestRunEndsWithItsContextWhenNobodyReads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	many := make([]api.Event, 3*eventBuffer)
	a, b := &scripted{events: many}, &scripted{events: many}
	c := &Call{N: 1, Requests: []*api.Request{{}, {}}}
	out, err := c.Run(ctx, &scriptedEngine{streams: []*scripted{a, b}})
	require.NoError(t, err)
	cancel()
	for range out {
	}
	require.Equal(t, 1, a.closed)
	require.Equal(t, 1, b.closed)
}

func TestInternalErrorsKeepTheirWords(t *testing.T) {
	require.Equal(t, "internal error", AsError(io.ErrUnexpectedEOF).Message)
	require.Equal(t, api.CodeTimeout, AsError(context.DeadlineExceeded).Code)
	e := api.Invalid("n", "n: too <many> & more")
	require.Same(t, e, AsError(e))
	require.Equal(t, `{"error":{"message":"n: too <many> & more","type":"invalid_request_error","param":"n","code":"invalid_value"}}`,
		string(EncodeError(e)))
}

func TestChunksAllocateNothingPerToken(t *testing.T) {
	c := NewChunks(&Call{ID: "chatcmpl-x", N: 1, Model: "m", Requests: []*api.Request{{}}}, "fp")
	ev := api.Event{Text: " hello\n", Tokens: []int32{5}, Logprobs: []api.TokenLogprob{{Text: "a", Bytes: []byte("a"), Logprob: -1.5}}}
	c.Encode(ev)
	require.Zero(t, testing.AllocsPerRun(100, func() { c.Encode(ev) }))
}

func BenchmarkChunk(b *testing.B) {
	c := NewChunks(&Call{ID: "chatcmpl-0123456789abcdef0123456789abcdef", N: 1, Model: "tiny-chat",
		Requests: []*api.Request{{}}}, "fp_cpu")
	ev := api.Event{Text: " capital", Tokens: []int32{5}}
	b.ReportAllocs()
	for b.Loop() {
		c.Encode(ev)
	}
}
