package cluster

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// natsServers is one NATS server or a cluster of them, each a process.
type natsServers struct {
	processes []*Process
	clients   []string          // addresses for clients
	monitors  []string          // URLs of the monitoring endpoints
	passwords map[string]string // by user; nil: NATS accepts everybody
}

// Users of the shipped configuration whose name is not a role.
const (
	userNode   = "node"  // a process with several roles
	userFront  = "front" // a gateway's other connection, to its clients
	userClient = "client"
)

// url returns the URL that a user connects to.
func (n *natsServers) url(user string, addrs []string) string {
	var login string
	if password, ok := n.passwords[user]; ok {
		login = user + ":" + password + "@"
	}
	urls := make([]string, len(addrs))
	for i, addr := range addrs {
		urls[i] = "nats://" + login + addr
	}
	return strings.Join(urls, ",")
}

// login matches a user of a configuration whose password is a variable.
var login = regexp.MustCompile(`user:\s*"?(\w+)"?,?\s*password:\s*"?\$(\w+)`)

// accounts reads the configuration and makes a random password for each user: in passwords by user,
// in env as NAME=VALUE.
func accounts(path string) (text string, passwords map[string]string, env []string, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nil, nil, err
	}
	passwords = map[string]string{}
	for _, found := range login.FindAllStringSubmatch(string(data), -1) {
		passwords[found[1]] = rand.Text()
		env = append(env, found[2]+"="+passwords[found[1]])
	}
	for _, user := range append([]string{userNode, userFront, userClient}, Roles...) {
		if passwords[user] == "" {
			return "", nil, nil, fmt.Errorf("%s: found no user %q whose password is a variable", path, user)
		}
	}
	return string(data), passwords, env, nil
}

// newNATS writes the configurations and makes the processes without starting them.
func newNATS(ctx context.Context, c *Config) (*natsServers, error) {
	addrs, err := FreeAddrs(ctx, 3*c.NATSServers)
	if err != nil {
		return nil, err
	}
	if c.NATSListen != "" {
		addrs[0] = c.NATSListen
	}
	n := &natsServers{}
	var shipped string
	var env []string
	if c.Accounts != "" {
		if shipped, n.passwords, env, err = accounts(c.Accounts); err != nil {
			return nil, err
		}
	}
	routes := make([]string, c.NATSServers)
	for i := range routes {
		routes[i] = fmt.Sprintf("%q", "nats-route://"+addrs[3*i+2])
	}
	for i := range c.NATSServers {
		name := fmt.Sprintf("nats-%d", i+1)
		client, monitor, route := addrs[3*i], addrs[3*i+1], addrs[3*i+2]
		dir := filepath.Join(c.Dir, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, err
		}
		if i == 0 && c.NATSData != "" {
			if err := os.Symlink(c.NATSData, filepath.Join(dir, "data")); err != nil { // both configurations store below it
				return nil, err
			}
		}
		text := shipped + fmt.Sprintf("\nserver_name: %s\nlisten: %q\nhttp: %q\n", name, client, monitor)
		if shipped == "" {
			text += "jetstream { store_dir: data }\n"
		}
		if c.NATSServers > 1 {
			text += fmt.Sprintf("cluster { name: chaos, listen: %q, routes: [%s] }\n", route, strings.Join(routes, ", "))
		}
		file := filepath.Join(dir, "nats-server.conf")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, err
		}
		n.processes = append(n.processes, &Process{
			Name: name, Role: RoleNATS, path: c.Programs.NATSServer, args: []string{"-c", file}, dir: dir, env: env,
			log: filepath.Join(c.Dir, name+".log"), ready: "http://" + monitor + "/healthz",
		})
		n.clients = append(n.clients, client)
		n.monitors = append(n.monitors, "http://"+monitor)
	}
	return n, nil
}

// Storage is the size of the data in JetStream, summed over the NATS servers.
type Storage struct {
	Memory  int64 `json:"memory"`
	File    int64 `json:"storage"`
	Streams int   `json:"streams"`
}

func (n *natsServers) storage(ctx context.Context) (Storage, error) {
	var sum Storage
	client := http.Client{Timeout: 5 * time.Second}
	for _, monitor := range n.monitors {
		r, err := get(ctx, &client, monitor+"/jsz")
		if err != nil {
			return sum, err
		}
		var one Storage
		err = json.NewDecoder(r.Body).Decode(&one)
		r.Body.Close()
		if err != nil {
			return sum, fmt.Errorf("%s/jsz: %w", monitor, err)
		}
		sum.Memory += one.Memory
		sum.File += one.File
		sum.Streams += one.Streams
	}
	return sum, nil
}

// FreeAddrs returns loopback addresses with free ports.
func FreeAddrs(ctx context.Context, n int) ([]string, error) {
	addrs := make([]string, n)
	listeners := make([]net.Listener, n)
	defer func() {
		for _, l := range listeners { // all at the end, so that no port is found twice
			if l != nil {
				l.Close()
			}
		}
	}()
	for i := range addrs {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		listeners[i], addrs[i] = l, l.Addr().String()
	}
	return addrs, nil
}
