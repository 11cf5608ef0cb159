package httpserver

import (
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// conns holds the open connections of a server.
type conns struct {
	limits *Limits

	mu    sync.Mutex
	table *table[*conn]

	open            prometheus.GaugeFunc
	closed, refused prometheus.Counter
}

func newConns(limits *Limits) *conns {
	c := &conns{limits: limits, table: newTable[*conn](limits.Connections)}
	c.open = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "millrace_http_connections", Help: "Open HTTP connections.",
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(len(c.table.conns))
	})
	const name, help = "millrace_http_connections_closed_total",
		"HTTP connections closed at the limit: the one that waited longest for its client, or the new one if all others were being answered."
	counter := func(which string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"which": which}})
	}
	c.closed, c.refused = counter("oldest"), counter("new")
	return c
}

// Describe implements prometheus.Collector.
func (c *conns) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, to) }

// Collect implements prometheus.Collector.
func (c *conns) Collect(to chan<- prometheus.Metric) {
	for _, m := range []prometheus.Collector{c.open, c.closed, c.refused} {
		m.Collect(to)
	}
}

// enter adds a new connection, and closes another one if the table is full. It returns false if none may
// be closed.
func (c *conns) enter(x *conn) bool {
	c.mu.Lock()
	victim, evicted, added := c.table.enter(x)
	c.mu.Unlock()
	if evicted {
		c.closed.Inc()
		_ = victim.Conn.Close() // its goroutine gets an error
	}
	if !added {
		c.refused.Inc()
	}
	return added
}

// update applies a change to the table.
func (c *conns) update(change func(*table[*conn], *conn), x *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c.table, x)
}

// state is the ConnState hook of the server.
func (c *conns) state(nc net.Conn, s http.ConnState) {
	x := connOf(nc)
	if x == nil {
		return
	}
	switch s {
	case http.StateActive:
		c.update((*table[*conn]).beginRequest, x)
	case http.StateIdle:
		c.update((*table[*conn]).setIdle, x)
	case http.StateNew, http.StateClosed, http.StateHijacked: // see listener.Accept and conn.Close
	}
}

// listener accepts connections within the server's limit.
type listener struct {
	net.Listener
	conns *conns
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		nc, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, conns: l.conns}
		if l.conns.enter(c) {
			return c, nil
		}
		_ = nc.Close() // nothing was read from it
	}
}

// conn is a connection that gives each write a deadline.
type conn struct {
	net.Conn
	conns *conns
	until atomic.Int64 // the caller's deadline for writes, in nanoseconds since 1970; 0: none
}

type connKey struct{}

// connOf returns the conn of a connection of http.Server, nil if there is none.
func connOf(nc net.Conn) *conn {
	if above, ok := nc.(interface{ NetConn() net.Conn }); ok { // TLS
		nc = above.NetConn()
	}
	c, _ := nc.(*conn)
	return c
}

// pieceSize is the number of bytes that share a write deadline.
const pieceSize = 64 << 10

// Write implements net.Conn. Each piece has its own deadline, so a slow client that keeps reading gets
// the whole answer.
func (c *conn) Write(p []byte) (n int, err error) {
	for {
		if err := c.Conn.SetWriteDeadline(c.writeDeadline(time.Now())); err != nil {
			return n, err
		}
		m, err := c.Conn.Write(p[n:min(len(p), n+pieceSize)])
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// writeDeadline returns the deadline of a write that begins now.
func (c *conn) writeDeadline(now time.Time) time.Time {
	by := now.Add(c.conns.limits.Write)
	if until := c.until.Load(); until != 0 && until < by.UnixNano() {
		return time.Unix(0, until)
	}
	return by
}

// SetWriteDeadline implements net.Conn: writes end at the earlier of t and their own deadline.
func (c *conn) SetWriteDeadline(t time.Time) error {
	if t.IsZero() {
		c.until.Store(0)
		return nil
	}
	c.until.Store(t.UnixNano())
	return c.Conn.SetWriteDeadline(c.writeDeadline(time.Now()))
}

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.conns.update((*table[*conn]).leave, c)
	return c.Conn.Close()
}
