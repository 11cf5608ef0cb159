package httpserver

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// withDeadlines sets a deadline for the body of each request and for each write of the answer, and marks
// the connection as being answered.
func withDeadlines(next http.Handler, limits *Limits) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*conn)
		x := &exchange{limits: limits, conn: c, rc: http.NewResponseController(w), multiplexed: r.ProtoMajor > 1, unread: r.Body}
		defer x.end(w)
		if r.ContentLength == 0 {
			x.complete()
		} else {
			x.bodyStart = time.Now()
			x.setReadDeadline(x.bodyStart.Add(limits.Body))
			if r.Header.Get("Expect") != "" {
				x.unread = nil // its client waits for the answer before it sends the body
			}
			bodied := *r // a copy, because the server reads the body of its own request
			bodied.Body = &body{r.Body, x}
			r = &bodied
		}
		next.ServeHTTP(&writer{ResponseWriter: w, x: x}, r)
	})
}

// exchange is a request and its answer.
type exchange struct {
	limits      *Limits
	conn        *conn // nil in tests without a server of this package
	rc          *http.ResponseController
	multiplexed bool      // HTTP/2: the connection may carry other requests
	unread      io.Reader // what the client still sends after its answer; nil: nothing
	bodyStart   time.Time
	bodyBytes   int64       // received so far
	received    atomic.Bool // the whole request is here
}

// bodyDeadline returns when the next bytes of a body must arrive. A client that sends at BodyRate or
// faster never meets it. One that sends a byte now and then does.
func (l *Limits) bodyDeadline(start time.Time, received int64) time.Time {
	return start.Add(l.Body + time.Duration(float64(received)/float64(l.BodyRate)*float64(time.Second)))
}

// complete marks the request as received.
func (x *exchange) complete() {
	if x.received.CompareAndSwap(false, true) && x.conn != nil {
		x.conn.conns.update((*table[*conn]).beginAnswer, x.conn)
	}
}

// end sets deadlines for the work that remains after the handler has returned: writing the rest of the
// answer and reading the rest of the body.
func (x *exchange) end(w http.ResponseWriter) {
	if x.multiplexed {
		x.setWriteDeadline(time.Now().Add(x.limits.Write))
	}
	switch {
	case !x.received.Load():
		if !x.multiplexed {
			w.Header().Set("Connection", "close") // without effect if the header is written, which set it
		}
		within := x.limits.Drain
		if x.unread == nil {
			within = 0
		}
		x.setReadDeadline(time.Now().Add(within))
		x.discard()
	case x.multiplexed && x.conn != nil:
		x.conn.conns.update((*table[*conn]).endAnswer, x.conn)
	}
	// An HTTP/1 connection is being answered until the server reports it idle or closes it.
}

// discard sends the answer and reads the rest of the body, within Drain and DrainBytes. A client that writes its whole body before it reads
// would not receive the answer otherwise: to close a connection with unread data resets it. HTTP/2 ends a stream without that.
func (x *exchange) discard() {
	if x.unread == nil || x.multiplexed || x.rc.Flush() != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, x.unread, x.limits.DrainBytes) // the connection closes in any case
}

// setReadDeadline has no effect on a writer without a connection, as in tests.
func (x *exchange) setReadDeadline(t time.Time) { x.rc.SetReadDeadline(t) } //nolint:errcheck // see above

// setWriteDeadline is the same for writes.
func (x *exchange) setWriteDeadline(t time.Time) { x.rc.SetWriteDeadline(t) } //nolint:errcheck // as above

// withWriteDeadline gives one write a deadline and removes it after the write: HTTP/2 ends a request at the
// deadline even if nothing is being written.
func (x *exchange) withWriteDeadline(write func() error) error {
	if !x.multiplexed {
		return write() // conn.Write sets the deadline
	}
	x.setWriteDeadline(time.Now().Add(x.limits.Write))
	err := write()
	if err == nil {
		x.setWriteDeadline(time.Time{})
	}
	return err
}

// body is a request body whose deadline moves with the received bytes.
type body struct {
	io.ReadCloser
	x *exchange
}

func (b *body) Read(p []byte) (int, error) {
	x := b.x
	if !x.received.Load() {
		x.setReadDeadline(x.limits.bodyDeadline(x.bodyStart, x.bodyBytes))
	}
	n, err := b.ReadCloser.Read(p)
	x.bodyBytes += int64(n)
	if errors.Is(err, io.EOF) && !x.received.Load() {
		x.complete() // net/http keeps reading without a deadline, to notice when the client disconnects
	}
	return n, err
}

// writer writes the answer to a request.
type writer struct {
	http.ResponseWriter
	x           *exchange
	wroteHeader bool
}

// header runs before the header is written. An answer that did not wait for the request's body closes
// the connection, so the client need not send the body and the server need not read it.
func (w *writer) header() {
	if !w.wroteHeader && !w.x.received.Load() && !w.x.multiplexed {
		w.Header().Set("Connection", "close")
	}
	w.wroteHeader = true
}

func (w *writer) WriteHeader(status int) {
	if status >= http.StatusOK {
		w.header()
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write gives each piece a deadline. conn.Write sets that of an HTTP/1 connection. A request of HTTP/2
// needs its own, because a client can stop reading one and read the others.
func (w *writer) Write(p []byte) (n int, err error) {
	w.header()
	for {
		err = w.x.withWriteDeadline(func() error {
			m, err := w.ResponseWriter.Write(p[n:min(len(p), n+pieceSize)])
			n += m
			return err
		})
		if err != nil || n == len(p) {
			return n, err
		}
	}
}

// FlushError is for http.ResponseController.
func (w *writer) FlushError() error {
	w.header()
	return w.x.withWriteDeadline(w.x.rc.Flush)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
