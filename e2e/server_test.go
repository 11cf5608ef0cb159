package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
)

// program is the binary under test, built once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "millrace-e2e-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "millrace")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "../cmd/millrace").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// server is a running `millrace serve`.
type server struct {
	http, nats string
	cmd        *exec.Cmd
	log        *bytes.Buffer
	ended      chan error
}

// freePort returns a loopback address with a free port.
func freePort(t *testing.T) string {
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close() //nolint:errcheck // only the port counts
	return l.Addr().String()
}

func startServer(t *testing.T, args ...string) *server {
	t.Helper()
	path, err := program()
	require.NoError(t, err)
	return startProgram(t, path, nil, args...)
}

// startProgram starts a server of the binary at path. env is added to the environment of
// the test.
func startProgram(t *testing.T, path string, env []string, args ...string) *server {
	t.Helper()
	s := &server{http: freePort(t), nats: freePort(t), log: new(bytes.Buffer), ended: make(chan error, 1)}
	args = append([]string{"serve", "--model", demoModel, "--listen", s.http, "--nats-listen", s.nats,
		"--data-dir", t.TempDir(), "--kv-memory", "64MiB", "--log-format", "json"}, args...)
	s.cmd = exec.Command(path, args...)
	s.cmd.Stderr = s.log
	s.cmd.Env = append(os.Environ(), env...)
	require.NoError(t, s.cmd.Start())
	written := make(chan struct{})
	go func() {
		err := s.cmd.Wait()
		close(written)
		s.ended <- err
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill() // it may have ended
		<-written
		if t.Failed() {
			t.Logf("server log:\n%s", s.log)
		}
	})
	s.waitReady(t)
	return s
}

func (s *server) waitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + s.http + "/health/ready")
		if err != nil {
			return false
		}
		defer r.Body.Close() //nolint:errcheck // read only
		return r.StatusCode == http.StatusOK
	}, patience, 10*time.Millisecond, "the server becomes ready")
}

func (s *server) post(t *testing.T, path, body string) (int, http.Header, string) {
	t.Helper()
	r, err := http.Post("http://"+s.http+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // read only
	data, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r.StatusCode, r.Header, string(data)
}

func (s *server) connect(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect("nats://" + s.nats)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// golden is one of the demo model's reference generations.
type golden struct {
	Kind      string           `json:"kind"`
	Messages  []map[string]any `json:"messages"`
	Prompt    string           `json:"prompt"`
	PromptIDs []int32          `json:"prompt_ids"`
	OutputIDs []int32          `json:"output_ids"`
	Text      string           `json:"output_text"`
	Finish    string           `json:"finish_reason"`
	Margin    float64          `json:"min_margin"`
}

// tieMargin is the difference of log probabilities below which other arithmetic
// may choose the other token.
const tieMargin = 0.02

func goldens(t *testing.T) []golden {
	data, err := os.ReadFile(demoModel + "/goldens.json")
	require.NoError(t, err)
	var f struct {
		Goldens []golden `json:"goldens"`
	}
	require.NoError(t, json.Unmarshal(data, &f))
	require.Len(t, f.Goldens, 40)
	return f.Goldens
}

// body returns the golden's request: a chat for messages, else a completion.
func (g *golden) body(stream bool) (path, subject, body string) {
	q := map[string]any{"model": "tiny-chat", "temperature": 0, "max_tokens": 64, "stream": stream}
	path, subject = "/v1/chat/completions", "millrace.v1.chat.completions"
	if g.Messages != nil {
		q["messages"] = g.Messages
	} else {
		path, subject = "/v1/completions", "millrace.v1.completions"
		q["prompt"] = g.PromptIDs
	}
	data, _ := json.Marshal(q) //nolint:errchkjson // plain values
	return path, subject, string(data)
}

// answer holds the fields of a whole answer or of a chunk that the tests read.
type answer struct {
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Completion int `json:"completion_tokens"`
		Prompt     int `json:"prompt_tokens"`
		Details    struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Error *struct {
		Message string `json:"message"`
		Type    string `json:"type"`
	} `json:"error"`
}

func (a *answer) text() string {
	if len(a.Choices) == 0 {
		return ""
	}
	c := a.Choices[0]
	return c.Text + c.Message.Content + c.Delta.Content
}

func parseAnswer(t *testing.T, body string) *answer {
	t.Helper()
	a := new(answer)
	require.NoError(t, json.Unmarshal([]byte(body), a), body)
	return a
}

// TestGoldensThroughTheCommandHTTPAndNATS gets each golden in four ways. In short mode it gets three of four in the first way alone.
func TestGoldensThroughTheCommandHTTPAndNATS(t *testing.T) {
	s := startServer(t)
	nc := s.connect(t)
	ties := 0
	for i, g := range goldens(t) {
		same := func(how, text string) {
			t.Helper()
			if text != g.Text && g.Margin < tieMargin {
				ties++
				t.Logf("golden %d, %s: near tie (margin %g): %q", i, how, g.Margin, text)
				return
			}
			require.Equal(t, g.Text, text, "golden %d, %s", i, how)
		}
		path, subject, body := g.body(false)
		code, _, reply := s.post(t, path, body)
		require.Equal(t, http.StatusOK, code, reply)
		whole := parseAnswer(t, reply)
		same("HTTP", whole.text())
		if whole.text() == g.Text {
			require.Equal(t, len(g.OutputIDs), whole.Usage.Completion, "golden %d", i)
			require.Equal(t, g.Finish, whole.Choices[0].Finish, "golden %d", i)
		}
		if testing.Short() && i%4 != 0 {
			continue
		}
		m, err := nc.Request(subject, []byte(body), patience)
		require.NoError(t, err)
		same("NATS", parseAnswer(t, string(m.Data)).text())
		_, _, body = g.body(true)
		same("HTTP stream", httpStream(t, s, path, body))
		same("NATS stream", natsStream(t, nc, subject, body))
	}
	t.Logf("%d answers took the other branch of a near tie", ties)
	require.LessOrEqual(t, ties, 3*4, "three goldens have a margin below %g", tieMargin)
}

// TestGoldensThroughGenerate starts a process for each golden, in short mode for every fifth one.
func TestGoldensThroughGenerate(t *testing.T) {
	path, err := program()
	require.NoError(t, err)
	ties := 0
	for i, g := range goldens(t) {
		if testing.Short() && i%5 != 0 {
			continue
		}
		ids := strings.Trim(strings.ReplaceAll(fmt.Sprint(g.PromptIDs), " ", ","), "[]")
		out, err := exec.Command(path, "generate", "--model", demoModel, "--tokens", ids, "-n", "64",
			"--temperature", "0", "--json", "--log-level", "error").Output()
		require.NoError(t, err)
		var got struct {
			Tokens []int32 `json:"tokens"`
			Text   string  `json:"text"`
		}
		require.NoError(t, json.Unmarshal(out, &got))
		if got.Text != g.Text && g.Margin < tieMargin {
			ties++
			continue
		}
		require.Equal(t, g.OutputIDs, got.Tokens, "golden %d", i)
		require.Equal(t, g.Text, got.Text, "golden %d", i)
	}
	t.Logf("%d answers took the other branch of a near tie", ties)
	require.LessOrEqual(t, ties, 3)
}

// httpStream joins the deltas of a stream and checks its shape.
func httpStream(t *testing.T, s *server, path, body string) string {
	t.Helper()
	r, err := http.Post("http://"+s.http+path, "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // read only
	require.Equal(t, http.StatusOK, r.StatusCode)
	text, last := "", ""
	lines := bufio.NewScanner(r.Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		if last = data; data != "[DONE]" {
			text += parseAnswer(t, data).text()
		}
	}
	require.NoError(t, lines.Err())
	require.Equal(t, "[DONE]", last)
	return text
}

// natsStream joins the messages of a stream and checks their numbers.
func natsStream(t *testing.T, nc *nats.Conn, subject, body string) string {
	t.Helper()
	inbox := nc.NewRespInbox()
	sub, err := nc.SubscribeSync(inbox)
	require.NoError(t, err)
	defer sub.Unsubscribe() //nolint:errcheck // the connection ends soon
	require.NoError(t, nc.PublishRequest(subject, inbox, []byte(body)))
	text := ""
	for seq := 1; ; seq++ {
		m, err := sub.NextMsg(patience)
		require.NoError(t, err)
		if m.Header.Get("Millrace-Ping") != "" {
			seq--
			continue
		}
		require.Equal(t, fmt.Sprint(seq), m.Header.Get("Millrace-Seq"), "no gap, none twice: %s", m.Data)
		if len(m.Data) > 0 {
			text += parseAnswer(t, string(m.Data)).text()
		}
		if end := m.Header.Get("Millrace-End"); end != "" {
			require.Contains(t, []string{"stop", "length"}, end)
			return text
		}
	}
}

func TestAClientThatGoesAwayFreesItsKV(t *testing.T) {
	s := startServer(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+s.http+"/v1/completions",
		strings.NewReader(`{"model":"tiny-chat","prompt":"Once upon a time","max_tokens":2000,"ignore_eos":true,"stream":true}`))
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close() //nolint:errcheck // cut off below
	_, err = bufio.NewReader(response.Body).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, 1, s.regions(t))
	cancel()
	require.Eventually(t, func() bool { return s.regions(t) == 0 }, patience, time.Millisecond)
}

// regions returns the number of KV regions in /debug/kv.
func (s *server) regions(t *testing.T) int {
	t.Helper()
	r, err := http.Get("http://" + s.http + "/debug/kv")
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // read only
	var state struct {
		Check   string `json:"check"`
		Regions []any  `json:"regions"`
	}
	require.NoError(t, json.NewDecoder(r.Body).Decode(&state))
	require.Equal(t, "ok", state.Check)
	return len(state.Regions)
}

// TestAGatewayIsNotReadyForAWhileBeforeItRefusesRequests lets a load balancer remove it before.
func TestAGatewayIsNotReadyForAWhileBeforeItRefusesRequests(t *testing.T) {
	s := startServer(t, "--drain-delay", "1m")
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.Eventually(t, func() bool {
		r, err := http.Get("http://" + s.http + "/health/ready")
		require.NoError(t, err)
		defer r.Body.Close() //nolint:errcheck // read only
		return r.StatusCode == http.StatusServiceUnavailable && r.Close
	}, patience, 10*time.Millisecond)
	r, err := http.Post("http://"+s.http+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"tiny-chat","prompt":"Once","max_tokens":3}`))
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // read only
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.True(t, r.Close)
	require.NoError(t, s.cmd.Process.Kill())
}

func TestSIGTERMLetsAStreamFinishAndExitsWithZero(t *testing.T) {
	s := startServer(t)
	text := make(chan string, 1)
	body := `{"model":"tiny-chat","prompt":"Once upon a time","max_tokens":400,"temperature":0,"ignore_eos":true,"stream":true}`
	r, err := http.Post("http://"+s.http+"/v1/completions", "application/json", strings.NewReader(body))
	require.NoError(t, err)
	defer r.Body.Close() //nolint:errcheck // read only
	reader := bufio.NewReader(r.Body)
	_, err = reader.ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	go func() {
		rest, _ := io.ReadAll(reader) //nolint:errcheck // the text is judged
		text <- string(rest)
	}()
	rest := <-text
	require.Contains(t, rest, `"finish_reason":"length"`)
	require.Contains(t, rest, "[DONE]")
	select {
	case err := <-s.ended:
		require.NoError(t, err, "exit code 0")
	case <-time.After(patience):
		t.Fatal("the server does not end")
	}
}

func TestGarbageGetsAnErrorInOpenAIsShapeAndTheServerLives(t *testing.T) {
	s := startServer(t)
	nc := s.connect(t)
	for _, c := range []struct{ name, body string }{
		{"nothing", ""},
		{"not JSON", "hello"},
		{"an array", "[1,2]"},
		{"cut off", `{"model":"tiny-chat","messages":[{"role":"user"`},
		{"wrong types", `{"model":"tiny-chat","messages":"hi"}`},
		{"wrong type of a number", `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}],"max_tokens":"many"}`},
		{"negative", `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}],"max_tokens":-1}`},
		{"NaN", `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}],"temperature":NaN}`},
		{"too hot", `{"model":"tiny-chat","messages":[{"role":"user","content":"hi"}],"temperature":1e9}`},
		{"unknown model", `{"model":"gpt-9","messages":[{"role":"user","content":"hi"}]}`},
		{"no messages", `{"model":"tiny-chat","messages":[]}`},
		{"unknown role", `{"model":"tiny-chat","messages":[{"role":"king","content":"hi"}]}`},
		{"invalid UTF-8", "{\"model\":\"tiny-chat\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"},
		{"longer than the context", `{"model":"tiny-chat","messages":[{"role":"user","content":"` + strings.Repeat("word ", 5000) + `"}]}`},
		{"deep nesting", strings.Repeat("[", 100000)},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, body := s.post(t, "/v1/chat/completions", c.body)
			require.GreaterOrEqual(t, code, 400, body)
			require.Less(t, code, 500, body)
			a := parseAnswer(t, body)
			require.NotNil(t, a.Error, body)
			require.NotEmpty(t, a.Error.Message)
			require.NotEmpty(t, a.Error.Type)

			m, err := nc.Request("millrace.v1.chat.completions", []byte(c.body), patience)
			require.NoError(t, err)
			a = parseAnswer(t, string(m.Data))
			require.NotNil(t, a.Error, "%s", m.Data)
			require.NotEmpty(t, m.Header.Get("Nats-Service-Error-Code"))
		})
	}
	huge := `{"model":"tiny-chat","messages":[{"role":"user","content":"` + strings.Repeat("x", 10<<20) + `"}]}`
	code, _, body := s.post(t, "/v1/chat/completions", huge)
	require.Equal(t, http.StatusRequestEntityTooLarge, code, body)
	require.NotNil(t, parseAnswer(t, body).Error)
	require.ErrorIs(t, nc.Publish("millrace.v1.chat.completions", []byte(huge)), nats.ErrMaxPayload)

	code, _,
		body = s.post(t, "/v1/chat/completions",
		`{"model":"tiny-chat","temperature":0,"messages":[{"role":"user","content":"What is the capital of France?"}]}`)
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, parseAnswer(t, body).text(), "Paris")
}

func TestTheOfficialOpenAIClientGetsTheGoldens(t *testing.T) { checkWithClients(t, "openai_sdk.py") }

func TestTheOfficialClientsOfOtherAPIsGetTheSameText(t *testing.T) {
	checkWithClients(t, "other_sdks.py")
}

func TestTheOfficialOpenAIClientRunsBatchesAndStoresResponses(t *testing.T) {
	checkWithClients(t, "openai_batches.py")
}

// checkWithClients runs a script of scripts/e2e against a server.
func checkWithClients(t *testing.T, script string) {
	t.Helper()
	python, err := filepath.Abs("../build/venv/bin/python")
	require.NoError(t, err)
	_, err = os.Stat(python)
	require.NoError(t, err, "`make python` installs the clients")
	s := startServer(t)
	out, err := exec.Command(python, "../scripts/e2e/"+script, "--base-url", "http://"+s.http).CombinedOutput()
	t.Logf("%s", out)
	require.NoError(t, err)
}

// TestTheOfficialOpenAIClientRunsAToolCallingLoop forces calls in three formats.
func TestTheOfficialOpenAIClientRunsAToolCallingLoop(t *testing.T) {
	python, err := filepath.Abs("../build/venv/bin/python")
	require.NoError(t, err)
	for _, format := range []string{"auto", "qwen3-xml", "pythonic"} {
		t.Run(format, func(t *testing.T) {
			s := startServer(t, "--tool-parser", format)
			out, err := exec.Command(python, "../scripts/e2e/openai_tools.py", "--base-url", "http://"+s.http).CombinedOutput()
			t.Logf("%s", out)
			require.NoError(t, err, "`make python` installs the client")
		})
	}
}
