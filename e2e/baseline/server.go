package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/millrace/millrace/e2e/chaos/cluster"
)

// server is the program at work, with every role and an embedded NATS server.
type server struct {
	*cluster.Process

	url  string // of the HTTP server
	nats string
	dir  string // logs and data
}

const (
	startPatience = time.Minute
	endPatience   = time.Minute
)

// isa is one that every x86-64 machine of the project's CI has. AVX-512 gives the same bits.
const isa = "--isa=avx2"

// start starts the program and returns when it serves.
func start(ctx context.Context, program, model string) (*server, error) {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	dir, err := os.MkdirTemp("", "millrace-baseline-")
	if err != nil {
		return nil, err
	}
	addrs, err := cluster.FreeAddrs(ctx, 2)
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + addrs[0], nats: "nats://" + addrs[1], dir: dir}
	args := []string{
		"serve", "--model", model, "--listen", addrs[0], "--nats-listen", addrs[1], "--data-dir", filepath.Join(dir, "data"),
		"--kv-memory=128MiB", "--threads=2", "--log-format=json", isa,
	}
	s.Process = cluster.NewProcess("millrace", program, args, filepath.Join(dir, "log"), s.url+"/health/ready")
	if err := s.Start(); err != nil {
		return nil, err
	}
	if err := s.WaitReady(ctx); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

// Close ends the process, which has to exit with 0, and removes what it wrote.
func (s *server) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endPatience)
	defer cancel()
	if err := s.Terminate(ctx); err != nil {
		return err // its log stays
	}
	return os.RemoveAll(s.dir)
}

// get returns the body of a path.
func (s *server) get(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: found %s, expected 200", path, answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// request sends an empty NATS request.
func (s *server) request(ctx context.Context, subject string) ([]byte, error) {
	nc, err := nats.Connect(s.nats)
	if err != nil {
		return nil, err
	}
	defer nc.Close()
	m, err := nc.RequestWithContext(ctx, subject, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", subject, err)
	}
	return m.Data, nil
}
