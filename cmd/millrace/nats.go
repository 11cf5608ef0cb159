package main

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/config"
)

// natsStart bounds the wait for the embedded server.
const natsStart = 10 * time.Second

// startNATS starts the embedded NATS server with JetStream.
func startNATS(listen, dataDir string, maxPayload int32, log zerolog.Logger) (*server.Server, error) {
	host, portText, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, err
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		return nil, err
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "millrace", Host: host, Port: port, MaxPayload: maxPayload,
		JetStream: true, StoreDir: filepath.Join(dataDir, "nats"), NoSigs: true, DontListen: false,
	})
	if err != nil {
		return nil, fmt.Errorf("embedded NATS server: %w", err)
	}
	s.SetLoggerV2(natsLog{log}, false, false, false)
	s.Start()
	if !s.ReadyForConnections(natsStart) {
		s.Shutdown()
		return nil, fmt.Errorf("embedded NATS server: cannot listen on %s: is the port in use? --nats-listen takes another one, --nats URL joins a running server", listen)
	}
	return s, nil
}

// connectNATS joins the server at url and keeps trying when it goes away.
func connectNATS(url string, log zerolog.Logger) (*nats.Conn, error) {
	return nats.Connect(url, nats.Name("millrace"), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
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
		}))
}

// openNATS joins the server of --nats or starts the embedded one. stop undoes
// both.
func openNATS(s *config.Serve, log zerolog.Logger) (_ *nats.Conn, stop func(), err error) {
	url, stopServer := s.NATS, func() {}
	if url == "" {
		embedded, err := startNATS(s.NATSListen, s.DataDir, int32(s.BodyLimit), log)
		if err != nil {
			return nil, nil, err
		}
		url = embedded.ClientURL()
		stopServer = func() {
			embedded.Shutdown()
			embedded.WaitForShutdown()
		}
	}
	conn, err := connectNATS(url, log)
	if err != nil {
		stopServer()
		return nil, nil, fmt.Errorf("NATS at %s: %w", url, err)
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
