package httpapi_test

import (
	"errors"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
)

var created = regexp.MustCompile(`"created":\d+`)

func atoi(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	require.NoError(t, err)
	return n
}

func get(t *testing.T, url string) (int, http.Header, string) {
	t.Helper()
	resp, err := http.Get(url)
	require.NoError(t, err)
	defer resp.Body.Close()
	return resp.StatusCode, resp.Header, read(t, resp)
}

func TestModelsAreListedAndFoundByName(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	card := `{"id":"tiny-chat","object":"model","created":1700000000,"owned_by":"millrace","max_model_len":512,
		"default_sampling":{"temperature":0,"top_p":0,"top_k":0,"min_p":0,"repetition_penalty":1}}`
	_, _, body := get(t, srv.URL+"/v1/models")
	require.JSONEq(t, `{"object":"list","data":[`+card+`]}`, body)
	_, _, body = get(t, srv.URL+"/v1/models/tiny-chat")
	require.JSONEq(t, card, body)
	code, _, body := get(t, srv.URL+"/v1/models/org/other")
	require.Equal(t, 404, code)
	require.Contains(t, body, `"code":"model_not_found"`)
}

func TestTokenizeAndDetokenizeAreInverse(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	resp := post(t, srv, "/tokenize", `{"prompt":"Aé","add_special_tokens":false}`)
	require.JSONEq(t, `{"count":3,"max_model_len":512,"tokens":[65,195,169]}`, read(t, resp))
	resp = post(t, srv, "/detokenize", `{"tokens":[65,195,169]}`)
	require.JSONEq(t, `{"prompt":"Aé"}`, read(t, resp))
	resp = post(t, srv, "/tokenize", `{"messages":[{"role":"user","content":"A"}]}`)
	require.JSONEq(t, `{"count":1,"max_model_len":512,"tokens":[65]}`, read(t, resp))
	resp = post(t, srv, "/tokenize", `{"prompt":""}`)
	require.JSONEq(t, `{"count":1,"max_model_len":512,"tokens":[1]}`, read(t, resp))
	require.Equal(t, 400, post(t, srv, "/detokenize", `{"tokens":[999]}`).StatusCode)
}

func TestHealthSaysWhyItIsNotReady(t *testing.T) {
	e := apitest.New(nil)
	srv := serve(t, e, httpapi.Options{})
	code, _, _ := get(t, srv.URL+"/health/ready")
	require.Equal(t, 200, code)
	e.NotReady = errors.New("no step for 31 s")
	code, h, body := get(t, srv.URL+"/health/ready")
	require.Equal(t, 503, code)
	require.Equal(t, "1", h.Get("Retry-After"))
	require.Contains(t, body, "no step for 31 s")
	code, _, _ = get(t, srv.URL+"/health/live")
	require.Equal(t, 200, code)
}

func TestUnknownPathsAndWrongMethodsAnswerInTheSameShape(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	code, _, body := get(t, srv.URL+"/v1/chat/completion")
	require.Equal(t, 404, code)
	require.JSONEq(t, `{"error":{"message":"unknown path: GET /v1/chat/completion","type":"invalid_request_error",
		"param":null,"code":"unknown_url"}}`, body)
	code, h, body := get(t, srv.URL+"/v1/chat/completions")
	require.Equal(t, 405, code)
	require.Equal(t, "POST", h.Get("Allow"))
	require.Contains(t, body, `"code":"method_not_allowed"`)
	require.Equal(t, 405, post(t, srv, "/v1/models", "{}").StatusCode)
}

func TestTheRequestIDIsKeptWhenFitAndMadeOtherwise(t *testing.T) {
	srv := serve(t, apitest.New(nil), httpapi.Options{})
	for given, kept := range map[string]bool{
		"abc-1_2.3": true, "": false, "a b": false, "a\tb": false, "é": false, strings.Repeat("x", 129): false,
	} {
		req, err := http.NewRequest("GET", srv.URL+"/v1/models", nil)
		require.NoError(t, err)
		req.Header.Set("X-Request-Id", given)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		got := resp.Header.Get("X-Request-Id")
		require.Equal(t, kept, got == given, "given %q, got %q", given, got)
		require.NotEmpty(t, got)
	}
}

func TestMountsCannotHideAPath(t *testing.T) {
	h := http.NotFoundHandler()
	_, err := httpapi.New(apitest.New(nil), httpapi.Options{Mounts: map[string]http.Handler{"/v1/models": h}})
	require.Error(t, err)
	_, err = httpapi.New(apitest.New(nil), httpapi.Options{Mounts: map[string]http.Handler{"debug": h}})
	require.Error(t, err)
	srv := serve(t, apitest.New(nil), httpapi.Options{Mounts: map[string]http.Handler{
		"/debug/kv": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("kv")) })}})
	_, _, body := get(t, srv.URL+"/debug/kv")
	require.Equal(t, "kv", body)
}
