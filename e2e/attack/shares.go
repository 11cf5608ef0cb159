package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/client"
)

// shareAttacks try to take what tenants share.
var shareAttacks = []attack{
	{"nats: resume a stream more often than the gateway has places", "keys", manyResumes},
	{"storage: many large responses at once", "keys", largeResponses},
	{"storage: two responses with one id", "keys", oneIDTwice},
	{"storage: followers of a response in the background", "keys", manyFollowers},
	{"storage: many batches of a large file", "keys", largeBatches},
	{"start: two servers in one data folder", "open", oneFolder},
}

// victimOverNATS sends a request of the victim over a new connection.
func (t *target) victimOverNATS(ctx context.Context) error {
	c, err := client.DialNATS(t.nats, client.WithNATSAPIKey(t.keys[victim]))
	if err != nil {
		return fmt.Errorf("the victim cannot connect: %w", err)
	}
	defer c.Close()
	if _, err := c.Complete(ctx, client.CompletionRequest{Model: "tiny-chat", Prompt: "Hi", MaxTokens: 4}); err != nil {
		return fmt.Errorf("the victim's request: %w", err)
	}
	return nil
}

// manyResumes reads a stream of a tenant without limits 1,200 times, and as many streams that do not exist.
func manyResumes(ctx context.Context, _ *suite, t *target) (string, error) {
	const n = 1200
	nc, err := t.dial(t.keys[spender])
	if err != nil {
		return "", err
	}
	defer nc.Close()
	inbox := client.InboxPrefix(t.keys[spender]) + "."
	sub, err := nc.SubscribeSync(inbox + ">")
	if err != nil {
		return "", err
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return "", err
	}
	send := func(subject, reply string, body string) {
		m := nats.NewMsg("millrace.v1." + subject)
		m.Reply, m.Data = inbox+reply, []byte(body)
		m.Header.Set("Authorization", "Bearer "+t.keys[spender])
		_ = nc.PublishMsg(m) // a closed connection shows below
	}
	send("completions", "own",
		`{"model":"tiny-chat","prompt":"Count:","max_tokens":400,"ignore_eos":true,"stream":true,"stream_resume":true,"request_id":"often"}`)
	for i := range n {
		send("streams.resume", fmt.Sprintf("r%d", i), `{"id":"cmpl-often","after":0}`)
		send("streams.resume", fmt.Sprintf("u%d", i), fmt.Sprintf(`{"id":"cmpl-unknown-%d","after":0}`, i))
	}
	if err := nc.Flush(); err != nil {
		return "", err
	}
	for range 10 {
		if err := t.victimOverNATS(ctx); err != nil {
			return "", fmt.Errorf("beside %d resumed streams: %w", 2*n, err)
		}
	}
	return fmt.Sprintf("%d streams resumed; the victim has its places", 2*n), nil
}

// largeResponses begins more bytes of stored responses than a tenant's share, and sends metadata without bounds.
func largeResponses(ctx context.Context, _ *suite, t *target) (string, error) {
	const n, size = 32, 2 << 20
	status, body, err := t.post(ctx, t.keys[spender], "/v1/responses", fields{"model": "tiny-chat", "input": "x", "max_output_tokens": 4,
		"metadata": fields{"key": strings.Repeat("m", 2<<20)}})
	if err != nil || status != http.StatusBadRequest || len(body) > 1000 {
		return "", errors.Join(err, fmt.Errorf("metadata of 2 MiB: found status %d and %d bytes, expected 400 and a short text", status,
			len(body)))
	}
	statuses, mu := map[int]int{}, sync.Mutex{}
	var all sync.WaitGroup
	var stored []string
	var failed error
	for range n {
		all.Go(func() {
			status, body, err := t.post(ctx, t.keys[spender], "/v1/responses",
				fields{"model": "tiny-chat", "input": "x", "background": true, "max_output_tokens": 4,
					"instructions": strings.Repeat("i ", size/2)})
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
			if status == http.StatusOK {
				id, bad := idOf(status, body, nil)
				stored, err = append(stored, id), errors.Join(err, bad)
			}
			failed = errors.Join(failed, err)
		})
	}
	all.Wait()
	if failed != nil {
		return "", failed
	}
	if _, err := idOf(t.post(ctx, t.keys[victim], "/v1/responses",
		fields{"model": "tiny-chat", "input": "x", "max_output_tokens": 4})); err != nil {
		return "", fmt.Errorf("the victim has no room: %w", err)
	}
	for _, id := range stored { // the next attacks need the share
		if status, body, err := t.do(ctx, http.MethodDelete, t.keys[spender], "/v1/responses/"+id, nil, nil); err != nil ||
			status != http.StatusOK {
			return "", errors.Join(err, fmt.Errorf("the deletion of %s: found status %d: %.200s, expected 200", id, status, body))
		}
	}
	return fmt.Sprintf("%d responses of %d MiB: %v; the victim has room", n, size>>20, statuses), nil
}

// oneIDTwice uses the id of a response again: with the same body, with another one, and after its deletion.
func oneIDTwice(ctx context.Context, _ *suite, t *target) (string, error) {
	send := func(input string, background bool) (int, string, error) {
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/responses",
			fields{"model": "tiny-chat", "input": input, "background": background, "max_output_tokens": 4,
				"stream_resume": true, "request_id": "twice"})
		return status, string(body), err
	}
	tries := 0
	for _, try := range []struct {
		input      string
		background bool
		want       int
	}{{"one", true, 200}, {"one", true, 200}, {"two", true, 409}, {"one", false, 409}, {"", true, 0}, {"two", false, 200},
		{"two", true, 409}, {"one", false, 409}} {
		if try.input == "" {
			if status, body, err := t.do(ctx, http.MethodDelete, t.keys[attacker], "/v1/responses/resp_twice", nil, nil); err != nil ||
				status != http.StatusOK {
				return "", errors.Join(err, fmt.Errorf("the deletion: found status %d: %.200s, expected 200", status, body))
			}
			continue
		}
		status, body, err := send(try.input, try.background)
		if err != nil || status != try.want {
			return "", errors.Join(err, fmt.Errorf("input %q, background %t: found status %d: %.200s, expected %d", try.input,
				try.background, status, body, try.want))
		}
		tries++
	}
	return fmt.Sprintf("%d requests with one id: the same response, 409, and a free id after the deletion", tries), nil
}

// manyFollowers reads one large response in the background many times while it waits and runs.
func manyFollowers(ctx context.Context, _ *suite, t *target) (string, error) {
	const n = 40
	id, err := idOf(t.post(ctx, t.keys[spender], "/v1/responses",
		fields{"model": "tiny-chat", "input": "Count.", "background": true, "max_output_tokens": 300,
			"text": fields{"format": fields{"type": "text", "unused": strings.Repeat("x", 1<<20)}}}))
	if err != nil {
		return "", err
	}
	statuses, mu := map[int]int{}, sync.Mutex{}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			status, body, err := t.get(ctx, t.keys[spender], "/v1/responses/"+id+"?stream=true")
			if err != nil || status == http.StatusOK && !bytes.Contains(body, []byte("response.completed")) {
				status = 0
			}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
		})
	}
	all.Wait()
	if statuses[http.StatusOK] == 0 {
		return "", fmt.Errorf("found the statuses %v, expected streams", statuses)
	}
	return fmt.Sprintf("%d followers: %v", n, statuses), nil
}

// largeBatches creates batches of one large file, of lines that take long. The victim's batch must run beside them.
func largeBatches(ctx context.Context, _ *suite, t *target) (string, error) {
	const n, lines = 16, 500
	var file strings.Builder
	pad := strings.Repeat(" ", 10_000)
	for i := range lines {
		fmt.Fprintf(&file,
			`{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"model":"tiny-chat","prompt":"Count:","max_tokens":1000,"ignore_eos":true}%s}`+"\n", i, pad)
	}
	input, err := idOf(t.upload(ctx, t.keys[attacker], file.String()))
	if err != nil {
		return "", err
	}
	var batches []string
	for range n {
		id, err := idOf(t.post(ctx, t.keys[attacker], "/v1/batches",
			fields{"input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h"}))
		if err != nil {
			return "", err
		}
		batches = append(batches, id)
	}
	mine, err := idOf(t.upload(ctx, t.keys[victim], goodLine))
	if err != nil {
		return "", err
	}
	batch, err := idOf(t.post(ctx, t.keys[victim], "/v1/batches",
		fields{"input_file_id": mine, "endpoint": "/v1/completions", "completion_window": "24h"}))
	if err != nil {
		return "", err
	}
	failed := t.batchOf(ctx, t.keys[victim], batch, "completed")
	for _, id := range batches {
		status, body, err := t.post(ctx, t.keys[attacker], "/v1/batches/"+id+"/cancel", nil)
		if err != nil || status != http.StatusOK {
			failed = errors.Join(failed, err, fmt.Errorf("the cancellation: found status %d: %.200s, expected 200", status, body))
		}
	}
	return fmt.Sprintf("%d batches of %d MB; the victim's batch ran beside them", n, file.Len()/1_000_000), failed
}

// oneFolder starts a second server with the data folder of the target, which must refuse it and keep what it has.
func oneFolder(ctx context.Context, s *suite, t *target) (string, error) {
	id, err := idOf(t.post(ctx, "", "/v1/responses", fields{"model": "tiny-chat", "input": "keep", "max_output_tokens": 4}))
	if err != nil {
		return "", err
	}
	const starts = 3
	for range starts {
		served, output, err := s.starts(ctx, nil, "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.dir, "data"))
		if err != nil || served {
			return "", errors.Join(err, fmt.Errorf("a second server serves in the data folder of the first: %.300s", output))
		}
		for _, word := range []string{"is held by process", t.addr, "--data-dir"} {
			if !strings.Contains(output, word) {
				return "", fmt.Errorf("the refusal has no %q: %s", word, output)
			}
		}
	}
	if status, body, err := t.get(ctx, "", "/v1/responses/"+id); err != nil || status != http.StatusOK {
		return "", errors.Join(err, fmt.Errorf("a stored response is gone: %d %.200s", status, body))
	}
	return fmt.Sprintf("%d starts refused, naming the first server; its data is there", starts), nil
}
