package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"time"
)

var storageAttacks = []attack{
	{"storage: read, cancel and delete another tenant's files, batches and responses", "keys", foreignStorage},
	{"storage: endless uploads", "keys", endlessUploads},
	{"storage: slow uploads", "keys", slowUploads},
	{"storage: forms that are no upload, and files that are no batch", "keys", badUploads},
	{"storage: thousands of batches and responses", "keys", manyBatches},
}

// batchStore is the --batch-store of the targets. Half of it is for files, and each of three tenants has a third of that.
const batchStore = 96 << 20

// form returns a form with a file, and its content type.
func form(content string) (body []byte, kind string) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("purpose", "batch") // a buffer takes everything
	part, _ := w.CreateFormFile("file", "requests.jsonl")
	_, _ = io.WriteString(part, content)
	_ = w.Close()
	return b.Bytes(), w.FormDataContentType()
}

// upload stores a file and returns the answer.
func (t *target) upload(ctx context.Context, key, content string) (int, []byte, error) {
	body, kind := form(content)
	return t.do(ctx, http.MethodPost, key, "/v1/files", body, http.Header{"Content-Type": {kind}})
}

// idOf returns the id of an answer with status 200.
func idOf(status int, body []byte, err error) (string, error) {
	var answer struct{ ID string }
	if err == nil && (status != http.StatusOK || json.Unmarshal(body, &answer) != nil || answer.ID == "") {
		err = fmt.Errorf("found status %d: %.200s, expected an object with an id", status, body)
	}
	return answer.ID, err
}

const goodLine = `{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"tiny-chat","prompt":"x","max_tokens":4}}` + "\n"

// foreignStorage tries every path of a stored object of the victim with the attacker's key.
func foreignStorage(ctx context.Context, _ *suite, t *target) (string, error) {
	file, err := idOf(t.upload(ctx, t.keys[victim], goodLine))
	if err != nil {
		return "", err
	}
	batch, err := idOf(t.post(ctx, t.keys[victim], "/v1/batches",
		fields{"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}))
	if err != nil {
		return "", err
	}
	response, err := idOf(t.post(ctx, t.keys[victim], "/v1/responses",
		fields{"model": "tiny-chat", "input": "secret", "max_output_tokens": 4}))
	if err != nil {
		return "", err
	}
	tries := 0
	for _, try := range []struct {
		method, path string
		body         any
	}{
		{"GET", "/v1/files/" + file, nil}, {"GET", "/v1/files/" + file + "/content", nil}, {"DELETE", "/v1/files/" + file, nil},
		{"POST", "/v1/batches", fields{"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}},
		{"GET", "/v1/batches/" + batch, nil}, {"POST", "/v1/batches/" + batch + "/cancel", nil},
		{"GET", "/v1/responses/" + response, nil}, {"GET", "/v1/responses/" + response + "?stream=true", nil},
		{"GET", "/v1/responses/" + response + "/input_items", nil}, {"POST", "/v1/responses/" + response + "/cancel", nil},
		{"DELETE", "/v1/responses/" + response, nil},
		{"POST", "/v1/responses", fields{"model": "tiny-chat", "input": "what did I say?", "previous_response_id": response,
			"max_output_tokens": 4}},
	} {
		for key, want := range map[string]int{t.keys[attacker]: http.StatusNotFound, "": http.StatusUnauthorized} {
			var text []byte
			if try.body != nil {
				if text, err = json.Marshal(try.body); err != nil {
					return "", err
				}
			}
			status, body, err := t.do(ctx, try.method, key, try.path, text, nil)
			if err != nil || status != want {
				return "", errors.Join(err, fmt.Errorf("%s %s of another tenant: found status %d: %.200s, expected %d", try.method,
					try.path, status, body, want))
			}
			tries++
		}
	}
	for _, path := range []string{"/v1/files", "/v1/batches"} {
		_, body, err := t.get(ctx, t.keys[attacker], path)
		if err != nil || bytes.Contains(body, []byte(file)) || bytes.Contains(body, []byte(batch)) {
			return "", errors.Join(err, fmt.Errorf("%s lists what another tenant has: %.200s", path, body))
		}
	}
	status, body, err := t.get(ctx, t.keys[victim], "/v1/responses/"+response)
	if err != nil || status != http.StatusOK {
		return "", errors.Join(err, fmt.Errorf("the victim's response is gone: %d %.200s", status, body))
	}
	return fmt.Sprintf("%d tries: 404 and 401; nothing changed", tries), nil
}

// endless is a form whose file does not end.
type endless struct {
	head io.Reader
	n    int64
	most int64 // after which the attacker gives up
}

func (e *endless) Read(p []byte) (int, error) {
	if n, err := e.head.Read(p); err == nil {
		return n, nil
	}
	if e.n += int64(len(p)); e.n > e.most {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

// endlessUploads sends files without a length, and files that say a length above the limit.
func endlessUploads(ctx context.Context, _ *suite, t *target) (string, error) {
	const uploads, most = 6, 256 << 20
	full, kind := form("")
	head := string(full[:bytes.LastIndex(full, []byte("\r\n--"))])
	statuses, mu := map[int]int{}, sync.Mutex{}
	var all sync.WaitGroup
	for range uploads {
		all.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.http+"/v1/files",
				&endless{head: strings.NewReader(head), most: most})
			if err != nil {
				return
			}
			r.Header.Set("Content-Type", kind)
			r.Header.Set("Authorization", "Bearer "+t.keys[attacker])
			status := 0 // the connection was closed before the answer was read
			if answer, err := t.client.Do(r); err == nil {
				status = answer.StatusCode
				answer.Body.Close()
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	all.Wait()
	if statuses[http.StatusOK] > 0 {
		return "", fmt.Errorf("an endless upload was stored: %v", statuses)
	}
	status, body, err := t.do(ctx, http.MethodPost, t.keys[attacker], "/v1/files", nil, http.Header{"Content-Type": {kind}})
	if err != nil || status < 400 || status >= 500 {
		return "", errors.Join(err, fmt.Errorf("an empty form: found status %d: %.200s, expected 4xx", status, body))
	}
	if _, err := idOf(t.upload(ctx, t.keys[victim], goodLine)); err != nil {
		return "", fmt.Errorf("the victim has no room: %w", err)
	}
	return fmt.Sprintf("%d endless uploads: %v; the victim has room", uploads, statuses), nil
}

// slowUploads opens as many uploads as the server takes, each with a byte now and then. The victim's upload must pass meanwhile.
func slowUploads(ctx context.Context, _ *suite, t *target) (string, error) {
	const n = 40
	full, kind := form(strings.Repeat("x", 1000))
	begin := fmt.Sprintf("POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: %s\r\nContent-Length: %d\r\nAuthorization: Bearer %s\r\n\r\n", kind, len(full), t.keys[attacker])
	begin += string(full[:len(full)/2])
	done := make(chan struct{})
	var seen string
	var failed error
	go func() {
		defer close(done)
		seen, failed = manySlow(ctx, n, t.addr, slowKind{"slow uploads", begin, "x"})
	}()
	for uploaded := 0; ; uploaded++ {
		if _, err := idOf(t.upload(ctx, t.keys[victim], goodLine)); err != nil {
			return "", fmt.Errorf("the victim's upload beside slow ones: %w", err)
		}
		select {
		case <-done:
			return fmt.Sprintf("%s; %d uploads of the victim beside them", seen, uploaded+1), failed
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// badUploads sends forms and files that are wrong in every way.
func badUploads(ctx context.Context, _ *suite, t *target) (string, error) {
	good, kind := form(goodLine)
	tries := 0
	for what, try := range map[string]struct {
		body []byte
		kind string
	}{
		"no form":           {[]byte("{}"), "application/json"},
		"no boundary":       {good, "multipart/form-data"},
		"another boundary":  {good, "multipart/form-data; boundary=other"},
		"a form that ends":  {good[:len(good)/2], kind},
		"a field of 1 MiB":  {bytes.Replace(good, []byte("batch"), bytes.Repeat([]byte("b"), 1<<20), 1), kind},
		"another purpose":   {bytes.Replace(good, []byte("batch"), []byte("other"), 1), kind},
		"a thousand fields": {append(bytes.Repeat(good[:bytes.Index(good[2:], []byte("--"))+2], 1000), good...), kind},
	} {
		status, body, err := t.do(ctx, http.MethodPost, t.keys[attacker], "/v1/files", try.body, http.Header{"Content-Type": {try.kind}})
		if err != nil || status < 400 || status >= 500 {
			return "", errors.Join(err, fmt.Errorf("%s: found status %d: %.200s, expected 4xx", what, status, body))
		}
		tries++
	}
	for _, content := range []string{"", "\n", "{", strings.Repeat("{", 1<<20), strings.Repeat(`{"custom_id":`, 1<<16),
		strings.Repeat("x", 9<<20), strings.Repeat("x\n", 1<<20), goodLine + goodLine, "\xff\xfe\n"} {
		file, err := idOf(t.upload(ctx, t.keys[attacker], content))
		if err != nil {
			return "", err
		}
		batch, err := idOf(t.post(ctx, t.keys[attacker], "/v1/batches",
			fields{"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}))
		if err != nil {
			return "", err
		}
		if err := t.batchEnds(ctx, batch, "failed"); err != nil {
			return "", fmt.Errorf("the file %.20q: %w", content, err)
		}
		if status, body, err := t.do(ctx, http.MethodDelete, t.keys[attacker], "/v1/files/"+file, nil, nil); err != nil ||
			status != http.StatusOK {
			return "", errors.Join(err, fmt.Errorf("the deletion: found status %d: %.200s, expected 200", status, body))
		}
		tries++
	}
	return fmt.Sprintf("%d uploads: 4xx, or a batch that failed", tries), nil
}

// batchEnds waits until a batch of the attacker has a status.
func (t *target) batchEnds(ctx context.Context, id, want string) error {
	return t.batchOf(ctx, t.keys[attacker], id, want)
}

// batchOf waits until a batch has a status.
func (t *target) batchOf(ctx context.Context, key, id, want string) error {
	for begin := time.Now(); ; {
		_, body, err := t.get(ctx, key, "/v1/batches/"+id)
		if err != nil {
			return err
		}
		var b struct{ Status string }
		switch {
		case json.Unmarshal(body, &b) == nil && b.Status == want:
			return nil
		case time.Since(begin) > time.Minute:
			return fmt.Errorf("the batch did not end: %.300s, expected status %s", body, want)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// manyBatches creates more batches than a tenant may have at once, of lines that take long, and responses in the background.
func manyBatches(ctx context.Context, _ *suite, t *target) (string, error) {
	const n, most = 100, 32
	var lines strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&lines,
			`{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"model":"tiny-chat","prompt":"Count:","max_tokens":1000,"ignore_eos":true}}`+"\n", i)
	}
	file, err := idOf(t.upload(ctx, t.keys[attacker], lines.String()))
	if err != nil {
		return "", err
	}
	var batches []string
	statuses := map[int]int{}
	for range n {
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/batches",
			fields{"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"})
		if err != nil {
			return "", err
		}
		if statuses[status]++; status == http.StatusOK {
			id, err := idOf(status, body, nil)
			if err != nil {
				return "", err
			}
			batches = append(batches, id)
		}
	}
	if len(batches) > most {
		return "", fmt.Errorf("found %d batches at once, expected at most %d", len(batches), most)
	}
	background := map[int]int{}
	for range n {
		status, _, err := t.post(ctx, t.keys[attacker], "/v1/responses",
			fields{"model": "tiny-chat", "input": "Count.", "background": true, "max_output_tokens": 100})
		if err != nil {
			return "", err
		}
		background[status]++
	}
	for _, id := range batches {
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/batches/"+id+"/cancel", nil)
		if err != nil || status != http.StatusOK {
			return "", errors.Join(err, fmt.Errorf("the cancellation: found status %d: %.200s, expected 200", status, body))
		}
		if err := t.batchEnds(ctx, id, "cancelled"); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d batches of 1000 lines: %v, all cancelled; %d responses in the background: %v", n, statuses, n, background), nil
}
