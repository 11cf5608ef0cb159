package e2e_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/http/httpserver"
	"github.com/millrace/millrace/compute/computetest"
)

// discarded is an answer of which only the status is kept.
type discarded struct {
	header http.Header
	status int
}

func (d *discarded) Header() http.Header         { return d.header }
func (d *discarded) WriteHeader(status int)      { d.status = status }
func (d *discarded) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkRefusal refuses requests because the queue is full. It covers what the server does for a
// refused request, without the work of net/http.
func BenchmarkRefusal(b *testing.B) {
	device := &pacedDevice{Null: computetest.NewNull(4096, 4096, 300), step: 100 * time.Millisecond}
	p, s := boundedServer(b, device, 1, 1, httpapi.Options{Logger: zerolog.New(io.Discard)}, httpserver.Limits{}, nil, nil)
	for _, id := range []string{"runs", "waits"} {
		r := &api.Request{ID: id, Model: "m", PromptTokens: []int32{1, 2, 3}, TopLogprobs: -1, N: 1, MaxTokens: 4000, IgnoreEOS: true}
		ctx, cancel := context.WithCancel(b.Context())
		stream, err := p.Submit(ctx, r)
		require.NoError(b, err)
		b.Cleanup(func() { stream.Close(); cancel() })
	}
	body := `{"model":"m","prompt":"` + strings.Repeat("the old man went down to river and saw a bear ", 8) +
		`","max_tokens":64,"temperature":0,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true}`
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(body))
		r.Host = "localhost"
		w := &discarded{header: http.Header{}}
		s.Config.Handler.ServeHTTP(w, r)
		if w.status != http.StatusTooManyRequests {
			b.Fatalf("status %d", w.status)
		}
	}
}
