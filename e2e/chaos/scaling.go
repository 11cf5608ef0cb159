package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
)

const (
	scalingClients = 32
	scalingTime    = 10 * time.Second
)

// scaling measures a load that is bound by tokenizers (long prompts, one token each, a
// device whose steps take no time) on 1, 2 and 4 tokenize and detokenize processes with
// one actor each. More processes help until all cores of the machine are busy. The notes
// have that bound, from the processor time of every process and of the load itself.
func scaling(ctx context.Context, s *suite) (*report, error) {
	r := &report{Scenario: "scaling", Faults: map[string]int{}, Least: least{Streams: 3 * scalingClients}}
	begin := time.Now()
	first := 0.0
	for _, n := range []int{1, 2, 4} {
		p, err := s.throughput(ctx, n)
		if err != nil {
			return r, fmt.Errorf("%d processes: %w", n, err)
		}
		if n == 1 {
			first = p.rate
		}
		r.Streams += p.requests
		r.Completed += p.requests
		r.Notes = append(r.Notes,
			fmt.Sprintf("%d tokenize and detokenize processes: %.0f prompts/s (%.2f x one), %.1f of %d cores busy; bound by cores: %.0f prompts/s (%s); "+
				"tokenizing alone: %.0f prompts per second of processor time",
				n, p.rate, p.rate/first, p.busy, runtime.NumCPU(), p.rate*float64(runtime.NumCPU())/p.busy, p.shares, p.tokenizing))
	}
	r.Seconds = time.Since(begin).Seconds()
	return r, nil
}

type point struct {
	requests int
	rate     float64 // requests per second
	busy     float64 // cores
	shares   string  // shares of the processor time, by role

	tokenizing float64 // requests per second of processor time of the tokenize processes
}

// throughput measures the load with n processes.
func (s *suite) throughput(ctx context.Context, n int) (p point, err error) {
	c := s.config(fmt.Sprintf("scaling-%d", n))
	c.Members = map[string]int{cluster.RoleGateway: 1, cluster.RoleCompute: 1, cluster.RoleTokenize: n, cluster.RoleDetok: n}
	device, err := instantDevice(c.Dir)
	if err != nil {
		return p, err
	}
	c.Args = []string{"--backend=sim", "--device=" + device, "--tokenizers=1", "--detokenizers=1", "--kv-memory=128MiB"}
	started, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	cl, err := cluster.Start(started, c)
	defer func() { err = errors.Join(err, cl.Close()) }()
	if err != nil {
		return p, err
	}
	api, err := client.NewHTTP(cl.Gateways()[0], client.WithHTTPResume(0)) // plain requests: no log
	if err != nil {
		return p, err
	}
	defer api.Close()
	if _, err := prompts(ctx, api, time.Second); err != nil { // warm
		return p, err
	}
	before, err := processorTime(cl)
	if err != nil {
		return p, err
	}
	begin := time.Now()
	if p.requests, err = prompts(ctx, api, scalingTime); err != nil {
		return p, err
	}
	took := time.Since(begin).Seconds()
	after, err := processorTime(cl)
	if err != nil {
		return p, err
	}
	p.rate = float64(p.requests) / took
	for _, role := range append(cluster.Roles, cluster.RoleNATS, "load") {
		share := (after[role] - before[role]).Seconds() / took
		p.busy += share
		p.shares += fmt.Sprintf("%s %.2f, ", role, share)
	}
	p.shares = strings.TrimSuffix(p.shares, ", ")
	if spent := (after[cluster.RoleTokenize] - before[cluster.RoleTokenize]).Seconds(); spent > 0 {
		p.tokenizing = float64(p.requests) / spent
	}
	return p, nil
}

// instantDevice describes a simulated device whose steps take no time, and returns the file.
func instantDevice(dir string) (path string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path = filepath.Join(dir, "device.json")
	return path, os.WriteFile(path, []byte(`{"base": "cpu", "speed": 0}`), 0o600)
}

// prompts sends requests for d and counts the answers.
func prompts(ctx context.Context, api client.Client, d time.Duration) (int, error) {
	prompt := strings.Repeat("The quick brown fox jumps over the lazy dog, and nobody knows why. ", 80)
	var (
		wg       sync.WaitGroup
		requests atomic.Int64
		failed   atomic.Pointer[error]
		end      = time.Now().Add(d)
	)
	for range scalingClients {
		wg.Go(func() {
			for time.Now().Before(end) {
				if _, err := api.Complete(ctx, client.CompletionRequest{Prompt: prompt, MaxTokens: 1}); err != nil {
					failed.Store(&err)
					return
				}
				requests.Add(1)
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return int(requests.Load()), nil
}

// processorTime returns the processor time of all processes, by role, and of this one.
func processorTime(cl *cluster.Cluster) (map[string]time.Duration, error) {
	sum := map[string]time.Duration{}
	for _, p := range cl.Processes() {
		usage, err := p.Usage()
		if err != nil {
			return nil, err
		}
		sum[p.Role] += usage.Processor
	}
	var own syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &own); err != nil {
		return nil, err
	}
	sum["load"] = time.Duration(own.Utime.Nano() + own.Stime.Nano())
	return sum, nil
}
