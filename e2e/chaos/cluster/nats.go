package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// natsServers are one NATS server or a cluster of them, each a process.
type natsServers struct {
	processes []*Process
	clients   []string // addresses for clients
	monitors  []string // URLs of the monitoring
}

// newNATS writes the configurations; nothing runs yet.
func newNATS(ctx context.Context, c *Config) (*natsServers, error) {
	addrs, err := freeAddrs(ctx, 3*c.NATSServers)
	if err != nil {
		return nil, err
	}
	if c.NATSListen != "" {
		addrs[0] = c.NATSListen
	}
	n := &natsServers{}
	routes := make([]string, c.NATSServers)
	for i := range routes {
		routes[i] = fmt.Sprintf("%q", "nats-route://"+addrs[3*i+2])
	}
	for i := range c.NATSServers {
		name := fmt.Sprintf("nats-%d", i+1)
		client, monitor, route := addrs[3*i], addrs[3*i+1], addrs[3*i+2]
		text := fmt.Sprintf("server_name: %s\nlisten: %q\nhttp: %q\njetstream { store_dir: %q }\n",
			name, client, monitor, filepath.Join(c.Dir, name))
		if c.NATSServers > 1 {
			text += fmt.Sprintf("cluster { name: chaos, listen: %q, routes: [%s] }\n", route, strings.Join(routes, ", "))
		}
		file := filepath.Join(c.Dir, name+".conf")
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return nil, err
		}
		n.processes = append(n.processes, &Process{
			Name: name, Role: RoleNATS, path: c.Programs.NATSServer, args: []string{"-c", file},
			log: filepath.Join(c.Dir, name+".log"), ready: "http://" + monitor + "/healthz",
		})
		n.clients = append(n.clients, client)
		n.monitors = append(n.monitors, "http://"+monitor)
	}
	return n, nil
}

// Storage is what JetStream keeps, summed over the NATS servers.
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

// freeAddrs finds loopback ports that nobody listens on.
func freeAddrs(ctx context.Context, n int) ([]string, error) {
	addrs := make([]string, n)
	listeners := make([]net.Listener, n)
	defer func() {
		for _, l := range listeners { // all at the end, so that no port comes twice
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
