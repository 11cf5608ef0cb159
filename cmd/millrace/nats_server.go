package main

import (
	"crypto/rand"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/deploy"
)

// natsStart bounds the wait for the embedded server.
const natsStart = 10 * time.Second

// The accounts of deploy/nats/millrace.conf.
const (
	nodesAccount   = "MILLRACE"
	clientsAccount = "CLIENTS"
)

// Limits of the embedded server. What a client may pile up is bounded in number, size and time.
const (
	natsMostConnections = 8192
	natsMostSubs        = 4096     // of a connection: one for each stream that it reads
	natsMostTokens      = 16       // of a subscription's subject
	natsLeastPayload    = 1 << 20  // nodes need as much
	natsMostPayload     = 8 << 20  // larger bodies go in parts
	natsMostPending     = 32 << 20 // bytes that a connection may leave unread before it is closed
	natsAuthTimeout     = 2 * time.Second
	natsWriteDeadline   = 5 * time.Second
	natsServerPing      = 20 * time.Second // a peer that misses two is gone
	natsServerPings     = 2
	natsClosed          = 64 // closed connections that the server remembers for its monitoring, which is off
)

// embedded is the NATS server inside this process, and how this process joins it.
type embedded struct {
	server      *server.Server
	node, front []nats.Option
	account     string // of the nodes; "": the server's own
	remote      bool   // it knows nothing of subscriptions at other servers
}

// insidePing is the interval of pings on a connection inside the process, which nobody can cut.
const insidePing = time.Minute

// unheard returns a function for cluster.Config.Unheard. It reports whether the node with this connection is the only one that subscribes
// to beats at the embedded server, so that nobody else would receive one. nil: that cannot be known.
func (e *embedded) unheard(nodes *nats.Conn) func() bool {
	account := e.server.GlobalAccount()
	if e.account != "" {
		account, _ = e.server.LookupAccount(e.account)
	}
	if account == nil || e.remote {
		return nil
	}
	siblings := siblingsOf(cluster.BeatSubject)
	return func() bool {
		return account.Interest(cluster.BeatSubject) == 1 && nodes.IsConnected() &&
			!slices.ContainsFunc(siblings, func(subject string) bool { return account.Interest(subject) > 0 })
	}
}

// siblingsOf returns the subject once for each of its tokens, with that token replaced by a random one. Nobody subscribes to such a subject
// by name, so an interest in one shows a subscription with a wildcard, which may match the subject itself. The server's own count of a
// subject's subscriptions stops at the first wildcard that matches, so it alone does not say how many there are.
func siblingsOf(subject string) (list []string) {
	tokens := strings.Split(subject, ".")
	for i := range tokens {
		other := slices.Clone(tokens)
		other[i] = rand.Text()
		list = append(list, strings.Join(other, "."))
	}
	return list
}

// startNATS starts the embedded NATS server with JetStream. Who may join:
//
//   - with --nats-auth-file its users, with their permissions;
//   - with API keys the other processes, by the seed in --data-dir, and everybody else as a client;
//   - with neither every local process, for the server listens on the loopback interface then.
func startNATS(s *config.Serve, keys *auth.Keyring, log zerolog.Logger) (*embedded, error) {
	o, err := natsServerOptions(s)
	if err != nil {
		return nil, err
	}
	return launchNATS(o, s, keys, log)
}

func launchNATS(o *server.Options, s *config.Serve, keys *auth.Keyring, log zerolog.Logger) (_ *embedded, err error) {
	e := &embedded{remote: o.Gateway.Name != ""}
	var keyed *natsAuth
	switch {
	case s.NATSAuthFile != "":
		err = e.ownUsers(o)
	case keys != nil:
		keyed, err = e.keyed(o, s, keys)
	}
	if err != nil {
		return nil, err
	}
	if e.server, err = server.NewServer(o); err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	if keyed != nil {
		if err := keyed.attach(e.server, o.MaxConn); err != nil {
			return nil, fmt.Errorf("embedded NATS server: %w", err)
		}
		log.Info().Str("nkey", keyed.seed).Msg("other processes join the embedded NATS server with --nats-nkey")
	}
	notes := newNATSLog(log)
	e.server.SetLoggerV2(notes, false, false, false)
	e.server.Start()
	ready := e.server.ReadyForConnections(natsStart)
	notes.recovered()
	if !ready {
		e.server.Shutdown()
		return nil, fmt.Errorf("embedded NATS server: found none that accepts connections on %s after %s, expected one", s.NATSListen,
			natsStart)
	}
	inside := []nats.Option{nats.InProcessServer(e.server), nats.PingInterval(insidePing)}
	e.node, e.front = append(e.node, inside...), append(e.front, inside...)
	return e, nil
}

// natsServerOptions returns the options of the embedded server, with the users of --nats-auth-file
// and the certificate of --nats-tls-cert.
func natsServerOptions(s *config.Serve) (*server.Options, error) {
	o := &server.Options{}
	if s.NATSAuthFile != "" {
		var err error
		if o, err = server.ProcessConfigFile(s.NATSAuthFile); err != nil {
			return nil, config.Usagef("--nats-auth-file: %w", err)
		}
		if len(o.Users)+len(o.Nkeys) == 0 {
			return nil, config.Usagef("--nats-auth-file: %s: found no user", s.NATSAuthFile)
		}
	}
	host, portText, err := net.SplitHostPort(s.NATSListen)
	if err != nil {
		return nil, err
	}
	if o.Port, err = strconv.Atoi(portText); err != nil {
		return nil, err
	}
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	o.ServerName, o.Host, o.NoSigs = "millrace", host, true
	o.JetStream, o.StoreDir = true, filepath.Join(s.DataDir, "nats")
	limitNATS(o, s)
	if s.Cert != "" {
		o.TLSConfig, err = server.GenTLSConfig(&server.TLSConfigOpts{
			CertFile: s.Cert, KeyFile: s.Key, CaFile: s.CA, Verify: s.CA != "",
		})
		o.TLS, o.TLSVerify, o.TLSTimeout = true, s.CA != "", float64(server.TLS_TIMEOUT)/float64(time.Second)
	}
	return o, err
}

// limitNATS bounds what connections may take. Limits of --nats-auth-file stay.
func limitNATS(o *server.Options, s *config.Serve) {
	o.MaxPayload = int32(max(min(s.BodyLimit, natsMostPayload), natsLeastPayload))
	setDefault(&o.MaxConn, natsConnections(openFiles()))
	setDefault(&o.MaxSubs, natsMostSubs)
	setDefault(&o.MaxSubTokens, natsMostTokens)
	setDefault(&o.MaxControlLine, server.MAX_CONTROL_LINE_SIZE)
	setDefault(&o.MaxPending, natsMostPending)
	setDefault(&o.AuthTimeout, natsAuthTimeout.Seconds())
	setDefault(&o.WriteDeadline, natsWriteDeadline)
	setDefault(&o.MaxClosedClients, natsClosed)
	setDefault(&o.PingInterval, natsServerPing)
	setDefault(&o.MaxPingsOut, natsServerPings)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// natsConnections is the most connections of the embedded server: a quarter of the files that
// this process may open, for HTTP and the model need some too.
func natsConnections(files uint64) int {
	const share, least = 4, 16
	return int(max(min(files/share, natsMostConnections), least))
}

// openFiles is the most files that this process may have open.
func openFiles() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the usual limit
	}
	return limit.Cur
}

// ownUsers adds users for this process to those of --nats-auth-file: they exist in
// memory only, with passwords that are new at each start.
func (e *embedded) ownUsers(o *server.Options) error {
	nodes, clients, err := accounts(o)
	if err != nil {
		return err
	}
	node := &server.User{Username: "millrace-" + rand.Text(), Password: rand.Text(), Account: nodes}
	front := &server.User{Username: "millrace-front-" + rand.Text(), Password: rand.Text(), Account: clients,
		Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"millrace.v1.>", "$SRV.>"}},
		}}
	o.Users = append(o.Users, node, front)
	if nodes != nil {
		e.account = nodes.Name
	}
	e.node, e.front = []nats.Option{nats.UserInfo(node.Username, node.Password)},
		[]nats.Option{nats.UserInfo(front.Username, front.Password)}
	return nil
}

// accounts finds those of the processes and of the clients: MILLRACE and CLIENTS, or the only one;
// nil is the server's own, of a configuration without accounts.
func accounts(o *server.Options) (nodes, clients *server.Account, err error) {
	var found []*server.Account
	var names []string
	for _, a := range o.Accounts {
		if a.Name == o.SystemAccount || a.Name == server.DEFAULT_SYSTEM_ACCOUNT {
			continue
		}
		found, names = append(found, a), append(names, a.Name)
		switch a.Name {
		case nodesAccount:
			nodes = a
		case clientsAccount:
			clients = a
		}
	}
	switch {
	case len(found) == 0:
		return nil, nil, nil
	case len(found) == 1:
		return found[0], found[0], nil
	case nodes == nil || clients == nil:
		return nil, nil, config.Usagef("--nats-auth-file: found the accounts %s, expected one, or %s and %s, beside the system's",
			strings.Join(names, ", "), nodesAccount, clientsAccount)
	}
	return nodes, clients, nil
}

// password is where the shipped configuration takes a password from.
var password = regexp.MustCompile(`\$(MILLRACE_NATS_[A-Z]+)`)

// keyed gives the embedded server the accounts and permissions of the shipped configuration, and
// an authentication that knows API keys. Its users' passwords are random.
func (e *embedded) keyed(o *server.Options, s *config.Serve, keys *auth.Keyring) (*natsAuth, error) {
	var text strings.Builder
	for _, name := range password.FindAllStringSubmatch(deploy.NATS, -1) {
		fmt.Fprintf(&text, "%s: %q\n", name[1], rand.Text())
	}
	text.WriteString(deploy.NATS)
	parsed := &server.Options{}
	if err := parsed.ProcessConfigString(text.String()); err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	a, err := newNATSAuth(parsed.Users, keys, s.DataDir)
	if err != nil {
		return nil, err
	}
	o.Accounts, o.CustomClientAuthentication, o.AlwaysEnableNonce = parsed.Accounts, a, true
	e.account = nodesAccount
	e.node = []nats.Option{nats.UserInfo(a.node.Username, a.node.Password)}
	e.front = []nats.Option{nats.UserInfo(a.front.Username, a.front.Password)}
	return a, nil
}

// listens returns an error if nobody can listen on an address. The embedded server would say so after seconds only.
func listens(address string) error {
	l, err := net.Listen("tcp", address) //nolint:noctx // it does not wait
	if err != nil {
		return fmt.Errorf("embedded NATS server: %w: --nats-listen takes another address, for a server of its own; --nats URL joins the NATS server that runs there", err)
	}
	return l.Close()
}
