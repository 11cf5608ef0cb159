package httpapi_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
)

// TestErrorsRepeatLittleAndLogsNothing of what a client sent: a prompt of a wrong type is in no log, and a long name comes back as 64
// characters.
func TestErrorsRepeatLittleAndLogsNothing(t *testing.T) {
	var log bytes.Buffer
	e := apitest.New(apitest.Say("Hi"))
	h, err := httpapi.New(e, httpapi.Options{Logger: zerolog.New(&log).Level(zerolog.TraceLevel)})
	require.NoError(t, err)
	srv := newServer(t, h, e)
	secret := "swordfish"
	long := secret + strings.Repeat("x", 1<<17)
	for path, bodies := range map[string][]string{
		"/v1/chat/completions": {
			`{"model":"%s","messages":[{"role":"user","content":"hi"}]}`, `{"messages":[{"role":"%s","content":"hi"}]}`,
			`{"messages":[{"role":"user","content":{"text":"%s"}}]}`,
			`{"messages":[{"role":"user","content":[{"type":"%s"}]}]}`, `{"messages":"%s"}`, `{"messages":["%s"]}`,
			`{"messages":[{"role":"user","content":"a"}],"tools":[{"type":"%s"}],"tool_choice":"required"}`,
			`{"messages":[{"role":"user","content":"a"}],"tool_choice":{"type":"%s"}}`,
			`{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"%s"}}`,
			`{"messages":[{"role":"user","content":"a"}],"logit_bias":{"%s":1}}`,
			`{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"%s"}`,
			`{"messages":[{"role":"user","content":"a"}],"temperature":"%s"}`,
			`{"messages":[{"role":"user","content":"a"}],"logit_bias":{"000000%[2]s":101}}`,
			`{"messages":[{"role":"user","content":"a"}],"stop":{"a":"%s"}}`,
		},
		"/v1/completions": {`{"prompt":{"text":"%s"}}`, `{"prompt":[{"text":"%s"}]}`, `{"prompt":[["%s"]]}`, `{"model":"%s","prompt":"a"}`,
			`{"prompt":"a","suffix":{"a":"%s"}}`},
		"/v1/embeddings": {`{"input":{"text":"%s"}}`, `{"input":"a","encoding_format":"%s"}`, `{"input":[{"a":"%s"}]}`},
		"/v1/rerank": {`{"query":{"text":"%s"},"documents":["a"]}`, `{"query":"a","documents":[{"a":"%s"}]}`,
			`{"query":"a","documents":{"a":"%s"}}`},
		"/v1/score": {`{"text_1":{"a":"%s"},"text_2":"b"}`, `{"text_1":"a","text_2":{"a":"%s"}}`},
		"/v1/messages": {`{"model":"%s","max_tokens":5,"messages":[{"role":"user","content":"a"}]}`,
			`{"max_tokens":5,"messages":[{"role":"%s","content":"a"}]}`,
			`{"max_tokens":5,"messages":[{"role":"user","content":[{"type":"%s"}]}]}`,
			`{"max_tokens":5,"messages":[{"role":"user","content":{"a":"%s"}}]}`,
			`{"max_tokens":5,"system":{"a":"%s"},"messages":[]}`,
			`{"max_tokens":"%s","messages":[{"role":"user","content":"a"}]}`},
		"/v1/responses": {`{"input":{"text":"%s"}}`, `{"input":[{"type":"%s"}]}`, `{"input":[{"role":"user","content":[{"type":"%s"}]}]}`,
			`{"model":"%s","input":"a"}`, `{"input":"a","text":{"format":{"type":"%s"}}}`, `{"input":"a","truncation":"%s"}`},
		"/api/chat": {`{"model":"%s","messages":[{"role":"user","content":"a"}]}`,
			`{"model":"tiny-chat","messages":[{"role":"%s","content":"a"}]}`, `{"messages":[{"role":"user","content":{"a":"%s"}}]}`,
			`{"messages":[{"role":"user","content":"a"}],"think":"%s"}`, `{"messages":[{"role":"user","content":"a"}],"format":"%s"}`,
			`{"messages":[{"role":"user","content":"a"}],"options":{"num_predict":"%s"}}`,
			`{"messages":[{"role":"user","content":"a"}],"options":{"temperature":"%s"}}`},
		"/api/generate": {`{"model":"%s","prompt":"a"}`, `{"prompt":{"a":"%s"}}`, `{"prompt":"a","images":["%s"]}`,
			`{"prompt":"a","template":"%s"}`},
		"/api/show":      {`{"model":"%s"}`},
		"/tokenize":      {`{"prompt":{"a":"%s"}}`, `{"model":"%s","prompt":"a"}`},
		"/detokenize":    {`{"tokens":["%s"]}`, `{"tokens":"%s"}`},
		"/v1/nothing/%s": {`{}`},
		"/api/%s":        {`{}`},
		"/v1/streams/%s": {`{}`},
		"/v1/chat/%s":    {`{}`},
	} {
		if strings.Contains(path, "%s") {
			path = fmt.Sprintf(path, long[:4000])
		}
		for _, body := range bodies {
			body = strings.NewReplacer("%[2]s", strings.Repeat("0", 1<<17), "%s", long).Replace(body)
			resp := post(t, srv, path, body)
			text := read(t, resp)
			require.GreaterOrEqual(t, resp.StatusCode, 400, "%s %.100s", path[:min(30, len(path))], body)
			require.Less(t, resp.StatusCode, 500, "%s %.100s %.200s", path[:min(30, len(path))], body, text)
			require.Less(t, len(text), 700, "%.90s: %.300s", body, text)
			require.NotContains(t, text, strings.Repeat("x", 65), "%.90s", body)
			require.NotContains(t, text, strings.Repeat("0", 65), "%.90s", body)
		}
	}
	req, err := http.NewRequest("GET", srv.URL+"/v1/models", nil)
	require.NoError(t, err)
	req.Method = "GETT"
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	srv.Close()
	for line := range strings.Lines(log.String()) {
		require.Less(t, len(line), 700, "%.300s", line)
		if !strings.Contains(line, `"path":"/v1/nothing/`) && !strings.Contains(line, `"path":"/api/sw`) &&
			!strings.Contains(line, `"path":"/v1/streams`) && !strings.Contains(line, `"path":"/v1/chat/sw`) {
			require.NotContains(t, line, secret)
		}
	}
	require.Contains(t, log.String(), `"error":"400: messages[0].role"`)
	require.Contains(t, log.String(), `"error":"404 model_not_found: model"`)
}
