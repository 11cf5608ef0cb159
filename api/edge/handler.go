package edge

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// withDeadlines gives each request's body and each write of its answer their deadlines, and tells the
// connection when it is being answered.
func withDeadlines(next http.Handler, limits *Limits) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*conn)
		x := &exchange{limits: limits, conn: c, rc: http.NewResponseController(w), multiplexed: r.ProtoMajor > 1}
		defer x.end(w)
		if r.ContentLength == 0 { // there is no body
			x.complete()
		} else {
			x.bodyStart = time.Now()
			x.setReadDeadline(x.bodyStart.Add(limits.Body))
			bodied := *r // the server looks at its own request's body
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
	multiplexed bool      // its connection may have others (HTTP/2)
	bodyStart   time.Time // of the body
	bodyBytes   int64     // bytes of the body
	received    atomic.Bool
}

// bodyDeadline is when the next bytes of a body that began at begun have to be there: a steady client gets
// as much time as it needs, one that sends a byte now and then does not.
func (l *Limits) bodyDeadline(start time.Time, received int64) time.Time {
	return start.Add(l.Body + time.Duration(float64(received)/float64(l.BodyRate)*float64(time.Second)))
}

// complete says that the request is all there.
func (x *exchange) complete() {
	if x.received.CompareAndSwap(false, true) && x.conn != nil {
		x.conn.conns.update((*table[*conn]).beginAnswer, x.conn)
	}
}

// end bounds what is left to do when the handler has returned: to write the rest of the answer and to read the
// rest of the body.
func (x *exchange) end(w http.ResponseWriter) {
	if x.multiplexed {
		x.setWriteDeadline(time.Now().Add(x.limits.Write))
	}
	switch {
	case !x.received.Load():
		if !x.multiplexed {
			w.Header().Set("Connection", "close") // without effect where the header is written, which set it
		}
		x.setReadDeadline(time.Now().Add(x.limits.Drain))
	case x.multiplexed && x.conn != nil:
		x.conn.conns.update((*table[*conn]).endAnswer, x.conn)
	}
	// An HTTP/1 connection is being answered until the server says that it is idle, or closes it.
}

// setReadDeadline and writeDeadline have no effect on writers that are no connection, as in tests.
func (x *exchange) setReadDeadline(t time.Time) { x.rc.SetReadDeadline(t) } //nolint:errcheck // see above

func (x *exchange) setWriteDeadline(t time.Time) { x.rc.SetWriteDeadline(t) } //nolint:errcheck // as setReadDeadline

// withWriteDeadline gives one write a deadline. It must not stand while nothing is written: HTTP/2 ends the
// request then.
func (x *exchange) withWriteDeadline(write func() error) error {
	if !x.multiplexed {
		return write() // see conn.Write
	}
	x.setWriteDeadline(time.Now().Add(x.limits.Write))
	err := write()
	if err == nil {
		x.setWriteDeadline(time.Time{})
	}
	return err
}

// body is read within a time that grows with what came of it.
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
		x.complete() // net/http reads on without a deadline, to notice when the client leaves
	}
	return n, err
}

// writer answers a request.
type writer struct {
	http.ResponseWriter
	x           *exchange
	wroteHeader bool
}

// header is called before the header is written. A connection is closed behind an answer that did
// not wait for the request's body: its client is not made to send it, and we do not read it.
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

// Write has a deadline for each piece. That of an HTTP/1 connection is set by conn.Write; a request
// of HTTP/2 needs its own, since a client can stop to read one and take the others.
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
