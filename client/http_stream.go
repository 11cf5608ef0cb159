package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// httpStream reads one answer over any number of connections.
type httpStream struct {
	t      *httpTransport
	call   call
	resp   *answer // nil while there is no connection
	events *sseReader
	id     string        // id of a resumable answer; "" for any other
	since  int           // chunks since the last event number, which the server sends again
	skip   int           // repeated chunks that are still expected
	limit  time.Duration // longest silence of a connection
	idle   *time.Timer   // closes a connection that is silent for limit
	ended  bool          // the server has nothing left to cancel
}

// errEnd reports that the stream is complete.
var errEnd = errors.New("millrace: the end of the stream")

// next returns the next chunk, or errEnd after the last one.
func (s *httpStream) next(ctx context.Context) ([]byte, error) {
	for {
		if s.resp == nil {
			if err := s.open(ctx); err != nil {
				s.ended = true
				return nil, err
			}
		}
		data, err := s.read()
		if err == nil && s.skip > 0 {
			s.skip--
			continue
		}
		if err != nil && s.lost(err) && ctx.Err() == nil {
			s.disconnect()
			s.skip = s.since
			continue
		}
		s.ended = err != nil && ctx.Err() == nil
		return data, err
	}
}

// lost reports whether a resumable stream can continue after an error.
func (s *httpStream) lost(err error) bool {
	return s.id != "" && (errors.Is(err, ErrCut) || code(err) == codeMoved)
}

// read returns the next chunk of the connection.
func (s *httpStream) read() ([]byte, error) {
	s.idle.Reset(s.limit)
	data, err := s.events.next(func() { s.idle.Reset(s.limit) })
	switch {
	case err != nil:
		return nil, err
	case string(data) == "[DONE]":
		return nil, errEnd
	case bytes.HasPrefix(data, []byte(`{"error"`)):
		return nil, inStream(data)
	case s.skip > 0: // counted already
	case s.events.numbered:
		s.since = 0
	default:
		s.since++
	}
	return data, nil
}

// inStream decodes an error inside a stream, which has no status and no headers. The refusal of a
// worker, after a ping, gets the status of a refusal.
func inStream(data []byte) *Error {
	e := parseError(0, data, "")
	if e.Type == "rate_limit_error" {
		e.Status, e.RetryAfter = http.StatusTooManyRequests, time.Second // the least of servers
	}
	return e
}

// open sends the request or, after the first chunks, requests the rest. It retries
// temporary errors for resumeFor.
func (s *httpStream) open(ctx context.Context) error {
	begin := time.Now()
	for tries := 0; ; tries++ {
		s.call.wait = s.headerWait(tries, time.Since(begin))
		resp, err := s.t.send(ctx, s.call) //nolint:bodyclose // disconnect closes it
		if err == nil {
			last := uint64(0)
			if s.events != nil {
				last = s.events.last
			}
			s.resp, s.events = resp, &sseReader{r: bufio.NewReader(resp.Body), last: last}
			if id := resp.Header.Get(headerID); id != "" {
				s.id = id
				s.call = call{method: http.MethodGet, path: "/v1/streams/" + id, idempotent: true}
			}
			s.limit = silenceLimit(s.t.silence, s.id, resp.Header.Get(headerInterval))
			s.idle = time.AfterFunc(s.limit, func() { // the server hangs, or its network is cut
				s.t.leave(resp.from)
				resp.end()
			})
			return nil
		}
		if time.Since(begin) > s.t.resumeFor || !s.temporary(err) || !sleep(ctx, backoff(tries)) {
			if s.id != "" && ctx.Err() == nil {
				return fmt.Errorf("%w: %w", ErrGap, err)
			}
			return err
		}
	}
}

// headerWait bounds the wait for the header of an answer, which a live server sends within one
// silence: a suspended server accepts requests and does not answer. Another server finds the same
// call. The last try has no bound (0), since the call itself may be what takes the time.
func (s *httpStream) headerWait(tries int, since time.Duration) time.Duration {
	const first = 5 * time.Second
	wait := first << min(tries, 6)
	switch {
	case !s.call.idempotent || since+wait > s.t.resumeFor:
		return 0
	case s.id != "":
		return s.limit
	case len(s.t.bases) == 1:
		return 0
	}
	return wait
}

// temporary reports whether a later try may succeed. The caller handles a first refusal, and
// a server that was never reachable.
func (s *httpStream) temporary(err error) bool {
	var said *Error
	if !errors.As(err, &said) {
		return s.id != "" || s.call.idempotent && !unreachable(err)
	}
	return stopping(err) || (s.id != "" || s.call.idempotent && errors.Is(err, errUnanswered)) &&
		(said.Status == http.StatusServiceUnavailable || said.Status == http.StatusTooManyRequests)
}

// disconnect closes the connection, if there is one. The next one continues after its last event.
func (s *httpStream) disconnect() {
	if s.resp == nil {
		return
	}
	s.idle.Stop()
	s.resp.Body.Close()
	s.resp = nil
	if s.events.last > 0 {
		s.call.after = strconv.FormatUint(s.events.last, 10)
	}
}

// close closes the connection, which cancels an answer that has not ended. A resumable
// answer is cancelled by a request.
func (s *httpStream) close() {
	s.disconnect()
	if s.ended || s.id == "" {
		return
	}
	const patience = 2 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := s.t.send(ctx, call{method: http.MethodDelete, path: "/v1/streams/" + s.id, idempotent: true})
	if err == nil {
		resp.Body.Close()
	}
}

// sseReader reads the data of server-sent events. Their ids are the numbers of the server's
// events, and grow. Missing numbers are no gap, since an event without text sends nothing
// and TCP loses nothing.
type sseReader struct {
	r        *bufio.Reader
	data     []byte
	last     uint64 // last id; 0 before the first
	numbered bool   // the message has an id: its event is complete
}

// next returns the data of the next message. It calls alive for each line.
func (s *sseReader) next(alive func()) ([]byte, error) {
	s.data, s.numbered = s.data[:0], false
	for {
		line, err := s.r.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
		alive()
		line = bytes.TrimRight(line, "\r\n")
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			s.data = append(s.data, value...)
		case "id":
			id, err := strconv.ParseUint(string(value), 10, 64)
			if err != nil || id <= s.last {
				return nil, fmt.Errorf("%w: found event %q, expected a number above %d", ErrGap, value, s.last)
			}
			s.last, s.numbered = id, true
		case "":
			if len(line) == 0 && len(s.data) > 0 {
				return s.data, nil
			}
		}
	}
}
