// Package httpserver is the HTTP server of every role: it bounds what a client can hold. There is a
// deadline for each thing that a client has to do: send a header, send a body, take a part of an
// answer, come with the next request. At the cap of connections the oldest one that waits for its
// client makes room for a new one. It must not know routes or what a request contains.
package httpserver

import (
	"context"
	stdlog "log" //nolint:depguard // net/http takes no other logger; errorLog forwards its lines
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
)

// Limits bound the resources of clients. The zero value of a field means the default that its comment
// names last.
type Limits struct {
	Header      time.Duration // to receive a header, with the TLS handshake before it; 10 s
	Body        time.Duration // to receive a body, in addition to its time at BodyRate; 10 s
	BodyRate    int           // minimum rate of a body, in bytes per second; 8 KiB, a slow mobile link (64 kbit/s)
	Drain       time.Duration // to read an unread body after its answer, so that the client receives the answer; 10 s
	DrainBytes  int64         // of an unread body that are read and dropped after its answer; 64 MiB
	Idle        time.Duration // between two requests of a connection; 90 s, longer than most load balancers keep a connection
	Write       time.Duration // to send up to 64 KiB of an answer; 30 s
	Connections int           // open connections; half of the process's file limit, at most 16,384
}

// maxHeader is the maximum size of a request's header, in bytes.
const maxHeader = 64 << 10

// maxStreams is the maximum number of open requests of an HTTP/2 connection.
const maxStreams = 250

func (l *Limits) defaults() {
	for _, d := range []struct {
		value    *time.Duration
		fallback time.Duration
	}{
		{&l.Header, 10 * time.Second}, {&l.Body, 10 * time.Second}, {&l.Drain, 10 * time.Second},
		{&l.Idle, 90 * time.Second}, {&l.Write, 30 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.fallback
		}
	}
	if l.BodyRate == 0 {
		l.BodyRate = 8 << 10
	}
	if l.DrainBytes == 0 {
		l.DrainBytes = 64 << 20
	}
	if l.Connections == 0 {
		l.Connections = maxConnections(fileLimit())
	}
}

// maxConnections returns half of the process's file limit. The other half is for NATS connections,
// journals and the model's files.
func maxConnections(files uint64) int {
	const least, most = 16, 16 << 10
	return int(min(max(files/2, least), most))
}

// fileLimit returns the limit of open files, which the Go runtime has raised to the hard limit.
func fileLimit() uint64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 1024 // the common default
	}
	return limit.Cur
}

// Server is an http.Server with Limits. It collects its own metrics.
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

// Listener returns l with the server's limits.
func (s *Server) Listener(l net.Listener) net.Listener { return &listener{l, s.conns} }

// Serve is http.Server.Serve with the server's limits.
func (s *Server) Serve(l net.Listener) error { return s.Server.Serve(s.Listener(l)) }

// ServeTLS is http.Server.ServeTLS with the server's limits.
func (s *Server) ServeTLS(l net.Listener, cert, key string) error {
	return s.Server.ServeTLS(s.Listener(l), cert, key)
}

// errorLog logs the lines of an http.Server. Errors that clients can cause are logged as debug.
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
