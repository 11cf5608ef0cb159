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

// httpStream reads one answer, over as many connections as it takes.
type httpStream struct {
	t      *httpTransport
	call   call
	resp   *answer
	events *sseReader
	id     string        // of a resumable answer; "" for another
	since  int           // chunks since the last event's number; they come again
	skip   int           // of those, how many are still to come
	limit  time.Duration // of silence
	idle   *time.Timer   // ends a connection that is silent
	ended  bool
}

// errEnd: the stream has ended as it should.
var errEnd = errors.New("millrace: the end of the stream")

// next returns the next chunk; errEnd behind the last.
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

// lost says whether an error is one of the connection or of the server, behind
// which a resumable stream goes on.
func (s *httpStream) lost(err error) bool {
	return s.id != "" && (errors.Is(err, ErrCut) || code(err) == codeMoved)
}

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

// inStream is an error that came inside a stream, without a status and headers: a refusal
// (by a worker, after a sign of life) is one all the same.
func inStream(data []byte) *Error {
	e := parseError(0, data, "")
	if e.Type == "rate_limit_error" {
		e.Status, e.RetryAfter = http.StatusTooManyRequests, time.Second // the least that servers say
	}
	return e
}

// open sends the request or, behind the first chunks, asks for the rest. What
// passes by waiting is tried again for a while.
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
			s.idle = time.AfterFunc(s.limit, func() { // the server is stopped, or cut off
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

// headerWait bounds the wait for the head of an answer, which comes within the first silence:
// a server that was stopped takes requests and says nothing. Another one finds the same
// call. At last there is no bound, since the wait may be another's doing.
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

// temporary says whether an error may pass by waiting. A first refusal is the
// caller's to handle, and so is a server that was never there.
func (s *httpStream) temporary(err error) bool {
	var said *Error
	if !errors.As(err, &said) {
		return s.id != "" || s.call.idempotent && !unreachable(err)
	}
	return stopping(err) ||
		s.id != "" && (said.Status == http.StatusServiceUnavailable || said.Status == http.StatusTooManyRequests)
}

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

// close ends the connection. That cancels an answer that has not ended, unless it
// is resumable: then it takes saying so.
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

// sseReader reads the data of server-sent events and checks that their ids, the
// numbers of the server's events, never go back. (They may jump: an event without
// text sends nothing. TCP loses nothing, so a jump is no gap.)
type sseReader struct {
	r        *bufio.Reader
	data     []byte
	last     uint64
	numbered bool // the message has an id: its event is complete
}

// next returns the next message's data. alive is called for each line.
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
				return nil, fmt.Errorf("%w: event %q after %d", ErrGap, value, s.last)
			}
			s.last, s.numbered = id, true
		case "":
			if len(line) == 0 && len(s.data) > 0 {
				return s.data, nil
			}
		}
	}
}
