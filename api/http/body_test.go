package httpapi_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
)

func gzipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, err := io.WriteString(z, text)
	require.NoError(t, err)
	require.NoError(t, z.Close())
	return b.Bytes()
}

func TestACompressedBodyIsReadOrRefused(t *testing.T) {
	const limit = 64 << 10
	srv := serve(t, apitest.New(apitest.Say("Hi")), httpapi.Options{MaxBody: limit})
	zip := gzipped(t, hello+"}")
	for _, c := range []struct {
		encoding string
		body     []byte
		status   int
		want     string
	}{
		{"gzip", zip, 200, `"content":"Hi"`}, {" GZIP", zip, 200, `"content":"Hi"`}, {"x-gzip", zip, 200, "Hi"},
		{"identity", []byte(hello + "}"), 200, "Hi"}, {"gzip", []byte(hello + "}"), 400, "not gzip"},
		{"gzip", zip[:len(zip)-3], 400, "not gzip"}, {"gzip", nil, 400, "not gzip"}, {"", zip, 400, "not UTF-8"},
		{"gzip", gzipped(t, strings.Repeat(" ", limit+1)), 413, "found a body larger than 65536 bytes"},
		{"gzip", gzipped(t, strings.Repeat(" ", limit-len(hello)-1)+hello+"}"), 200, "Hi"},
		{"deflate", zip, 415, `found a body with Content-Encoding \"deflate\", expected gzip or none`},
		{"br", nil, 415, "unsupported_encoding"}, {"gzip, gzip", zip, 415, "unsupported_encoding"},
	} {
		for _, path := range []string{"/v1/chat/completions", "/api/chat", "/v1/messages"} {
			req, err := http.NewRequest("POST", srv.URL+path, bytes.NewReader(c.body))
			require.NoError(t, err)
			req.Header.Set("Content-Encoding", c.encoding)
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			text := read(t, resp)
			require.NoError(t, resp.Body.Close())
			switch {
			case path == "/v1/chat/completions":
				require.Equal(t, c.status, resp.StatusCode, "%q: %s", c.encoding, text)
				require.Contains(t, text, c.want)
			case c.status != 200:
				require.Equal(t, c.status, resp.StatusCode, "%q: %s", c.encoding, text)
				require.NotContains(t, text, `"param"`, "the form of the API")
			}
			if c.status == 415 {
				require.Equal(t, "gzip", resp.Header.Get("Accept-Encoding"))
			}
		}
	}
}

// TestABodyAboveTheLimitIsA413 also for a client that writes all of it before it reads.
func TestABodyAboveTheLimitIsA413(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{MaxBody: 1 << 10})
	for _, length := range []int64{24 << 20, -1} { // -1: chunked
		for path, want := range map[string]string{"/v1/chat/completions": "request_too_large",
			"/api/embed": `{"error":"found a body larger`, "/v1/messages": "request_too_large"} {
			req, err := http.NewRequest("POST", srv.URL+path, io.LimitReader(zeros{}, 24<<20))
			require.NoError(t, err)
			req.ContentLength = length
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			require.Equal(t, 413, resp.StatusCode)
			require.Contains(t, read(t, resp), want)
			require.NoError(t, resp.Body.Close())
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
