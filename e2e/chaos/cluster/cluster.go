package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/e2e/badnet"
)

// The roles of processes: Millrace's own, and the NATS server's.
const (
	RoleGateway  = "gateway"
	RoleTokenize = "tokenize"
	RoleCompute  = "compute"
	RoleDetok    = "detok"
	RoleNATS     = "nats"
	RoleServer   = "server" // one process with all of Millrace's roles
)

// Roles are those of Millrace.
var Roles = []string{RoleGateway, RoleTokenize, RoleCompute, RoleDetok}

// Config of a cluster. Every address is on the loopback interface.
type Config struct {
	Dir         string // logs and data; made if it is not there
	Programs    Programs
	Model       string
	Members     map[string]int // processes of each role
	NATSServers int
	Proxied     bool     // every process reaches NATS through a proxy of its own
	Args        []string // for every Millrace process
	Listen      []string // HTTP addresses of the first gateways; the others get free ports
	NATSListen  string   // of the first NATS server; "": a free port
}

// Each gives every role n processes.
func Each(n int) map[string]int {
	members := map[string]int{}
	for _, role := range Roles {
		members[role] = n
	}
	return members
}

// Cluster is a set of running processes.
type Cluster struct {
	members []*Member
	nats    *natsServers
}

// Member is a Millrace process.
type Member struct {
	*Process

	URL   string        // of its HTTP server
	Proxy *badnet.Proxy // its way to NATS; nil without Config.Proxied
}

// Start starts NATS and then all members, and returns when they are ready.
// Close is due even after an error.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	cl := &Cluster{}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return cl, err
	}
	var err error
	if cl.nats, err = newNATS(ctx, &c); err != nil {
		return cl, err
	}
	if err := up(ctx, cl.nats.processes); err != nil {
		return cl, err
	}
	for _, role := range append([]string{RoleServer}, Roles...) {
		for i := range c.Members[role] {
			m, err := cl.member(ctx, &c, role, i)
			if err != nil {
				return cl, err
			}
			cl.members = append(cl.members, m)
		}
	}
	members := make([]*Process, len(cl.members))
	for i, m := range cl.members {
		members[i] = m.Process
	}
	return cl, up(ctx, members)
}

// up starts processes and waits until all are ready.
func up(ctx context.Context, processes []*Process) error {
	for _, p := range processes {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range processes {
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (cl *Cluster) member(ctx context.Context, c *Config, role string, i int) (*Member, error) {
	var listen string
	if role == RoleGateway && i < len(c.Listen) {
		listen = c.Listen[i]
	} else {
		free, err := freeAddrs(ctx, 1)
		if err != nil {
			return nil, err
		}
		listen = free[0]
	}
	name := fmt.Sprintf("%s-%d", role, i+1)
	m := &Member{URL: "http://" + listen}
	servers := cl.nats.clients
	if c.Proxied {
		var err error
		if m.Proxy, err = badnet.NewProxy(ctx, servers[0]); err != nil {
			return nil, err
		}
		servers = []string{m.Proxy.Addr()}
	}
	roles := role
	if role == RoleServer {
		roles = strings.Join(Roles, ",")
	}
	args := append([]string{"serve", "--roles", roles, "--nats", natsURL(servers), "--model", c.Model, "--listen", listen,
		"--data-dir", filepath.Join(c.Dir, name), "--log-format", "json"}, c.Args...)
	m.Process = &Process{Name: name, Role: role, path: c.Programs.Millrace, args: args,
		log: filepath.Join(c.Dir, name+".log"), ready: m.URL + "/health/ready"}
	return m, nil
}

func natsURL(addrs []string) string { return "nats://" + strings.Join(addrs, ",nats://") }

// Processes are all of them, Millrace's first.
func (cl *Cluster) Processes() []*Process {
	var all []*Process
	for _, m := range cl.members {
		all = append(all, m.Process)
	}
	if cl.nats != nil {
		all = append(all, cl.nats.processes...)
	}
	return all
}

// NATSURL is for clients: every server, without a proxy.
func (cl *Cluster) NATSURL() string { return natsURL(cl.nats.clients) }

// NATS are the NATS servers' processes.
func (cl *Cluster) NATS() []*Process { return cl.nats.processes }

// Members are the processes of a role, or all of them for "".
func (cl *Cluster) Members(role string) []*Member {
	var some []*Member
	for _, m := range cl.members {
		if role == "" || m.Role == role {
			some = append(some, m)
		}
	}
	return some
}

// Gateways are the base URLs for HTTP clients.
func (cl *Cluster) Gateways() []string {
	var urls []string
	for _, m := range append(cl.Members(RoleServer), cl.Members(RoleGateway)...) {
		urls = append(urls, m.URL)
	}
	return urls
}

// Storage is what JetStream keeps.
func (cl *Cluster) Storage(ctx context.Context) (Storage, error) { return cl.nats.storage(ctx) }

// EndedByItself lists processes that ended though nobody asked.
func (cl *Cluster) EndedByItself() error {
	var errs []error
	for _, p := range cl.Processes() {
		errs = append(errs, p.EndedByItself())
	}
	return errors.Join(errs...)
}

// Terminate ends every process by SIGTERM: Millrace's together, then NATS.
func (cl *Cluster) Terminate(ctx context.Context) error {
	var ending errgroup.Group
	for _, m := range cl.members {
		ending.Go(func() error { return m.Terminate(ctx) })
	}
	errs := []error{ending.Wait()}
	for _, p := range cl.nats.processes {
		errs = append(errs, p.Kill()) // nobody is left to notice
	}
	return errors.Join(errs...)
}

// Close kills everything that runs.
func (cl *Cluster) Close() error {
	var errs []error
	for _, p := range cl.Processes() {
		if p.PID() != 0 {
			errs = append(errs, p.Kill())
		}
	}
	for _, m := range cl.members {
		if m.Proxy != nil {
			errs = append(errs, m.Proxy.Close())
		}
	}
	return errors.Join(errs...)
}

// Metrics are a process's Prometheus series, each summed over its labels.
type Metrics map[string]float64

// Metrics scrapes the member's /metrics.
func (m *Member) Metrics(ctx context.Context) (Metrics, error) {
	client := http.Client{Timeout: 2 * time.Second}
	r, err := get(ctx, &client, m.URL+"/metrics")
	if err != nil {
		return nil, err
	}
	defer r.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	sums := Metrics{}
	for name, family := range families {
		for _, series := range family.Metric {
			sums[name] += value(series)
		}
	}
	return sums, nil
}

// value of a counter or a gauge; of a histogram the number of observations.
func value(series *dto.Metric) float64 {
	switch {
	case series.Counter != nil:
		return series.Counter.GetValue()
	case series.Gauge != nil:
		return series.Gauge.GetValue()
	case series.Histogram != nil:
		return float64(series.Histogram.GetSampleCount())
	}
	return series.GetUntyped().GetValue()
}
