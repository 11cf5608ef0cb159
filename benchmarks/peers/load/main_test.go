package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// serve answers each request with events.
func serve(t *testing.T, status int, events ...string) (url string, prompts func() []string) {
	t.Helper()
	seen := make(chan string, 100)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(err)
		}
		seen <- string(body)
		w.WriteHeader(status)
		for _, e := range events {
			fmt.Fprintf(w, "data: %s\n\n", e)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string {
		close(seen)
		var all []string
		for p := range seen {
			all = append(all, p)
		}
		return all
	}
}

func TestItCountsTheServersTokensAndTheStreamsEvents(t *testing.T) {
	url, prompts := serve(t, 200, `{"choices":[{"text":"a"}]}`, `{"choices":[{"text":"b"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, "[DONE]")
	r, err := run(t.Context(), &options{url: url, clients: 3, requests: 5, words: 4, tokens: 2, turns: 1})
	require.NoError(t, err)
	require.Equal(t, 5, r.Requests)
	require.Equal(t, 10, r.Tokens)
	require.InDelta(t, 7, r.PromptTokens, 1e-9)
	require.Positive(t, r.TTFT50)
	require.GreaterOrEqual(t, r.TTFT99, r.TTFT50)

	different := map[string]bool{}
	for _, p := range prompts() {
		different[p] = true
	}
	require.Len(t, different, 5, "each prompt is a new one")
}

func TestATurnSendsWhatCameBeforeIt(t *testing.T) {
	url, prompts := serve(t, 200, `{"choices":[{"text":" ab"}]}`, `{"choices":[{"text":" cd"}]}`,
		`{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}`, "[DONE]")
	r, err := run(t.Context(), &options{url: url, clients: 1, requests: 6, words: 4, tokens: 2, turns: 3})
	require.NoError(t, err)
	require.Equal(t, 6, r.Requests)
	require.Positive(t, r.LaterTTFT50)
	sent := prompts()
	require.Len(t, sent, 6)
	for i, body := range sent {
		var b struct{ Prompt string }
		require.NoError(t, json.Unmarshal([]byte(body), &b))
		sent[i] = b.Prompt
		if i%3 > 0 {
			require.True(t, strings.HasPrefix(b.Prompt, sent[i-1]+" ab cd "), "turn %d sends %q after %q", i%3, b.Prompt, sent[i-1])
			require.Len(t, strings.Fields(b.Prompt), 4+i%3*(2+turnWords))
		}
	}
	require.NotEqual(t, sent[0], sent[3])

	_, err = run(t.Context(), &options{url: url, clients: 1, requests: 5, words: 4, tokens: 2, turns: 3})
	require.ErrorContains(t, err, "expected whole conversations")
}

func TestAnAnswerThatIsNotWholeIsAnError(t *testing.T) {
	tests := []struct {
		name, want string
		status     int
		events     []string
	}{
		{"refused", "429", 429, nil},
		{"cut", "unexpected EOF", 200, []string{`{"choices":[{"text":"a"}]}`}},
		{"too few tokens", "found 1, expected 2", 200, []string{`{"usage":{"completion_tokens":1}}`, "[DONE]"}},
		{"no usage", "found 0, expected 2", 200, []string{`{"choices":[]}`, "[DONE]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			url, _ := serve(t, tt.status, tt.events...)
			_, err := run(t.Context(), &options{url: url, clients: 2, requests: 4, words: 4, tokens: 2, turns: 1})
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestPercentileIsAValueThatWasMeasured(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	require.InDelta(t, 3, percentile(v, 50), 0)
	require.InDelta(t, 5, percentile(v, 99), 0)
	require.Zero(t, percentile(nil, 50))
	require.Len(t, strings.Fields(prompt(120, 1, 2)), 120)
}
