package natsapi

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai"
)

// reply sends the messages of one answer.
type reply struct {
	nc          *nats.Conn
	out         outbox
	to          inbox
	resumable   bool          // a client can resume the stream with callID
	interval    time.Duration // between pings
	request     nats.Header   // headers of the request
	cancel      string        // the stream's cancel subject; "" if the answer is one message
	callID      string
	encodeError func(*api.Error) []byte // returns the body of an error; nil: OpenAI's form
	key         string                  // id of the API key
	kv          string                  // see HeaderKV; "": none
	ignored     string                  // see HeaderIgnored; only of the first message, "": none
	seq         uint64
	skip        uint64 // messages that the client has received
	opened      bool   // a chunk with the cancel subject was sent
	err         error  // the first error that prevented a message or was sent to the client
}

// single sends an answer that is one message.
func (r *reply) single(body []byte) {
	err := r.send(&nats.Msg{Data: body})
	if errors.Is(err, nats.ErrMaxPayload) {
		r.err = nil
		if r.request.Get(HeaderAccept) == acceptParts {
			r.sendParts(body)
			return
		}
		r.fail(&api.Error{Code: api.CodeTooLarge, Reason: "answer_too_large", Message: fmt.Sprintf(
			"found an answer of %d bytes, expected at most the %d of a NATS message: use \"stream\": true", len(body), r.nc.MaxPayload())})
	}
}

// chunks sends the chunks of an event. The last one has end, unless that is "".
func (r *reply) chunks(chunks [][]byte, end string) {
	if len(chunks) == 0 && end != "" {
		r.chunk(nil, end)
	}
	for i, chunk := range chunks {
		if i == len(chunks)-1 {
			r.chunk(chunk, end)
		} else {
			r.chunk(chunk, "")
		}
	}
}

// chunk sends one numbered message of a stream.
func (r *reply) chunk(body []byte, end string) {
	if r.err != nil {
		return
	}
	if r.seq++; r.seq <= r.skip && end == "" {
		return
	}
	h := r.open(nats.Header{HeaderSeq: {strconv.FormatUint(r.seq, 10)}})
	if end != "" {
		h[HeaderEnd] = []string{end}
	}
	if err := r.send(&nats.Msg{Data: body, Header: h}); errors.Is(err, nats.ErrMaxPayload) {
		r.err = nil
		r.seq-- // the error takes its place
		r.fail(&api.Error{Code: api.CodeTooLarge, Reason: "answer_too_large", Message: fmt.Sprintf(
			"found a part of the answer of %d bytes, expected at most the %d of a NATS message", len(body), r.nc.MaxPayload())})
	}
}

// open adds how to cancel and to resume a stream to its messages up to the first chunk: a client may read pings, or not.
func (r *reply) open(h nats.Header) nats.Header {
	if r.opened {
		return h
	}
	_, r.opened = h[HeaderSeq]
	h[HeaderCancel] = []string{r.cancel}
	if r.resumable {
		h[HeaderID] = []string{r.callID}
		h[HeaderInterval] = []string{strconv.FormatFloat(r.interval.Seconds(), 'f', -1, 64)}
	}
	return h
}

// ping shows the reader of a silent stream that the server is alive. If there is no reader, the NATS
// server reports that.
func (r *reply) ping() {
	r.send(&nats.Msg{Header: r.open(nats.Header{HeaderPing: {"1"}})}) //nolint:errcheck // kept in r.err
}

// fail sends an error, which ends a stream. The error is also in micro's headers, for `nats micro`.
func (r *reply) fail(err error) {
	e := api.AsError(err)
	h := nats.Header{
		micro.ErrorHeader:     {e.Message},
		micro.ErrorCodeHeader: {strconv.Itoa(int(e.Code))},
	}
	if seconds := openai.RetryAfter(e); seconds > 0 {
		h[HeaderRetryAfter] = []string{strconv.Itoa(seconds)}
	}
	if r.cancel != "" {
		r.seq++
		h[HeaderSeq] = []string{strconv.FormatUint(r.seq, 10)}
		h[HeaderEnd] = []string{string(api.FinishError)}
		if e.Reason == string(api.FinishCancelled) {
			h[HeaderEnd] = []string{string(api.FinishCancelled)}
		}
	}
	encode := r.encodeError
	if encode == nil {
		encode = openai.EncodeError
	}
	if sendErr := r.send(&nats.Msg{Data: encode(e), Header: h}); sendErr == nil {
		r.err = err
	}
}

// send publishes a message. The reply subject of a stream's messages is its cancel subject. A reader
// cancels by replying to any of them, and if there is no reader the NATS server replies with 503 (no
// responders).
func (r *reply) send(m *nats.Msg) error {
	m.Reply = r.cancel
	if r.kv != "" {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[HeaderKV] = []string{r.kv}
	}
	if r.ignored != "" {
		if m.Header == nil {
			m.Header = nats.Header{}
		}
		m.Header[HeaderIgnored] = []string{r.ignored}
	}
	err := r.out.send(r.to, m)
	if err == nil && m.Header[HeaderPing] == nil {
		r.ignored = ""
	}
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("natsapi: %w", err)
	}
	return err
}
