package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// The tenants of a target with keys.
const (
	victim   = "victim"   // no limits: its requests must never fail
	attacker = "attacker" // 600 requests and 200,000 tokens per minute, 8 at a time
	spender  = "spender"  // no limits, like the victim: only the server bounds it
)

// targetConfig is a kind of server to attack.
type targetConfig struct {
	keys  bool
	model func(dir, demo string) (string, error) // makes a hostile model; nil: the demo model
	args  func(dir string) ([]string, error)     // more arguments
	tls   bool
}

var targets = map[string]targetConfig{
	"keys":      {keys: true},
	"open":      {},
	"template":  {keys: true, model: hostileTemplate},
	"tokenizer": {keys: true, model: panickingTokenizer},
	"tls":       {keys: true, tls: true, args: certificate},
}

// target is a running server with all roles and the embedded NATS server.
type target struct {
	*cluster.Process

	config targetConfig
	dir    string
	http   string            // base URL
	addr   string            // of the HTTP server
	nats   string            // URL
	keys   map[string]string // by tenant; none without keys
	client *http.Client
	text   string // answer of the normal request
}

const startPatience = time.Minute

// target returns the running target of a name. It starts the target and its control server if needed.
func (s *suite) target(ctx context.Context, name string) (*target, error) {
	if t := s.targets[name]; t != nil {
		return t, nil
	}
	for kind, servers := range map[string]map[string]*target{"": s.targets, "-control": s.controls} {
		t, err := s.start(ctx, targets[name], name+kind)
		if t != nil {
			servers[name] = t // the suite ends it in any case
		}
		if err != nil {
			return nil, err
		}
	}
	control := s.controls[name]
	if err := control.learn(ctx); err != nil {
		return nil, err
	}
	s.targets[name].text = control.text
	return s.targets[name], nil
}

func (s *suite) start(ctx context.Context, c targetConfig, name string) (*target, error) {
	t := &target{config: c, dir: filepath.Join(s.dir, name), keys: map[string]string{}}
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return nil, err
	}
	addrs, err := cluster.FreeAddrs(ctx, 2)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if c.tls {
		scheme = "https"
	}
	t.addr, t.http, t.nats = addrs[0], scheme+"://"+addrs[0], "nats://"+addrs[1]
	t.client = newClient(t)
	model := s.model
	if c.model != nil {
		if model, err = c.model(t.dir, s.model); err != nil {
			return nil, err
		}
	}
	args := []string{"serve", "--model", model, "--served-model-name", "tiny-chat", "--listen", addrs[0], "--nats-listen", addrs[1],
		"--data-dir", filepath.Join(t.dir, "data"), "--kv-memory", "64MiB", "--threads", "1", "--log-format", "json", "--log-level",
		"debug", "--packed-weights", "off",
		"--batch-store", fmt.Sprint(batchStore)}
	if c.keys {
		file, err := t.makeKeys()
		if err != nil {
			return nil, err
		}
		args = append(args, "--api-keys", file)
	}
	if c.args != nil {
		more, err := c.args(t.dir)
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	t.Process = cluster.NewProcess(name, s.programs.Millrace, args, filepath.Join(s.dir, name+".log"), "")
	if err := t.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return t, t.untilReady(ctx)
}

func (t *target) untilReady(ctx context.Context) error {
	for {
		if status, _, err := t.get(ctx, "", "/health/ready"); err == nil && status == http.StatusOK {
			return nil
		}
		select {
		case <-t.Ended():
			return fmt.Errorf("%s ended before it was ready; the end of its log:\n%s", t.Name, t.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", t.Name, ctx.Err(), t.LogTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (t *target) makeKeys() (file string, err error) {
	var text string
	for _, tenant := range []string{victim, attacker, spender} {
		key, entry := auth.NewKey(tenant)
		if tenant == attacker {
			entry.RequestsPerMinute, entry.TokensPerMinute, entry.Concurrent = 600, 200_000, 8
		}
		line, err := entry.Line()
		if err != nil {
			return "", err
		}
		t.keys[tenant], text = key, text+line
	}
	file = filepath.Join(t.dir, "keys.yaml")
	return file, os.WriteFile(file, []byte(text), 0o600)
}

// dial connects to NATS with an API key as the token, or without credentials for "".
func (t *target) dial(key string, options ...nats.Option) (*nats.Conn, error) {
	options = append(options, nats.MaxReconnects(0), nats.Timeout(10*time.Second),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if key != "" {
		options = append(options, nats.Token(key))
	}
	return nats.Connect(t.nats, options...)
}

// ended returns an error if the server has ended.
func (t *target) ended() error {
	if t.PID() != 0 {
		return nil
	}
	return fmt.Errorf("the server ended; the end of its log:\n%s", t.LogTail())
}

func (t *target) close() {
	if t.Process != nil && t.PID() != 0 {
		_ = t.Kill() // only its end counts
	}
}

// raiseFileLimit raises the limit of open files of this process to the system's.
func raiseFileLimit() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = l.Max
	return errors.Join(syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l))
}
