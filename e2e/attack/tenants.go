package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"
)

var tenantAttacks = []attack{
	{"tenants: take another tenant's request ids", "keys", squatIDs},
	{"tenants: read and end another tenant's streams", "keys", foreignStreams},
	{"tenants: evict others' logs by large requests", "keys", evictLogs},
	{"tenants: refused requests write no log", "keys", refusedWriteNothing},
	{"keys: wrong keys", "keys", wrongKeys},
	{"keys: every path without one", "keys", withoutKey},
}

func stream(id string, more fields) fields {
	f := fields{"model": "tiny-chat", "prompt": "Count:", "temperature": 0, "max_tokens": 8, "stream": true, "stream_resume": true,
		"request_id": id}
	maps.Copy(f, more)
	return f
}

// largeStream is the body of a resumable chat that takes size bytes in a log: the template does not use them, so that
// they make no prompt.
func largeStream(id string, size int, more fields) fields {
	f := stream(id, fields{
		"messages":             []fields{{"role": "user", "content": "Count."}},
		"chat_template_kwargs": fields{"unused": strings.Repeat("a ", size/2)},
	})
	delete(f, "prompt")
	maps.Copy(f, more)
	return f
}

// squatIDs uses request ids of the victim before the victim does.
func squatIDs(ctx context.Context, _ *suite, t *target) (string, error) {
	const ids = 10
	for i := range ids {
		id := fmt.Sprintf("order-%d", i)
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/completions", stream(id, fields{"prompt": "The attacker's"}))
		if err != nil || status != http.StatusOK {
			return "", errors.Join(err, fmt.Errorf("the attacker's own stream: %d %.200s", status, body))
		}
		mine, body, err := t.post(ctx, t.keys[victim], "/v1/completions", stream(id, nil))
		if err != nil || mine != http.StatusOK || !bytes.Contains(body, []byte("[DONE]")) {
			return "", errors.Join(err, fmt.Errorf("the victim's request %s: %d %.200s", id, mine, body))
		}
		_, theirs, err := t.get(ctx, t.keys[attacker], streamPath+id)
		if err != nil || bytes.Equal(theirs, body) {
			return "", errors.Join(err, fmt.Errorf("the attacker reads the victim's stream %s", id))
		}
	}
	return fmt.Sprintf("%d ids used by both tenants, each with an answer of its own", ids), nil
}

// foreignStreams tries to read, resume and end a running stream of the victim with the attacker's key.
func foreignStreams(ctx context.Context, _ *suite, t *target) (string, error) {
	const id = "private"
	answer := t.resumable(ctx, id, 400)
	if err := t.runs(ctx, id); err != nil {
		return "", err
	}
	tries := 0
	for _, key := range []string{t.keys[attacker], ""} {
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			status, body, err := t.do(ctx, method, key, streamPath+id, nil, nil)
			if err != nil {
				return "", err
			}
			if status != http.StatusNotFound && status != http.StatusUnauthorized {
				return "", fmt.Errorf("%s of another tenant's stream: found status %d: %.200s, expected 404 or 401", method, status, body)
			}
			tries++
		}
	}
	_, err := answer()
	return fmt.Sprintf("%d tries: 404 and 401; the stream was whole", tries), err
}

// evictLogs fills the journal.
func evictLogs(ctx context.Context, _ *suite, t *target) (string, error) {
	const id, bodies = "kept", 33
	begin := time.Now()
	if _, err := t.resumable(ctx, id, 8)(); err != nil {
		return "", err
	}
	statuses := map[int]int{}
	for i := range bodies {
		status, _, err := t.post(ctx, t.keys[attacker], "/v1/chat/completions", largeStream(fmt.Sprintf("fill-%d", i), 7<<20, nil))
		if err != nil {
			status = 0
		}
		statuses[status]++
	}
	if time.Since(begin) > 25*time.Second { // the log is kept for 30 s after its end
		return fmt.Sprintf("%d bodies of 7 MiB: %v, in %s: too slow to tell", bodies, statuses, time.Since(begin).Round(time.Second)), nil
	}
	status, body, err := t.get(ctx, t.keys[victim], streamPath+id)
	if err == nil && (status != http.StatusOK || !bytes.Contains(body, []byte("[DONE]"))) {
		err = fmt.Errorf("the victim's log is gone: %d %.200s", status, body)
	}
	return fmt.Sprintf("%d bodies of 7 MiB: %v; the victim's log is there", bodies, statuses), err
}

// refusedWriteNothing sends requests until the limiter refuses some.
func refusedWriteNothing(ctx context.Context, _ *suite, t *target) (string, error) {
	const series, tries, least = "millrace_resume_journal_bytes_total", 200, 5
	refused, wrote := 0, 0.0
	for i := 0; i < tries && refused < least; i++ {
		before, err := t.metric(ctx, series)
		if err != nil {
			return "", err
		}
		status, _, err := t.post(ctx, t.keys[attacker], "/v1/chat/completions",
			largeStream(fmt.Sprintf("refused-%d", i), 1<<20, fields{"max_tokens": 1500, "n": 8}))
		if err != nil {
			return "", err
		}
		if status != http.StatusTooManyRequests {
			continue
		}
		after, err := t.metric(ctx, series)
		if err != nil {
			return "", err
		}
		refused, wrote = refused+1, wrote+after-before
	}
	if refused < least {
		return "", fmt.Errorf("%d of %d requests were refused, expected %d", refused, tries, least)
	}
	if wrote > 1<<20 { // the normal requests write nothing into it
		return "", fmt.Errorf("%d refused requests of 1 MiB wrote %.0f bytes into the journal", refused, wrote)
	}
	return fmt.Sprintf("%d requests of 1 MiB refused, %.0f bytes written", refused, wrote), nil
}

func wrongKeys(ctx context.Context, _ *suite, t *target) (string, error) {
	const tries = 2000
	good := t.keys[victim]
	for i := range tries {
		key := good[:len(good)-1-i%20]
		status, body, err := t.get(ctx, key, "/v1/models")
		if err != nil {
			return "", err
		}
		if status != http.StatusUnauthorized {
			return "", fmt.Errorf("a wrong key: found status %d: %.200s, expected 401", status, body)
		}
	}
	return fmt.Sprintf("%d wrong keys: 401", tries), nil
}

func withoutKey(ctx context.Context, _ *suite, t *target) (string, error) {
	paths := map[string]string{
		"/v1/models": "GET", "/v1/models/tiny-chat": "GET", "/v1/completions": "POST", "/v1/chat/completions": "POST", "/tokenize": "POST",
		"/detokenize": "POST", "/debug/kv": "GET", "/debug/pipeline": "GET", "/v1/streams/x": "GET",
		"/v1/files": "POST", "/v1/files/x": "GET", "/v1/files/x/content": "GET", "/v1/batches": "POST", "/v1/batches/x": "GET",
		"/v1/batches/x/cancel": "POST", "/v1/responses": "POST", "/v1/responses/x": "GET", "/v1/responses/x/input_items": "GET",
		"/v1/responses/x/cancel": "POST",
	}
	for path, method := range paths {
		status, body, err := t.do(ctx, method, "", path, []byte("{}"), nil)
		if err != nil {
			return "", err
		}
		if status != http.StatusUnauthorized {
			return "", fmt.Errorf("%s %s without a key: found status %d: %.200s, expected 401", method, path, status, body)
		}
	}
	return fmt.Sprintf("%d paths: 401", len(paths)), nil
}
