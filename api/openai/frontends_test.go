package openai_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/openai"
)

func TestHealthAnswersWhereOtherServersHaveIt(t *testing.T) {
	e := apitest.New(nil)
	srv := serve(t, e, openai.Options{Version: "1.2.3"})
	for _, path := range []string{"/health", "/v1/health", "/ping", "/health/"} {
		e.NotReady = nil
		code, _, body := get(t, srv.URL+path)
		require.Equal(t, 200, code, path)
		require.JSONEq(t, `{"status":"ok"}`, body)
		head, err := http.Head(srv.URL + path)
		require.NoError(t, err)
		head.Body.Close()
		require.Equal(t, 200, head.StatusCode)
		e.NotReady = errors.New("no step for 31 s")
		code, h, body := get(t, srv.URL+path)
		require.Equal(t, 503, code, path)
		require.Equal(t, "1", h.Get("Retry-After"))
		require.Contains(t, body, "no step for 31 s")
	}
	e.NotReady = nil
	_, _, body := get(t, srv.URL+"/version")
	require.JSONEq(t, `{"version":"1.2.3"}`, body)
}

func TestSlashesOfJoinedURLsChangeNoPath(t *testing.T) {
	srv := serve(t, apitest.New(apitest.Say("Hi")), openai.Options{})
	_, _, list := get(t, srv.URL+"/v1/models")
	for _, path := range []string{"/v1/models/", "//v1/models", "/v1//models//", "/v1/models/?limit=1"} {
		code, _, body := get(t, srv.URL+path)
		require.Equal(t, 200, code, path)
		require.JSONEq(t, list, body, path)
	}
	for _, path := range []string{"/v1/models/tiny-chat/", "//v1/models/tiny-chat"} {
		_, _, body := get(t, srv.URL+path)
		require.Contains(t, body, `"id":"tiny-chat","object":"model"`, path)
	}
	code, _, body := get(t, srv.URL+"/v1/models/org%2Fother/")
	require.Equal(t, 404, code)
	require.Contains(t, body, "org/other")
	for _, path := range []string{"/v1/chat/completions/", "//v1/chat/completions", "/api/chat/"} {
		require.Equal(t, 200, post(t, srv, path, hello+`,"stream":false}`).StatusCode, path)
	}
}

func TestAnUnknownPathHasTheErrorOfItsAPI(t *testing.T) {
	srv := serve(t, apitest.New(nil), openai.Options{})
	for path, want := range map[string]string{
		"/api/pull": `{"error":"unknown path: POST /api/pull"}`, "/api/delete/": `{"error":"unknown path: POST /api/delete"}`, "/api": `{"error":"unknown path`,
		"/api/blobs/sha256:0": `{"error":"unknown path`, "/v1/messages/batches": `{"type":"error","error":{"type":"not_found_error","message":"unknown path`,
		"/v1/messagesx": `{"error":{"message":"unknown path`, "/apis": `{"error":{"message":"unknown path`, "/v1/assistants": `{"error":{"message":"unknown path`,
	} {
		resp := post(t, srv, path, "{}")
		require.Equal(t, 404, resp.StatusCode, path)
		require.True(t, strings.HasPrefix(read(t, resp), want), path)
	}
	resp := post(t, srv, "/api/tags", "{}")
	require.Equal(t, 405, resp.StatusCode)
	require.JSONEq(t, `{"error":"found method POST at /api/tags, expected GET"}`, read(t, resp))
}
