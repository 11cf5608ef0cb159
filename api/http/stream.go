package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/codec"
	"github.com/millrace/millrace/tracing"
)

// flushBytes is the size of buffered events that causes a flush.
const flushBytes = 32 << 10

// stream answers with a chunk for each event. The status line waits for the first event, so that a
// refusal has its own status, but not longer than for the first ping.
func (s *server) stream(ctx context.Context, out *sse, events call.EventStream) error {
	defer out.close()
	ping := time.NewTicker(s.opts.PingAfter)
	defer ping.Stop()
	for ctx.Err() == nil {
		written, done, err := out.batch(events)
		if done || err != nil {
			return err
		}
		if written > 0 {
			ping.Reset(s.opts.PingAfter)
			continue
		}
		select {
		case <-ctx.Done():
		case <-events.Wake():
		case <-ping.C:
			if s.opts.CutOff() {
				continue // its client misses the ping and tries another gateway
			}
			out.begin()
			out.ping()
			if err := out.flush(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (s *server) sse(ctx context.Context, w http.ResponseWriter, c *call.Call) *sse {
	format := codec.Of(c.Kind)
	return &sse{w: w, rc: http.NewResponseController(w),
		call: c, format: format, chunks: format.Stream(c, s.opts.Fingerprint), span: noop.Span{},
		start: func() trace.Span { return tracing.Stage(s.opts.Tracer, tracing.Of(ctx), "stream") }}
}

// sse writes a call's events as server-sent events.
type sse struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	call   *call.Call
	format call.Codec
	chunks call.Encoder
	after  uint64 // Seq of the last event that the client has
	from   int    // number of the first chunk that the client wants, of a format that numbers them
	begun  bool   // the header is written
	opened bool   // and the chunks before the first event
	buf    []byte // not yet flushed
	start  func() trace.Span
	span   trace.Span // from the first byte to the last
}

// batch writes the events that there are with one flush.
func (o *sse) batch(events call.EventStream) (written int, done bool, err error) {
	for !done && err == nil && len(o.buf) < flushBytes {
		ev, ok, ended := events.Poll()
		if !ok && ended == nil {
			break
		}
		if !ok {
			ev = api.Event{Finish: api.FinishError}
		}
		written++
		done, err = o.event(ev)
	}
	if flushErr := o.flush(); err == nil {
		err = flushErr
	}
	return written, done, err
}

// event adds the chunks of an event, and returns true after the last event of the request. If nothing
// has been written, an error gets its own status. A later one ends the stream without [DONE].
func (o *sse) event(ev api.Event) (done bool, err error) {
	if failed := api.Failure(ev); failed != nil {
		if o.begun {
			for _, chunk := range o.format.ErrorChunks(o.chunks, failed) {
				o.add(0, chunk)
			}
		}
		return true, failed
	}
	o.chunks.Observe(ev)
	if ev.Pin != nil && !o.begun {
		setKV(o.w, *ev.Pin)
	}
	o.open()
	chunks := o.chunks.Encode(ev)
	for i, chunk := range chunks {
		switch {
		case ev.Seq <= o.after || o.hasChunk(chunk): // not sent, but encoded: later chunks depend on it
		case i == len(chunks)-1: // the id marks the end of the event
			o.add(ev.Seq, chunk)
		default:
			o.add(0, chunk)
		}
	}
	if ev.Done && o.format.Frames == call.Events {
		o.buf = append(o.buf, "data: [DONE]\n\n"...)
	}
	return ev.Done, nil
}

// begin writes the header of a stream that has no event yet. Chunks of OpenAI's form wait for one: all of them have the fingerprint of the
// worker, which is not known before. Later calls do nothing.
func (o *sse) begin() {
	if o.header(); o.format.Frames != call.Events {
		o.open()
	}
}

func (o *sse) header() {
	if o.begun {
		return
	}
	o.begun = true
	o.span = o.start()
	h := o.w.Header()
	h.Set("Content-Type", "text/event-stream")
	if o.format.Frames == call.Lines {
		h.Set("Content-Type", "application/x-ndjson")
	}
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no") // otherwise nginx buffers the whole answer
	o.w.WriteHeader(http.StatusOK)
}

// open adds the header and the chunks before the first event. Later calls do nothing.
func (o *sse) open() {
	if o.header(); o.opened {
		return
	}
	o.opened = true
	if o.call.Kind != call.Completion && o.after == 0 { // a completion's text shows that it has begun
		for _, chunk := range o.chunks.Open() {
			if !o.hasChunk(chunk) {
				o.add(0, chunk)
			}
		}
	}
}

// hasChunk reports whether the client has a chunk by its number.
func (o *sse) hasChunk(chunk []byte) bool {
	if o.from == 0 {
		return false
	}
	var numbered struct {
		Number *int `json:"sequence_number"`
	}
	return json.Unmarshal(chunk, &numbered) == nil && numbered.Number != nil && *numbered.Number < o.from
}

// add adds one message. With seq 0 it has no id.
func (o *sse) add(seq uint64, chunk []byte) {
	if o.format.Frames == call.Lines {
		o.buf = append(append(o.buf, chunk...), '\n')
		return
	}
	if o.format.Frames == call.NamedEvents {
		o.buf = append(append(append(o.buf, "event: "...), chunkType(chunk)...), '\n')
	}
	if seq > 0 {
		o.buf = strconv.AppendUint(append(o.buf, "id: "...), seq, 10)
		o.buf = append(o.buf, '\n')
	}
	o.buf = append(append(append(o.buf, "data: "...), chunk...), "\n\n"...)
}

// ping adds what shows the client of a silent stream that the server is alive. A format of lines has nothing for it.
func (o *sse) ping() {
	if o.format.Frames != call.Lines {
		// No empty line follows the comment: OpenAI's Python client reads an empty line after an id as an event.
		o.buf = append(o.buf, ": ping\n"...)
	}
}

// chunkType returns the value of "type", which is the first field of a chunk.
func chunkType(chunk []byte) []byte {
	_, rest, _ := bytes.Cut(chunk, []byte(`"type":"`))
	name, _, _ := bytes.Cut(rest, []byte(`"`))
	return name
}

// flush sends the added messages. The server bounds the time that its client takes, so that a client
// that does not read does not hold KV cache for ever, see package httpserver.
func (o *sse) flush() error {
	if len(o.buf) == 0 {
		return nil
	}
	_, err := o.w.Write(o.buf)
	o.buf = o.buf[:0]
	if err != nil {
		return err
	}
	return o.rc.Flush()
}

// close ends the answer's span.
func (o *sse) close() { o.span.End() }
