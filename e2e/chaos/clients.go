package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/e2e/chaos/cluster"
	"github.com/millrace/millrace/e2e/chaos/workload"
)

// callers are the tenants of the workload. Their limits are above their load.
var callers = []string{"red", "green", "blue", "gray"}

// makeKeys writes a file with a key for each tenant. args makes a process require them.
func makeKeys(dir string, tenants []string) (keys map[string]string, args []string, err error) {
	const most = 1_000_000_000 // tokens per minute
	keys = map[string]string{}
	var file strings.Builder
	for _, tenant := range tenants {
		key, entry := auth.NewKey(tenant)
		entry.RequestsPerMinute, entry.TokensPerMinute, entry.Concurrent = most/1000, most, most/100000
		line, err := entry.Line()
		if err != nil {
			return nil, nil, err
		}
		keys[tenant] = key
		file.WriteString(line)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	path := filepath.Join(dir, "keys.yaml")
	return keys, []string{"--api-keys", path}, os.WriteFile(path, []byte(file.String()), 0o600)
}

// dial makes the clients. Each has the addresses of all given gateways and begins with another
// one.
func dial(cl *cluster.Cluster, gateways []string, keys map[string]string) (workload.Clients, error) {
	clients := workload.Clients{}
	for tenant, key := range keys {
		for _, plain := range []bool{false, true} {
			if err := dialOne(clients, cl, gateways, tenant, key, plain); err != nil {
				return clients, err
			}
		}
	}
	return clients, nil
}

func dialOne(clients workload.Clients, cl *cluster.Cluster, gateways []string, tenant, key string, plain bool) error {
	overHTTP := []client.HTTPOption{client.WithAPIKey(key)}
	overNATS := []client.NATSOption{client.WithNATSAPIKey(key), client.WithNATSOptions(cl.NATSOptions()...)}
	if plain {
		overHTTP = append(overHTTP, client.WithHTTPResume(0))
		overNATS = append(overNATS, client.WithNATSResume(0))
	}
	way := workload.Way{Over: "http", Tenant: tenant, Plain: plain}
	for i, first := range gateways {
		others := slices.Concat(gateways[i+1:], gateways[:i])
		c, err := client.NewHTTP(first, append(slices.Clone(overHTTP), client.WithServers(others...))...)
		if err != nil {
			return err
		}
		clients[way] = append(clients[way], c)
	}
	way.Over = "nats"
	c, err := client.DialNATS(cl.NATSURL(), overNATS...)
	if err != nil {
		return err
	}
	clients[way] = []client.Client{c}
	return nil
}

// spy tries to read and to cancel streams with the key of another tenant.
type spy struct {
	gateways func() []string
	keys     map[string]string

	tried           atomic.Int64
	tries           sync.WaitGroup
	refused, leaked atomic.Int64
	mu              sync.Mutex
	leaks           []string
}

// spyPatience bounds one try: a gateway waits for a young log that may be written again.
const spyPatience = 15 * time.Second

// mostTries bounds the number of tries at a time and of those that succeeded or were refused, since a gateway may wait in each.
const mostTries = 12

// begun tries to read and to cancel a stream whose id no other tenant has.
func (x *spy) begun(ctx context.Context, s *workload.Stream, id string) {
	if !s.Unseeded() {
		return
	}
	if x.tried.Add(1) > mostTries {
		x.tried.Add(-1)
		return
	}
	gateways := x.gateways()
	gateway := gateways[s.ID%len(gateways)]
	other := callers[(slices.Index(callers, s.Way.Tenant)+1)%len(callers)]
	x.tries.Go(func() {
		read := x.try(ctx, http.MethodGet, gateway+"/v1/streams/"+id, x.keys[other])
		// try with another stream
		if cancelled := x.try(ctx, http.MethodDelete, gateway+"/v1/streams/"+id, x.keys[other]); !read && !cancelled {
			x.tried.Add(-1)
		}
	})
}

// try reports whether a gateway decided. One that is down or stops meanwhile does not.
func (x *spy) try(ctx context.Context, method, url, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, spyPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return false
	}
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false // the gateway is down
	}
	answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound:
		x.refused.Add(1)
		return true
	case answer.StatusCode < http.StatusMultipleChoices && method == http.MethodGet: // a cancellation that worked shows in the stream
		x.leaked.Add(1)
		x.mu.Lock()
		x.leaks = append(x.leaks, fmt.Sprintf("%s %s: found %s, expected 404", method, url, answer.Status))
		x.mu.Unlock()
		return true
	}
	return false
}
