// Package edge is the HTTP server of every role: it bounds what a client can hold. There is a
// deadline for each thing that a client has to do: send a header, send a body, take a part of an
// answer, come with the next request. At the cap of connections the oldest one that waits for its
// client makes room for a new one. It must not know routes or what a request contains.
package edge

import (
	"context"
	stdlog "log" //nolint:depguard // net/http takes no other logger; errorLog passes on what it says
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Limits of a server. The zero value of each is the default that its comment names.
type Limits struct {
	Header      time.Duration // for a client to send a header, the TLS handshake before it included; 10 s
	Body        time.Duration // for a client to send a body, beyond the time that it takes at BodyRate; 10 s
	BodyRate    int           // bytes per second that a client is expected to send at least; 8 KiB, as a slow mobile link (64 kbit/s) has
	Drain       time.Duration // an unread body is read for so long after its answer, so that the client gets that; 1 s
	Idle        time.Duration // between two requests of a connection; 90 s, longer than most load balancers keep one
	Write       time.Duration // for a client to take the next 64 KiB of an answer, or what there is of it; 30 s
	Connections int           // open at once; half of the process's file limit, at most 16,384
}

// maxHeader is the size of a request's header at most, in bytes.
const maxHeader = 64 << 10

// maxStreams is how many requests a connection of HTTP/2 has open at once.
const maxStreams = 250

func (l *Limits) defaults() {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&l.Header, 10 * time.Second}, {&l.Body, 10 * time.Second}, {&l.Drain, time.Second},
		{&l.Idle, 90 * time.Second}, {&l.Write, 30 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	if l.BodyRate == 0 {
		l.BodyRate = 8 << 10
	}
	if l.Connections == 0 {
		l.Connections = maxConnections(fileLimit())
	}
}

// maxConnections leaves half of the files that a process may have open to everything else: NATS
// connections, journals, the model's files.
func maxConnections(files uint64) int {
	const least, most = 16, 16 << 10
	return int(min(max(files/2, least), most))
}

// fileLimit is how many files the process may have open. Go has raised it to the hard limit.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // the usual one
	}
	return limit.Cur
}

// Server is an http.Server within limits. It is a collector of its own metrics.
type Server struct {
	*http.Server
	prometheus.Collector
	conns *conns
}

// New returns a server for handler.
func New(handler http.Handler, limits Limits, log zerolog.Logger) *Server {
	limits.defaults()
	c := newConns(&limits)
	return &Server{conns: c, Collector: c, Server: &http.Server{
		Handler:           withDeadlines(handler, &limits),
		ReadHeaderTimeout: limits.Header, IdleTimeout: limits.Idle, MaxHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, WriteByteTimeout: limits.Write,
			SendPingTimeout: limits.Idle, PingTimeout: limits.Write,
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, connOf(c))
		},
		ConnState: c.state,
		ErrorLog:  stdlog.New(&errorLog{log}, "", 0),
	}}
}

// Listener is l within the server's limits.
func (s *Server) Listener(l net.Listener) net.Listener { return &listener{l, s.conns} }

// Serve is http.Server's.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(s.Listener(l)) }

// ServeTLS is http.Server's.
func (s *Server) ServeTLS(l net.Listener, cert, key string) error {
	return s.Server.ServeTLS(s.Listener(l), cert, key)
}

// errorLog takes the lines of an http.Server. What clients can cause is not worth a line each.
type errorLog struct{ log zerolog.Logger }

func (l *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	level := zerolog.DebugLevel
	if strings.Contains(text, "panic serving") || strings.Contains(text, "Accept error") {
		level = zerolog.ErrorLevel
	}
	l.log.WithLevel(level).Msg(text)
	return len(line), nil
}
