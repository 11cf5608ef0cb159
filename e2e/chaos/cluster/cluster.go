package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/e2e/faultproxy"
)

// Roles of processes: those of Millrace, and that of a NATS server.
const (
	RoleGateway  = "gateway"
	RoleTokenize = "tokenize"
	RoleCompute  = "compute"
	RoleDetok    = "detok"
	RolePrefill  = "prefill" // instead of compute, and RoleDecode
	RoleDecode   = "decode"
	RoleNATS     = "nats"
	RoleServer   = "server" // one process with all of Millrace's roles
)

// Roles are the roles of Millrace.
var Roles = []string{RoleGateway, RoleTokenize, RoleCompute, RoleDetok}

// Config describes a cluster. Every address is on the loopback interface.
type Config struct {
	Dir         string // folder of logs and data, which Start makes
	Programs    Programs
	Model       string
	Members     map[string]int // processes of each role, all alike
	Groups      []Group        // further processes
	NATSServers int
	Accounts    string   // nats-server configuration with a user for each role; "": NATS accepts everybody
	Proxied     bool     // every process reaches NATS through a proxy of its own
	Args        []string // for every Millrace process
	Listen      []string // HTTP addresses of the first gateways; the others get free ports
	NATSListen  string   // address of the first NATS server; "": a free port
	NATSData    string   // folder of the first NATS server's data; "": in Dir
	Nice        int      // added to the nice value of compute processes
}

// Group is a set of processes of a role that differ from the others of the cluster.
type Group struct {
	Role    string
	Name    string // name of the processes: NAME-1, NAME-2; "": the role
	Count   int
	Program string   // "": Programs.Millrace
	Model   string   // "": Config.Model
	Args    []string // added to Config.Args; the last value of a flag counts
	Mount   Mount    // seen by these processes alone
}

// Each returns n processes for every role.
func Each(n int) map[string]int {
	members := map[string]int{}
	for _, role := range Roles {
		members[role] = n
	}
	return members
}

// Cluster is a set of running processes.
type Cluster struct {
	config Config
	nats   *natsServers
	pools  string // directory of --kv-shm: killed processes leave their pools there

	mu      sync.Mutex
	members []*Member
	removed []*Member // members that left the cluster; Close ends those that still run
}

// Member is a Millrace process.
type Member struct {
	*Process

	Group string            // Group.Name
	URL   string            // URL of its HTTP server
	Proxy *faultproxy.Proxy // its connection to NATS; nil without Config.Proxied
}

// Start starts NATS and then all members, and returns when they are ready. The
// caller calls Close even after an error.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	cl := &Cluster{config: c}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return cl, err
	}
	var err error
	if cl.pools, err = os.MkdirTemp("/dev/shm", "millrace-chaos"); err != nil {
		return cl, err
	}
	if cl.nats, err = newNATS(ctx, &c); err != nil {
		return cl, err
	}
	if err := up(ctx, cl.nats.processes); err != nil {
		return cl, err
	}
	for _, role := range append([]string{RoleServer}, Roles...) {
		if err := cl.create(ctx, Group{Role: role, Count: c.Members[role]}); err != nil {
			return cl, err
		}
	}
	for _, g := range c.Groups {
		if err := cl.create(ctx, g); err != nil {
			return cl, err
		}
	}
	return cl, up(ctx, processes(cl.Members("")))
}

// Add starts processes in a running cluster and returns when they are ready.
func (cl *Cluster) Add(ctx context.Context, groups ...Group) error {
	before := len(cl.Members(""))
	for _, g := range groups {
		if err := cl.create(ctx, g); err != nil {
			return err
		}
	}
	return up(ctx, processes(cl.Members("")[before:]))
}

// Remove removes a member that has ended from the cluster.
func (cl *Cluster) Remove(m *Member) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	cl.members = slices.DeleteFunc(slices.Clone(cl.members), func(x *Member) bool { return x == m })
	cl.removed = append(cl.removed, m)
}

// create makes the processes of a group without starting them.
func (cl *Cluster) create(ctx context.Context, g Group) error {
	for i := range g.Count {
		m, err := cl.member(ctx, g, i)
		if err != nil {
			return err
		}
		cl.mu.Lock()
		cl.members = append(cl.members, m)
		cl.mu.Unlock()
	}
	return nil
}

func processes(members []*Member) []*Process {
	all := make([]*Process, len(members))
	for i, m := range members {
		all[i] = m.Process
	}
	return all
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

// freeAddr returns a loopback address with a free port. It skips the ports of members that have not started: they do
// not hold them yet.
func (cl *Cluster) freeAddr(ctx context.Context) (string, error) {
	for {
		free, err := FreeAddrs(ctx, 1)
		if err != nil {
			return "", err
		}
		if !slices.ContainsFunc(cl.Members(""), func(m *Member) bool { return m.URL == "http://"+free[0] }) {
			return free[0], nil
		}
	}
}

func (cl *Cluster) member(ctx context.Context, g Group, i int) (*Member, error) {
	c, role := &cl.config, g.Role
	var listen string
	if role == RoleGateway && g.Name == "" && i < len(c.Listen) {
		listen = c.Listen[i]
	} else {
		var err error
		if listen, err = cl.freeAddr(ctx); err != nil {
			return nil, err
		}
	}
	name := fmt.Sprintf("%s-%d", cmp.Or(g.Name, role), i+1)
	m := &Member{Group: g.Name, URL: "http://" + listen}
	servers := cl.nats.clients
	if c.Proxied {
		var err error
		if m.Proxy, err = faultproxy.NewProxy(ctx, servers[0]); err != nil {
			return nil, err
		}
		servers = []string{m.Proxy.Addr()}
	}
	roles, user := role, role
	if role == RoleServer {
		roles, user = strings.Join(Roles, ","), userNode
	}
	args := append([]string{"serve", "--roles", roles, "--nats", cl.nats.url(user, servers), "--model", cmp.Or(g.Model, c.Model),
		"--listen", listen,
		"--data-dir", filepath.Join(c.Dir, name), "--log-format", "json"}, slices.Concat(cl.poolArgs(&g), c.Args, g.Args)...)
	if cl.nats.passwords != nil && (role == RoleGateway || role == RoleServer) {
		args = append(args, "--nats-clients", cl.nats.url(userFront, servers))
	}
	m.Process = &Process{Name: name, Role: role, path: cmp.Or(g.Program, c.Programs.Millrace), args: args,
		log: filepath.Join(c.Dir, name+".log"), ready: m.URL + "/health/ready", mount: g.Mount}
	if role == RoleCompute {
		m.nice = c.Nice
	}
	return m, nil
}

// poolArgs are the flags for the pools of a group's processes. An earlier program has none.
func (cl *Cluster) poolArgs(g *Group) []string {
	if g.Program != "" {
		return nil
	}
	return []string{"--kv-shm", cl.pools}
}

// Processes returns all processes, those of Millrace first.
func (cl *Cluster) Processes() []*Process {
	all := processes(cl.Members(""))
	if cl.nats != nil {
		all = append(all, cl.nats.processes...)
	}
	return all
}

// NATSURL returns the addresses of all NATS servers for clients, without a proxy.
func (cl *Cluster) NATSURL() string { return cl.nats.url(userClient, cl.nats.clients) }

// NATSOptions returns the options of a client's connection.
func (cl *Cluster) NATSOptions() []nats.Option {
	if cl.nats.passwords == nil {
		return nil
	}
	return []nats.Option{nats.CustomInboxPrefix("_INBOX." + userClient)}
}

// NATS returns the processes of the NATS servers.
func (cl *Cluster) NATS() []*Process { return cl.nats.processes }

// Members returns the processes of a role, or all of Millrace for "".
func (cl *Cluster) Members(role string) []*Member {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	var some []*Member
	for _, m := range cl.members {
		if role == "" || m.Role == role {
			some = append(some, m)
		}
	}
	return some
}

// Gateways returns the base URLs of the gateways.
func (cl *Cluster) Gateways() []string {
	var urls []string
	for _, m := range append(cl.Members(RoleServer), cl.Members(RoleGateway)...) {
		urls = append(urls, m.URL)
	}
	return urls
}

// Storage returns the size of the data in JetStream.
func (cl *Cluster) Storage(ctx context.Context) (Storage, error) { return cl.nats.storage(ctx) }

// EndedByItself lists the processes that ended without Terminate or Kill.
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
	for _, m := range cl.Members("") {
		ending.Go(func() error { return m.Terminate(ctx) })
	}
	errs := []error{ending.Wait()}
	for _, p := range cl.nats.processes {
		errs = append(errs, p.Kill()) // nothing needs it any more
	}
	return errors.Join(errs...)
}

// Close kills every process that runs.
func (cl *Cluster) Close() error {
	var errs []error
	members := append(cl.Members(""), cl.removed...)
	all := processes(members)
	if cl.nats != nil {
		all = append(all, cl.nats.processes...)
	}
	for _, p := range all {
		if p.PID() != 0 {
			errs = append(errs, p.Kill())
		}
	}
	for _, m := range members {
		if m.Proxy != nil {
			errs = append(errs, m.Proxy.Close())
		}
	}
	if cl.pools != "" {
		errs = append(errs, os.RemoveAll(cl.pools))
	}
	return errors.Join(errs...)
}
