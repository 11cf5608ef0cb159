package batchapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/objects"
	"github.com/millrace/millrace/e2e/natstest"
)

// world serves the routes. The header Tenant is the caller's tenant.
type world struct {
	t    *testing.T
	http *httptest.Server
}

func newWorld(t *testing.T) *world {
	nc := natstest.Connect(t, natstest.Start(t, &natsserver.Options{JetStream: true}))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	work, err := batch.OpenWork(t.Context(), nc, js, 16<<20)
	require.NoError(t, err)
	files, err := objects.Open(t.Context(), nc, objects.Options{Bucket: "MILLRACE_FILES", Noun: "file", Keep: 30 * 24 * time.Hour,
		MaxBytes: 64 << 20})
	require.NoError(t, err)
	engine := apitest.New(apitest.Say("x"))
	b, err := batch.Open(t.Context(), nc, batch.Options{Logger: zerolog.Nop(), Engine: engine, Calls: call.NewDirect(engine), Files: files,
		JetStream: js, Work: work,
		MaxBytes: 16 << 20, Room: func() int { return 4 }})
	require.NoError(t, err)
	mux := http.NewServeMux()
	for _, r := range Routes(files, b) {
		mux.HandleFunc(r.Path, func(w http.ResponseWriter, q *http.Request) {
			if !strings.Contains(r.Methods, q.Method) {
				w.WriteHeader(http.StatusMethodNotAllowed)
				return
			}
			tenant := q.Header.Get("Tenant")
			if err := r.Handle(w, q.WithContext(api.WithCaller(q.Context(), apitest.Key{ID: tenant, Tenant: tenant}))); err != nil {
				w.WriteHeader(int(api.AsError(err).Code))
				fmt.Fprint(w, err)
			}
		})
	}
	w := &world{t: t, http: httptest.NewServer(mux)}
	t.Cleanup(func() {
		w.http.Close()
		b.Close()
		files.Close()
	})
	return w
}

// do sends a request and returns the answer's status and body.
func (w *world) do(method, tenant, path, kind string, body io.Reader) (int, string) {
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, body)
	require.NoError(w.t, err)
	r.Header.Set("Tenant", tenant)
	r.Header.Set("Content-Type", kind)
	answer, err := http.DefaultClient.Do(r)
	require.NoError(w.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(w.t, err)
	return answer.StatusCode, string(text)
}

// encodeForm encodes fields in their order; "file" is the file.
func encodeForm(t *testing.T, fields ...string) (body []byte, kind string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	for i := 0; i < len(fields); i += 2 {
		if fields[i] != "file" {
			require.NoError(t, w.WriteField(fields[i], fields[i+1]))
			continue
		}
		part, err := w.CreateFormFile("file", "requests.jsonl")
		require.NoError(t, err)
		_, err = io.WriteString(part, fields[i+1])
		require.NoError(t, err)
	}
	require.NoError(t, w.Close())
	return b.Bytes(), w.FormDataContentType()
}

func (w *world) upload(tenant string, fields ...string) (int, batches.File) {
	body, kind := encodeForm(w.t, fields...)
	status, text := w.do("POST", tenant, "/v1/files", kind, bytes.NewReader(body))
	var f batches.File
	if status == http.StatusOK {
		require.NoError(w.t, json.Unmarshal([]byte(text), &f))
	}
	return status, f
}

func TestAFileIsStoredWhateverTheOrderOfTheForm(t *testing.T) {
	w := newWorld(t)
	for _, fields := range [][]string{
		{"purpose", "batch", "file", "content"},
		{"file", "content", "purpose", "batch"},
		{"expires_after[anchor]", "created_at", "file", "content", "expires_after[seconds]", "3600", "purpose", "batch"},
	} {
		status, f := w.upload("a", fields...)
		require.Equal(t, 200, status)
		keep := int64(30 * 24 * 3600)
		if len(fields) > 4 {
			keep = 3600
		}
		require.Equal(t, batches.File{ID: f.ID, Object: "file", Bytes: 7, CreatedAt: f.CreatedAt, ExpiresAt: f.CreatedAt + keep,
			Filename: "requests.jsonl", Purpose: "batch", Status: "processed"}, f)
		status, text := w.do("GET", "a", "/v1/files/"+f.ID, "", nil)
		require.Equal(t, 200, status)
		want, err := json.Marshal(f)
		require.NoError(t, err)
		require.JSONEq(t, string(want), text)
		_, text = w.do("GET", "a", "/v1/files/"+f.ID+"/content", "", nil)
		require.Equal(t, "content", text)
	}
}

func TestABadFormStoresNothing(t *testing.T) {
	w := newWorld(t)
	for want, fields := range map[string][]string{
		"400 purpose":                  {"file", "content"},
		"400 purpose ":                 {"purpose", "fine-tune", "file", "content"},
		"400 purpose  ":                {"file", "content", "purpose", "vision"},
		"400 file":                     {"purpose", "batch"},
		"400 file ":                    {"purpose", "batch", "file", "one", "file", "two"},
		"400 expires_after[anchor]":    {"purpose", "batch", "expires_after[anchor]", "now", "file", "content"},
		"400 expires_after[seconds]":   {"purpose", "batch", "file", "content", "expires_after[seconds]", "5"},
		"400 expires_after[seconds] ":  {"purpose", "batch", "file", "content", "expires_after[seconds]", "9223372036854775807"},
		"400 expires_after[seconds]  ": {"purpose", "batch", "file", "content", "expires_after[seconds]", "soon"},
		"400 found a field":            {"purpose", strings.Repeat("x", 5000), "file", "content"},
	} {
		body, kind := encodeForm(t, fields...)
		status, text := w.do("POST", "a", "/v1/files", kind, bytes.NewReader(body))
		require.True(t, strings.HasPrefix(fmt.Sprint(status, " ", text), strings.TrimRight(want, " ")), "%s: %d %s", want, status, text)
	}
	body, kind := encodeForm(t, "purpose", "batch", "file", strings.Repeat("x", 10_000))
	status, text := w.do("POST", "a", "/v1/files", kind, bytes.NewReader(body[:8000]))
	require.Equal(t, 400, status, text)
	status, text = w.do("POST", "a", "/v1/files", "application/json", strings.NewReader("{}"))
	require.Equal(t, 400, status, text)
	_, text = w.do("GET", "a", "/v1/files", "", nil)
	require.JSONEq(t, `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`, text)
}

func TestAListHasPages(t *testing.T) {
	w := newWorld(t)
	for range 5 {
		status, _ := w.upload("a", "purpose", "batch", "file", "x")
		require.Equal(t, 200, status)
	}
	var seen []string
	for after := ""; ; {
		_, text := w.do("GET", "a", "/v1/files?limit=2&after="+after, "", nil)
		var list batches.FileList
		require.NoError(t, json.Unmarshal([]byte(text), &list), text)
		for _, f := range list.Data {
			seen = append(seen, f.ID)
		}
		require.Equal(t, seen[len(seen)-1], *list.LastID)
		if !list.HasMore {
			break
		}
		after = *list.LastID
	}
	require.Len(t, seen, 5)
	_, text := w.do("GET", "a", "/v1/files?order=asc", "", nil)
	require.Less(t, strings.Index(text, seen[4]), strings.Index(text, seen[0]))
	for _, bad := range []string{"limit=0", "limit=x", "limit=10001", "after=nobody", "order=up"} {
		status, _ := w.do("GET", "a", "/v1/files?"+bad, "", nil)
		require.Equal(t, 400, status, bad)
	}
}

func TestFilesAndBatchesOfAnotherTenantDoNotExist(t *testing.T) {
	w := newWorld(t)
	_, f := w.upload("a", "purpose", "batch", "file", `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"prompt":"x"}}`)
	request := `{"input_file_id":"` + f.ID + `","endpoint":"/v1/completions","completion_window":"24h","metadata":{"k":"v"}}`
	status, text := w.do("POST", "a", "/v1/batches", "application/json", strings.NewReader(request))
	require.Equal(t, 200, status, text)
	var b batches.Batch
	require.NoError(t, json.Unmarshal([]byte(text), &b))
	require.Equal(t, map[string]string{"k": "v"}, b.Metadata)
	status, _ = w.do("DELETE", "a", "/v1/files/"+f.ID, "", nil)
	require.Contains(t, []int{409, 200}, status, "the batch may have ended")
	for path, method := range map[string]string{
		"/v1/files/" + f.ID: "GET", "/v1/files/" + f.ID + "/content": "GET", "/v1/batches/" + b.ID: "GET",
		"/v1/batches/" + b.ID + "/cancel": "POST",
	} {
		status, text := w.do(method, "b", path, "", nil)
		require.Equal(t, 404, status, text)
	}
	status, _ = w.do("DELETE", "b", "/v1/files/"+f.ID, "", nil)
	require.Equal(t, 404, status)
	status, _ = w.do("POST", "b", "/v1/batches", "application/json", strings.NewReader(request))
	require.Equal(t, 404, status)
	_, text = w.do("GET", "b", "/v1/batches", "", nil)
	require.JSONEq(t, `{"object":"list","data":[],"first_id":null,"last_id":null,"has_more":false}`, text)
	require.Eventually(t, func() bool {
		_, text = w.do("GET", "a", "/v1/batches/"+b.ID, "", nil)
		return strings.Contains(text, `"status":"completed"`)
	}, time.Minute, 20*time.Millisecond)
}

func TestABadBatchNamesItsField(t *testing.T) {
	w := newWorld(t)
	for body, field := range map[string]string{
		`{`:                          "the body",
		`{"input_file_id":1}`:        "input_file_id",
		`{"completion_window":"x"}`:  "completion_window",
		`{"completion_window":"5m"}`: "endpoint",
		`{"completion_window":"5m","endpoint":"/v1/completions"}`:                        "completion_window",
		`{"completion_window":"24h","endpoint":"/v1/files"}`:                             "endpoint",
		`{"completion_window":"24h","metadata":{"` + strings.Repeat("k", 65) + `":"v"}}`: "metadata",
	} {
		status, text := w.do("POST", "a", "/v1/batches", "application/json", strings.NewReader(body))
		require.Equal(t, 400, status, body)
		require.True(t, strings.HasPrefix(text, field), "%s: %s", body, text)
	}
	status, _ := w.do("POST", "a", "/v1/batches", "application/json", strings.NewReader(strings.Repeat(" ", 100_000)))
	require.Equal(t, 413, status)
}

func TestAServerWithoutAStoreSaysSo(t *testing.T) {
	for _, r := range Routes(nil, nil) {
		err := r.Handle(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		require.Equal(t, api.CodeInvalid, api.AsError(err).Code)
	}
}
