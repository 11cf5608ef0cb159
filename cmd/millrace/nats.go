package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	neturl "net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/config"
)

// natsStart bounds the wait for the embedded server.
const natsStart = 10 * time.Second

// natsPing finds a connection that was cut without a word; two unanswered pings
// are one.
const natsPing = 2 * time.Second

// natsServerOptions are those of the embedded server. In front of the network
// it has the users of --nats-auth-file and the certificate of --nats-tls-cert.
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
	o.ServerName, o.Host, o.MaxPayload, o.NoSigs = "millrace", host, int32(s.BodyLimit), true
	o.JetStream, o.StoreDir = true, filepath.Join(s.DataDir, "nats")
	if s.Cert != "" {
		o.TLSConfig, err = server.GenTLSConfig(&server.TLSConfigOpts{
			CertFile: s.Cert, KeyFile: s.Key, CaFile: s.CA, Verify: s.CA != "",
		})
		o.TLS, o.TLSVerify, o.TLSTimeout = true, s.CA != "", float64(server.TLS_TIMEOUT)/float64(time.Second)
	}
	return o, err
}

// ownUser adds a user for this process to the embedded server's: it exists in
// memory only, and its password is new at each start.
func ownUser(o *server.Options) (nats.Option, error) {
	if len(o.Users)+len(o.Nkeys) == 0 {
		return func(*nats.Options) error { return nil }, nil
	}
	u := &server.User{Username: "millrace-" + rand.Text(), Password: rand.Text()}
	for _, a := range o.Accounts {
		switch {
		case a.Name == o.SystemAccount || a.Name == server.DEFAULT_SYSTEM_ACCOUNT:
		case u.Account != nil:
			return nil, config.Usagef("--nats-auth-file: found the accounts %s and %s, expected one beside the system's", u.Account.Name, a.Name)
		default:
			u.Account = a
		}
	}
	o.Users = append(o.Users, u)
	return nats.UserInfo(u.Username, u.Password), nil
}

// startNATS starts the embedded NATS server with JetStream. The options are for
// our own connection to it, which stays inside the process.
func startNATS(s *config.Serve, log zerolog.Logger) (*server.Server, []nats.Option, error) {
	o, err := natsServerOptions(s)
	if err != nil {
		return nil, nil, err
	}
	user, err := ownUser(o)
	if err != nil {
		return nil, nil, err
	}
	e, err := server.NewServer(o)
	if err != nil {
		return nil, nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	e.SetLoggerV2(natsLog{log}, false, false, false)
	e.Start()
	if !e.ReadyForConnections(natsStart) {
		e.Shutdown()
		return nil, nil, fmt.Errorf("embedded NATS server: cannot listen on %s: is the port in use? --nats-listen takes another one, --nats URL joins a running server", s.NATSListen)
	}
	return e, []nats.Option{nats.InProcessServer(e), user}, nil
}

// natsOptions say who we are to the server of --nats, and how we know it.
func natsOptions(c *config.NATSClient) ([]nats.Option, error) {
	var options []nats.Option
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
	if c.CA != "" {
		options = append(options, nats.RootCAs(c.CA))
	}
	if c.Cert != "" {
		options = append(options, nats.ClientCert(c.Cert, c.Key))
	}
	return options, nil
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

// connectNATS joins the server at url and keeps trying when it goes away.
func connectNATS(url string, options []nats.Option, log zerolog.Logger) (*nats.Conn, error) {
	return nats.Connect(url, append(options, nats.Name("millrace"), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
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
		}))...)
}

// openNATS joins the server of --nats or starts the embedded one. stop undoes
// both.
func openNATS(s *config.Serve, log zerolog.Logger) (_ *nats.Conn, stop func(), err error) {
	url, stopServer := s.NATS, func() {}
	var options []nats.Option
	if url == "" {
		var embedded *server.Server
		if embedded, options, err = startNATS(s, log); err != nil {
			return nil, nil, err
		}
		url = "nats://" + embedded.Addr().String() // in the process: no TLS, whatever the network gets
		stopServer = func() {
			embedded.Shutdown()
			embedded.WaitForShutdown()
		}
	} else if options, err = natsOptions(&s.NATSClient); err != nil {
		return nil, nil, err
	}
	conn, err := connectNATS(url, options, log)
	if err != nil {
		stopServer()
		return nil, nil, fmt.Errorf("NATS at %s: %w", redacted(url), err)
	}
	return conn, func() {
		conn.Close()
		stopServer()
	}, nil
}

// natsLog hands the embedded server's messages to our log: its notices are
// details here.
type natsLog struct{ log zerolog.Logger }

func (l natsLog) Noticef(format string, v ...any) { l.log.Debug().Msgf("nats: "+format, v...) }
func (l natsLog) Warnf(format string, v ...any)   { l.log.Warn().Msgf("nats: "+format, v...) }
func (l natsLog) Fatalf(format string, v ...any)  { l.log.Error().Msgf("nats: "+format, v...) }
func (l natsLog) Errorf(format string, v ...any)  { l.log.Error().Msgf("nats: "+format, v...) }
func (l natsLog) Debugf(format string, v ...any)  { l.log.Debug().Msgf("nats: "+format, v...) }
func (l natsLog) Tracef(format string, v ...any)  { l.log.Trace().Msgf("nats: "+format, v...) }
