package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// verified runs `millrace verify` and returns its exit code and what it printed.
func verified(t *testing.T, url, request, answer string) (code int, out string) {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	dir := t.TempDir()
	files := map[string]string{"request.json": request, "answer.json": answer}
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := exec.Command(path, "verify", filepath.Join(dir, "request.json"), filepath.Join(dir, "answer.json"), "--url", url)
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}

// TestAnAnswerIsVerifiedByAnyWorkerOfItsClass, over HTTP and NATS, streamed or not, also after a failover; not by one of another class.
func TestAnAnswerIsVerifiedByAnyWorkerOfItsClass(t *testing.T) {
	const chatBody = `{"model":"tiny-chat","messages":[{"role":"user","content":"What is the capital of the US?"}],"max_tokens":24,"proof":true`
	bodies := map[string]string{
		chatBody + `}`: "/v1/chat/completions",
		chatBody + `,"n":2,"temperature":1.2,"stop":["e t"],"logprobs":true,"top_logprobs":2,"stream":true}`:                                                                            "/v1/chat/completions",
		chatBody + `,"response_format":{"type":"json_object"}}`:                                                                                                                         "/v1/chat/completions",
		chatBody + `,"tool_choice":"required","tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string","maxLength":4}}}}}]}`: "/v1/chat/completions",
		`{"model":"tiny-chat","prompt":[[5,6,7],[8,9]],"n":2,"echo":true,"logprobs":1,"proof":true,"temperature":1,"min_tokens":4}`:                                                     "/v1/completions",
		`{"model":"tiny-chat","prompt":"One, two,","use_beam_search":true,"num_beams":3,"proof":true}`:                                                                                  "/v1/completions",
	}
	const responsesBody = `{"model":"tiny-chat","input":"What is the capital of the US?","max_output_tokens":24,"temperature":1.2,"proof":true`
	const messagesBody = `{"model":"tiny-chat","messages":[{"role":"user","content":"What is the capital of the US?"}],"max_tokens":24,"temperature":1,"proof":true`
	for _, stream := range []string{`}`, `,"stream":true}`} {
		bodies[responsesBody+stream] = "/v1/responses"
		bodies[responsesBody+`,"tool_choice":"required","tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}]`+stream] = "/v1/responses"
		bodies[messagesBody+stream] = "/v1/messages"
		bodies[messagesBody+`,"tool_choice":{"type":"any"},"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}]`+stream] = "/v1/messages"
	}
	hub := natstest.Start(t, nil)
	url := hub.ClientURL()
	bf16 := startRole(t, url, "compute")
	gateway := startRole(t, url, "gateway,tokenize,detok") // it is ready as soon as it knows the worker
	at := "http://" + gateway.http
	answers := map[string]string{}
	for body, path := range bodies {
		code, _, answer := gateway.post(t, path, body)
		require.Equal(t, 200, code, answer)
		answers[body] = answer
	}
	digest := regexp.MustCompile(`"digest":"([0-9a-f]{64})"`)
	startRole(t, url, "compute", "--weights", "int8") // and now most requests may go to either
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 2 }, patience, 10*time.Millisecond)
	for body, answer := range answers {
		for _, server := range []string{at, url} {
			code, out := verified(t, server, body, answer)
			require.Zero(t, code, "%s\n%s\n%s", body, answer, out)
			require.Contains(t, out, digest.FindStringSubmatch(answer)[1])
		}
	}

	var plain string
	for body := range bodies {
		if body == chatBody+`}` {
			plain = body
		}
	}
	var whole struct {
		Choices []struct {
			Tokens []int32 `json:"token_ids"`
		} `json:"choices"`
	}
	require.NoError(t, json.Unmarshal([]byte(answers[plain]), &whole))
	tokens := whole.Choices[0].Tokens
	require.Greater(t, len(tokens), 1)
	was, err := json.Marshal(tokens)
	require.NoError(t, err)
	tokens[1]++
	changed, err := json.Marshal(tokens)
	require.NoError(t, err)
	code, out := verified(t, at, plain, strings.Replace(answers[plain], string(was), string(changed), 1))
	require.Equal(t, 1, code, out)
	require.Contains(t, out, fmt.Sprintf("choice 0: token 1 is %d, expected %d", tokens[1], tokens[1]-1))
	code, out = verified(t, at, strings.Replace(plain, "capital", "Capital", 1), answers[plain])
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "prompts[0].hash: found ")

	require.NoError(t, bf16.cmd.Process.Kill())
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 1 }, patience, 10*time.Millisecond)
	code, out = verified(t, at, plain, answers[plain])
	require.Equal(t, 2, code, out)
	require.Regexp(t,
		`could not be checked: .*no process has the numerics digest of the answer: expected [0-9a-f]{16}, found workers: 1 of [0-9a-f]{16}`,
		out)
}

// TestAFailoverDoesNotChangeAProof: the digests are those of the same requests at another server.
func TestAFailoverDoesNotChangeAProof(t *testing.T) {
	const streams = 6
	body := func(i int) string {
		return fmt.Sprintf(`{"model":"tiny-chat","prompt":"%d times upon a time","max_tokens":400,"seed":7,"ignore_eos":true,"stream":true,"proof":true}`, i)
	}
	digest := regexp.MustCompile(`"digest":"([0-9a-f]{64})"`)
	alone := startServer(t, "--threads", "1")
	var want [streams]string
	for i := range want {
		_, _, answer := alone.post(t, "/v1/completions", body(i))
		require.Regexp(t, digest, answer)
		want[i] = digest.FindStringSubmatch(answer)[1]
	}
	url := natstest.Start(t, nil).ClientURL()
	workers := []*server{startRole(t, url, "compute"), startRole(t, url, "compute")}
	gateway := startRole(t, url, "gateway,tokenize,detok")
	require.Eventually(t, func() bool { return metric(t, gateway, `millrace_nodes{role="compute"}`) == 2 }, patience, 10*time.Millisecond)
	var answers [streams]string
	var wg, begun sync.WaitGroup
	begun.Add(streams)
	for i := range answers {
		wg.Go(func() {
			once := sync.OnceFunc(begun.Done)
			defer once()
			r, err := (&http.Client{Timeout: patience}).Post("http://"+gateway.http+"/v1/completions", "application/json",
				strings.NewReader(body(i)))
			if err != nil {
				t.Errorf("stream %d: %v", i, err)
				return
			}
			defer r.Body.Close() //nolint:errcheck // read only
			first := make([]byte, 1)
			_, err = io.ReadFull(r.Body, first)
			once()
			rest, restErr := io.ReadAll(r.Body)
			if err = errors.Join(err, restErr); err != nil {
				t.Errorf("stream %d: %v", i, err)
			}
			answers[i] = string(first) + string(rest)
		})
	}
	begun.Wait()
	require.NoError(t, workers[0].cmd.Process.Kill())
	wg.Wait()
	require.Positive(t, metric(t, gateway, "millrace_migrations_total"))
	for i, answer := range answers {
		require.Regexp(t, digest, answer)
		require.Equal(t, want[i], digest.FindStringSubmatch(answer)[1])
	}
	code, out := verified(t, "http://"+gateway.http, body(0), answers[0])
	require.Zero(t, code, out)
}
