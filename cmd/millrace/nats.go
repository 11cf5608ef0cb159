package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	neturl "net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/config"
)

// natsPing finds a connection that was cut without a word; two unanswered pings
// are one.
const natsPing = 2 * time.Second

// The waits before further tries to reach a NATS server that is not there yet.
const (
	natsRetryFirst = 100 * time.Millisecond
	natsRetryMost  = 5 * time.Second
)

// Names of our connections. The embedded server with --api-keys takes a node that gives the
// second one as the clients' side of a gateway.
const (
	nodeName  = "millrace"
	frontName = "millrace front"
)

// links are a process's connections to NATS.
type links struct {
	nodes *nats.Conn // to the other processes and JetStream
	front *nats.Conn // of a gateway to its clients, in their account; nil without the role
	stop  func()     // ends both, and the embedded server

	unheard func() bool // see cluster.Config; nil: the server is not embedded
}

// natsOptions say who we are to the server of --nats, and how we know it.
func natsOptions(c *config.NATSClient) ([]nats.Option, error) {
	options := tlsOptions(c)
	if c.Creds != "" {
		options = append(options, nats.UserCredentials(c.Creds))
	}
	if c.NKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(c.NKey)
		if err != nil {
			return nil, config.Usagef("--nats-nkey: %s: %w", c.NKey, err)
		}
		options = append(options, nkey)
	}
	return options, nil
}

func tlsOptions(c *config.NATSClient) (options []nats.Option) {
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		options = append(options, nats.ClientCert(c.Cert, c.Key))
	}
	return options
}

// frontOptions say who a gateway is to its clients' account: --nats-clients is a URL with a user,
// or a file with the seed or the credentials of one. Without it the gateway is who it
// is to the other processes, and clients share their account.
func frontOptions(s *config.Serve) (url string, options []nats.Option, err error) {
	if s.NATSClients == "" {
		options, err = natsOptions(&s.NATSClient)
		return s.NATS, options, err
	}
	options = tlsOptions(&s.NATSClient)
	if strings.Contains(s.NATSClients, "://") {
		return s.NATSClients, options, nil
	}
	text, err := os.ReadFile(s.NATSClients)
	if err != nil {
		return "", nil, config.Usagef("--nats-clients: %w", err)
	}
	if strings.Contains(string(text), "BEGIN NATS USER JWT") {
		return withoutUser(s.NATS), append(options, nats.UserCredentials(s.NATSClients)), nil
	}
	nkey, err := nats.NkeyOptionFromSeed(s.NATSClients)
	if err != nil {
		return "", nil, config.Usagef("--nats-clients: %s: found neither a URL nor a file of a seed or credentials: %w", s.NATSClients, err)
	}
	return withoutUser(s.NATS), append(options, nkey), nil
}

// withoutUser is a list of URLs without users, which would win over a seed.
func withoutUser(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		if u, err := neturl.Parse(strings.TrimSpace(text)); err == nil {
			u.User = nil
			list[i] = u.String()
		}
	}
	return strings.Join(list, ",")
}

// redacted is a list of NATS URLs without passwords, fit for logs and errors.
func redacted(urls string) string {
	list := strings.Split(urls, ",")
	for i, text := range list {
		u, err := neturl.Parse(strings.TrimSpace(text))
		switch {
		case err != nil:
			list[i] = "(not a URL)"
		case u.User != nil:
			u.User = neturl.User("xxxxx")
			fallthrough
		default:
			list[i] = u.String()
		}
	}
	return strings.Join(list, ",")
}

// connectNATS joins the server at url: it waits for one that is not there yet, until ctx ends, and
// keeps trying when it goes away later. A server that refuses us is an error at once.
func connectNATS(ctx context.Context, url, name string, options []nats.Option, log zerolog.Logger) (*nats.Conn, error) {
	options = append([]nats.Option{nats.Name(name), nats.MaxReconnects(-1), nats.ReconnectWait(250 * time.Millisecond),
		nats.PingInterval(natsPing), nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn().Err(err).Msg("NATS connection lost")
			}
		}),
		nats.ReconnectHandler(func(c *nats.Conn) { log.Info().Str("server", c.ConnectedUrlRedacted()).Msg("NATS connection is back") }),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			e := log.Error().Err(err)
			if sub != nil {
				e = e.Str("subject", sub.Subject)
			}
			if errors.Is(err, nats.ErrSlowConsumer) {
				e = e.Str("expected", "a consumer that keeps up")
			}
			e.Msg("NATS")
		})}, options...)
	for wait := natsRetryFirst; ; wait = min(2*wait, natsRetryMost) {
		conn, err := nats.Connect(url, options...)
		if err == nil {
			return conn, nil
		}
		at := redacted(url)
		if !notThere(err) {
			return nil, fmt.Errorf("NATS at %s: %w", at, loginHint(err))
		}
		log.Warn().Err(err).Str("nats", at).Dur("again", wait).Msg("the NATS server is not there yet")
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("NATS at %s: %w", at, err)
		case <-time.After(wait):
		}
	}
}

// notThere says whether an error passes when a server starts, or has room again: what it says
// of us does not.
func notThere(err error) bool {
	if _, refused := errors.AsType[tls.AlertError](err); refused {
		return false
	}
	var network net.Error
	return errors.As(err, &network) || errors.Is(err, nats.ErrNoServers) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, io.EOF) ||
		errors.Is(err, nats.ErrMaxConnectionsExceeded) || errors.Is(err, nats.ErrMaxAccountConnectionsExceeded) ||
		errors.Is(err, nats.ErrStaleConnection) || errors.Is(err, nats.ErrConnectionClosed)
}

// loginHint adds the way out to a refused login.
func loginHint(err error) error {
	if !errors.Is(err, nats.ErrAuthorization) && !errors.Is(err, nats.ErrPermissionViolation) {
		return err
	}
	return fmt.Errorf("%w: expected the login of a node: --nats-creds, --nats-nkey, or a user in the URL; "+
		"of an embedded server with --api-keys: --nats-nkey with %s of that process's --data-dir", err, seedFile)
}

// mayJoin returns an error if the connection is not in the account of the nodes. A server with
// accounts treats a connection without credentials as a client, which receives no heartbeat.
func mayJoin(conn *nats.Conn) error {
	sub, err := conn.SubscribeSync(cluster.BeatSubject)
	if err != nil {
		return err
	}
	if err = conn.FlushTimeout(natsStart); err == nil {
		err = sub.Unsubscribe()
	}
	if last := conn.LastError(); errors.Is(last, nats.ErrPermissionViolation) {
		err = fmt.Errorf("NATS at %s: %w", conn.ConnectedUrlRedacted(), loginHint(last))
	}
	return err
}

// openNATS joins the server of --nats or starts the embedded one.
func openNATS(ctx context.Context, s *config.Serve, keys *auth.Keyring, log zerolog.Logger) (*links, error) {
	if s.NATS == "" {
		return openEmbedded(ctx, s, keys, log)
	}
	options, err := natsOptions(&s.NATSClient)
	if err != nil {
		return nil, err
	}
	l := &links{stop: func() {}}
	if l.nodes, err = connectNATS(ctx, s.NATS, nodeName, options, log); err != nil {
		return nil, err
	}
	l.stop = l.nodes.Close
	if err := mayJoin(l.nodes); err != nil {
		l.stop()
		return nil, err
	}
	if !s.Roles.Has(cluster.Gateway) {
		return l, nil
	}
	url, options, err := frontOptions(s)
	if err == nil {
		err = l.openFront(ctx, url, options, log)
	}
	if err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}

// openFront makes a gateway's connection to its clients.
func (l *links) openFront(ctx context.Context, url string, options []nats.Option, log zerolog.Logger) (err error) {
	if l.front, err = connectNATS(ctx, url, frontName, options, log); err != nil {
		return err
	}
	stop := l.stop
	l.stop = func() {
		l.front.Close()
		stop()
	}
	return nil
}

// openEmbedded takes the folder of --data-dir, starts the embedded server and joins it inside the process: no TLS, whatever the
// network gets.
func openEmbedded(ctx context.Context, s *config.Serve, keys *auth.Keyring, log zerolog.Logger) (*links, error) {
	if err := listens(s.NATSListen); err != nil {
		return nil, err
	}
	folder, err := openDataDir(ctx, s, log)
	if err != nil {
		return nil, err
	}
	e, err := startNATS(s, keys, log)
	if err != nil {
		return nil, errors.Join(err, folder.Close())
	}
	url := "nats://" + e.server.Addr().String()
	l := &links{stop: func() {
		e.server.Shutdown()
		e.server.WaitForShutdown()
		folder.Close() //nolint:errcheck // the process releases it at its end
	}}
	if err := folder.Serves(e.server.Addr().String()); err != nil {
		l.stop()
		return nil, err
	}
	l.nodes, err = connectNATS(ctx, url, nodeName, e.node, log)
	if err == nil {
		stop := l.stop
		l.stop = func() {
			l.nodes.Close()
			stop()
		}
		l.unheard = e.unheard(l.nodes)
		if s.Roles.Has(cluster.Gateway) {
			err = l.openFront(ctx, url, e.front, log)
		}
	}
	if err != nil {
		l.stop()
		return nil, err
	}
	return l, nil
}
