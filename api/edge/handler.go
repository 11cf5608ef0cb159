package edge

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// bounded gives each request's body and each write of its answer their deadlines, and tells the
// connection when it is being answered.
func bounded(next http.Handler, limits *Limits) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, _ := r.Context().Value(connKey{}).(*conn)
		x := &exchange{limits: limits, conn: c, rc: http.NewResponseController(w), shared: r.ProtoMajor > 1}
		defer x.end(w)
		if r.ContentLength == 0 { // there is no body
			x.complete()
		} else {
			x.begun = time.Now()
			x.readBy(x.begun.Add(limits.Body))
			bodied := *r // the server looks at its own request's body
			bodied.Body = &body{r.Body, x}
			r = &bodied
		}
		next.ServeHTTP(&writer{ResponseWriter: w, x: x}, r)
	})
}

// exchange is a request and its answer.
type exchange struct {
	limits *Limits
	conn   *conn // nil in tests without a server of this package
	rc     *http.ResponseController
	shared bool      // its connection may have others (HTTP/2)
	begun  time.Time // of the body
	got    int64     // bytes of the body
	whole  atomic.Bool
}

// due is when the next bytes of a body that began at begun have to be there: a steady client gets
// as much time as it needs, one that sends a byte now and then does not.
func (l *Limits) due(begun time.Time, got int64) time.Time {
	return begun.Add(l.Body + time.Duration(float64(got)/float64(l.BodyRate)*float64(time.Second)))
}

// complete says that the request is all there.
func (x *exchange) complete() {
	if x.whole.CompareAndSwap(false, true) && x.conn != nil {
		x.conn.conns.do((*table[*conn]).answer, x.conn)
	}
}

// end bounds what is left to do when the handler has returned: to write the rest of the answer and to read the
// rest of the body.
func (x *exchange) end(w http.ResponseWriter) {
	if x.shared {
		x.writeBy(time.Now().Add(x.limits.Write))
	}
	switch {
	case !x.whole.Load():
		if !x.shared {
			w.Header().Set("Connection", "close") // without effect where the header is written, which set it
		}
		x.readBy(time.Now().Add(x.limits.Drain))
	case x.shared && x.conn != nil:
		x.conn.conns.do((*table[*conn]).answered, x.conn)
	}
	// An HTTP/1 connection is being answered until the server says that it is idle, or closes it.
}

// readBy and writeBy have no effect on writers that are no connection, as in tests.
func (x *exchange) readBy(t time.Time) { x.rc.SetReadDeadline(t) } //nolint:errcheck // see above

func (x *exchange) writeBy(t time.Time) { x.rc.SetWriteDeadline(t) } //nolint:errcheck // as readBy

// timed gives one write a deadline. It must not stand while nothing is written: HTTP/2 ends the
// request then.
func (x *exchange) timed(write func() error) error {
	if !x.shared {
		return write() // see conn.Write
	}
	x.writeBy(time.Now().Add(x.limits.Write))
	err := write()
	if err == nil {
		x.writeBy(time.Time{})
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
	if !x.whole.Load() {
		x.readBy(x.limits.due(x.begun, x.got))
	}
	n, err := b.ReadCloser.Read(p)
	x.got += int64(n)
	if errors.Is(err, io.EOF) && !x.whole.Load() {
		x.complete() // net/http reads on without a deadline, to notice when the client leaves
	}
	return n, err
}

// writer answers a request.
type writer struct {
	http.ResponseWriter
	x      *exchange
	headed bool
}

// header is called before the header is written. A connection is closed behind an answer that did
// not wait for the request's body: its client is not made to send it, and we do not read it.
func (w *writer) header() {
	if !w.headed && !w.x.whole.Load() && !w.x.shared {
		w.Header().Set("Connection", "close")
	}
	w.headed = true
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
		err = w.x.timed(func() error {
			m, err := w.ResponseWriter.Write(p[n:min(len(p), n+piece)])
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
	return w.x.timed(w.x.rc.Flush)
}

// Unwrap is for http.ResponseController.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }
