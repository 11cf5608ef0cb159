package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// startRole starts a process with some roles in the cluster of the NATS server at url.
func startRole(t *testing.T, url, roles string, args ...string) *server {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	return startProgram(t, path, nil, append([]string{"--roles", roles, "--nats", url, "--stream-resume", "off", "--threads", "1",
		"--kv-shm", "off"}, args...)...)
}

const longBody = `{"model":"tiny-chat","prompt":"Once upon a time","max_tokens":400,%s,"ignore_eos":true,"stream":true}`

// streamText reads a stream to its end. It calls begun at the first chunk.
func streamText(url, body string, begun func()) (string, error) {
	client := http.Client{Timeout: patience} // a stream that hangs fails
	r, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	defer r.Body.Close() //nolint:errcheck // read only
	return readStream(r.Body, begun)
}

func readStream(r io.Reader, begun func()) (string, error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(r, first); err != nil {
		return "", err
	}
	begun()
	rest, err := io.ReadAll(r)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for line := range strings.Lines(string(first) + string(rest)) {
		data, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			return text.String(), nil
		case strings.HasPrefix(data, `{"error"`):
			return "", fmt.Errorf("after %d bytes: %s", text.Len(), data)
		default:
			var a answer
			if err := json.Unmarshal([]byte(data), &a); err != nil {
				return "", err
			}
			text.WriteString(a.text())
		}
	}
	return "", io.ErrUnexpectedEOF
}

// TestEveryRoleMayBeKilledWhileStreamsRun kills processes of the real program. The text
// is that of an undisturbed run.
func TestEveryRoleMayBeKilledWhileStreamsRun(t *testing.T) {
	alone := startServer(t)
	sampling := []string{
		`"temperature":0`,
		`"temperature":1.2,"top_p":0.95,"seed":7`,
		`"temperature":1,"repetition_penalty":1.2,"presence_penalty":0.5,"seed":3`,
	}
	const streams = 9
	bodies, want := make([]string, streams), make([]string, streams)
	for i := range streams {
		// Prompts with the same beginning are one conversation, which stays at one process.
		bodies[i] = strings.Replace(fmt.Sprintf(longBody, sampling[i%len(sampling)]), "Once upon", fmt.Sprintf("%d times upon", i), 1)
		var err error
		want[i], err = streamText("http://"+alone.http, bodies[i], func() {})
		require.NoError(t, err)
	}
	hub := natstest.Start(t, nil)
	url := hub.ClientURL()
	processes := map[string][]*server{}
	shm, err := os.MkdirTemp("/dev/shm", "millrace-test") //nolint:usetesting // TempDir is not on tmpfs
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(shm)) })
	for _, role := range []string{"tokenize", "detok", "compute"} {
		for range 2 {
			processes[role] = append(processes[role], startRole(t, url, role, "--kv-shm", shm))
		}
	}
	gateway := startRole(t, url, "gateway")
	for role := range processes { // the gateway is ready as soon as it knows one of each
		require.Eventually(t, func() bool { return metric(t, gateway, fmt.Sprintf("millrace_nodes{role=%q}", role)) == 2 }, patience,
			10*time.Millisecond)
	}
	before := 0.0
	for _, role := range []string{"compute", "detok", "tokenize"} {
		var wg, begun sync.WaitGroup
		begun.Add(streams)
		for i := range streams {
			wg.Go(func() {
				once := sync.OnceFunc(begun.Done)
				defer once()
				got, err := streamText("http://"+gateway.http, bodies[i], once)
				if err != nil || got != want[i] {
					t.Errorf("%s killed: stream %d: %v; found %q, expected %q", role, i, err, got, want[i])
				}
			})
		}
		begun.Wait()
		require.NoError(t, processes[role][0].cmd.Process.Kill())
		wg.Wait()
		moved := metric(t, gateway, "millrace_migrations_total")
		if role != "tokenize" {
			require.Greater(t, moved, before, "something did run in the %s process", role)
		}
		before = moved
	}
	last := processes["compute"][1]
	require.Positive(t, metric(t, last, "millrace_adopted_tokens_total"))
	require.Zero(t, metric(t, last, "millrace_recomputed_tokens_total"), "all that the killed worker had computed was in its pool")
	require.NoError(t, last.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, last.exit(t))
}

// metric returns the sum of a server's series whose names begin with prefix.
func metric(t *testing.T, s *server, prefix string) (sum float64) {
	t.Helper()
	page, err := http.Get("http://" + s.http + "/metrics")
	require.NoError(t, err)
	defer page.Body.Close() //nolint:errcheck // read only
	lines := bufio.NewScanner(page.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && strings.HasPrefix(name, prefix) {
			n, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			sum += n
		}
	}
	require.NoError(t, lines.Err())
	return sum
}
