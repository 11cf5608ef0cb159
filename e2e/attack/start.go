package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

var startAttacks = []attack{
	{"start: a gateway without keys on a public address", "open", keylessPublic},
	{"start: the shipped NATS users, beside a Kubernetes service's variables", "open", shippedUsers},
}

// starts runs `millrace serve` until it ends or serves. In the second case it ends the process.
func (s *suite) starts(ctx context.Context, env []string, args ...string) (served bool, log string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	addrs, err := cluster.FreeAddrs(ctx, 1)
	if err != nil {
		return false, "", err
	}
	dir, err := os.MkdirTemp(s.dir, "start-")
	if err != nil {
		return false, "", err
	}
	defer os.RemoveAll(dir)
	args = append([]string{"serve", "--model", s.model, "--nats-listen", addrs[0], "--data-dir", dir, "--kv-memory", "64MiB",
		"--threads", "1", "--packed-weights", "off", "--log-format", "json"}, args...)
	cmd := exec.CommandContext(ctx, s.programs.Millrace, args...)
	cmd.Env = append(os.Environ(), env...)
	output := &watched{word: []byte(`"message":"ready"`), seen: cancel}
	cmd.Stderr = output
	err = cmd.Run()
	if output.found {
		return true, output.text.String(), nil
	}
	if _, exited := errors.AsType[*exec.ExitError](err); exited {
		return false, output.text.String(), nil
	}
	return false, output.text.String(), errors.Join(err, ctx.Err())
}

// watched is an output that reports when a word appears in it.
type watched struct {
	text  bytes.Buffer
	word  []byte
	seen  func()
	found bool
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.text.Write(p)
	if !w.found && bytes.Contains(w.text.Bytes(), w.word) {
		w.found = true
		w.seen()
	}
	return n, err
}

func keylessPublic(ctx context.Context, s *suite, _ *target) (string, error) {
	served, output, err := s.starts(ctx, nil, "--listen", "0.0.0.0:0")
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	if served {
		return "", errors.New("a gateway without keys serves on every address of the machine")
	}
	if !strings.Contains(output, "--api-keys") {
		return "", fmt.Errorf("the refusal does not name the way out: %s", output)
	}
	return "refused, naming --api-keys", nil
}

// shippedUsers starts a server with the file that docs/security.md names.
func shippedUsers(ctx context.Context, s *suite, _ *target) (string, error) {
	file, err := filepath.Abs("deploy/nats/millrace.conf")
	if err != nil {
		return "", err
	}
	env := []string{"MILLRACE_PORT=tcp://10.0.0.1:8080", "MILLRACE_SERVICE_HOST=10.0.0.1", "MILLRACE_SERVICE_PORT=8080",
		"MILLRACE_PORT_8080_TCP=tcp://10.0.0.1:8080", "MILLRACE_PORT_8080_TCP_ADDR=10.0.0.1", "MILLRACE_SERVICE_PORT_HTTP=8080"}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for _, word := range strings.FieldsFunc(string(text), func(r rune) bool { return strings.ContainsRune(" ,:\n\t{}[]\"", r) }) {
		if name, found := strings.CutPrefix(word, "$MILLRACE_"); found {
			env = append(env, "MILLRACE_"+name+"=secret-"+strings.ToLower(name))
		}
	}
	served, output, err := s.starts(ctx, env, "--listen", "127.0.0.1:0", "--nats-auth-file", file)
	if err == nil && !served {
		err = errors.New("the server did not start")
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, output)
	}
	return "starts as documented", nil
}

// join starts another process of the target's cluster, as its operator does.
func (s *suite) join(ctx context.Context, t *target, role string) (*cluster.Process, error) {
	addrs, err := cluster.FreeAddrs(ctx, 1)
	if err != nil {
		return nil, err
	}
	args := []string{"serve", "--roles", role, "--model", s.model, "--served-model-name", "tiny-chat", "--listen", addrs[0], "--nats",
		t.nats,
		"--data-dir", filepath.Join(t.dir, role), "--kv-memory", "64MiB", "--threads", "1", "--packed-weights", "off", "--log-format",
		"json"}
	p := cluster.NewProcess(role, s.programs.Millrace, append(args, t.credentials()...), filepath.Join(s.dir, t.Name+"-"+role+".log"),
		"http://"+addrs[0]+"/health/ready")
	if err := p.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return p, p.WaitReady(ctx)
}

// credentials returns the login of a node on the target's NATS server: the seed in the server's data directory.
func (t *target) credentials() []string {
	if !t.config.keys {
		return nil
	}
	return []string{"--nats-nkey", filepath.Join(t.dir, "data", "nats-node.nk")}
}

// nodes lists the nodes on the target's NATS server with `millrace nodes`.
func (t *target) nodes(ctx context.Context, s *suite) ([]string, error) {
	args := append([]string{"nodes", "--json", "--nats", t.nats}, t.credentials()...)
	out, err := exec.CommandContext(ctx, s.programs.Millrace, args...).Output()
	if err != nil {
		if exit, exited := errors.AsType[*exec.ExitError](err); exited {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("millrace nodes: %w", err)
	}
	var r struct{ Nodes []struct{ Node string } }
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, err
	}
	var names []string
	for _, n := range r.Nodes {
		names = append(names, n.Node)
	}
	if len(names) == 0 {
		return nil, errors.New("millrace nodes: found no node")
	}
	return names, nil
}

// metric returns the sum of a series of the target.
func (t *target) metric(ctx context.Context, name string) (float64, error) {
	status, text, err := t.get(ctx, "", "/metrics")
	if err != nil || status != http.StatusOK {
		return 0, errors.Join(err, fmt.Errorf("/metrics: %d", status))
	}
	sum, found := 0.0, false
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series == name || strings.HasPrefix(series, name+"{") {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return 0, err
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		return 0, fmt.Errorf("/metrics: no series %s", name)
	}
	return sum, nil
}
