package openai

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
	"github.com/millrace/millrace/api/call"
)

func FuzzStringsRoundTrip(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "世界 👩‍👩‍👧 مرحبا", "\u2028\u2029\ufffd\uffff",
		"\xff\xc3(\xed\xa0\x80"} {
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
	at := position{chars: 40}
	raw := appendCompletionLogprobs(nil, tokens, &at)
	require.Equal(t, position{chars: 41, part: [4]byte{0xe2, 0x80}, n: 2}, at)
	require.JSONEq(t, `{"tokens":["a","bytes:\\xe2\\x80"],"token_logprobs":[null,-9999],
		"top_logprobs":[null,{"bytes:\\xe2\\x80":-1e-7,"bytes:\\xff":-9999}],"text_offset":[40,41]}`, string(raw))
	require.JSONEq(t, `{"content":[{"token":"a","logprob":-9999,"bytes":[97],"top_logprobs":[]},
		{"token":"\ufffd","logprob":-9999,"bytes":[226,128],"top_logprobs":[
			{"token":"\ufffd","logprob":-1e-7,"bytes":[226,128]},{"token":"\ufffd","logprob":-9999,"bytes":[255]}]}],
		"refusal":null}`, string(appendChatLogprobs(nil, tokens)))
}

func TestInternalErrorsKeepTheirWords(t *testing.T) {
	require.Equal(t, "internal error", api.AsError(io.ErrUnexpectedEOF).Message)
	require.Equal(t, api.CodeTimeout, api.AsError(context.DeadlineExceeded).Code)
	e := api.Invalid("n", "n: too <many> & more")
	require.Same(t, e, api.AsError(e))
	require.Equal(t, `{"error":{"message":"n: too <many> & more","type":"invalid_request_error","param":"n","code":"invalid_value"}}`,
		string(EncodeError(e)))
}

func TestChunksAllocateNothingPerToken(t *testing.T) {
	c := NewChunks(&call.Call{ID: "chatcmpl-x", N: 1, Model: "m", Requests: []*api.Request{{}}}, "fp")
	ev := api.Event{Text: " hello\n", Tokens: []int32{5}, Logprobs: []api.TokenLogprob{{Text: "a", Bytes: []byte("a"), Logprob: -1.5}}}
	c.Encode(ev)
	require.Zero(t, testing.AllocsPerRun(100, func() { c.Encode(ev) }))
}

func BenchmarkChunk(b *testing.B) {
	c := NewChunks(&call.Call{ID: "chatcmpl-0123456789abcdef0123456789abcdef", N: 1, Model: "tiny-chat",
		Requests: []*api.Request{{}}}, "fp_cpu")
	ev := api.Event{Text: " capital", Tokens: []int32{5}}
	b.ReportAllocs()
	for b.Loop() {
		c.Encode(ev)
	}
}
