// Package apitest has a scripted engine for tests of the interfaces. It computes nothing: a test
// states the events of each request. It must not know the interfaces.
package apitest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// Engine answers every request by running Script.
type Engine struct {
	Served []api.Model
	// Script sends the events of a request. Each request runs it in its own goroutine.
	Script func(r *api.Request, s *Stream)
	// Refuse returns the error of Submit, nil to accept the request. nil accepts all requests.
	Refuse func(r *api.Request) error
	// NotReady is the result of Ready.
	NotReady error

	mu       sync.Mutex
	requests []*api.Request
	streams  sync.WaitGroup
}

// New returns an engine with one model, "tiny-chat", that runs the script.
func New(script func(r *api.Request, s *Stream)) *Engine {
	return &Engine{Script: script,
		Served: []api.Model{{ID: "tiny-chat", WeightFacts: api.WeightFacts{Created: time.Unix(1700000000, 0), ContextLength: 512}}}}
}

// Say returns a script that sends each part as one token to every choice, with log probabilities if
// the request has them, and then ends the answer.
func Say(parts ...string) func(*api.Request, *Stream) {
	return func(r *api.Request, s *Stream) {
		for i, part := range parts {
			for choice := range r.N {
				ev := api.Event{Choice: choice, Text: part, Tokens: []int32{int32(100 + i)}}
				if r.TopLogprobs >= 0 {
					ev.Logprobs = []api.TokenLogprob{Logprob(ev.Tokens[0], part, r.TopLogprobs)}
				}
				if !s.Send(ev) {
					return
				}
			}
		}
		for choice := range r.N {
			last := choice == r.N-1
			ev := api.Event{Choice: choice, Finish: api.FinishStop, Done: last}
			if last {
				ev.Usage = &api.Usage{PromptTokens: 7, CompletionTokens: r.N * len(parts)}
			}
			s.Send(ev)
		}
	}
}

// Logprob returns a token with top alternatives, for scripts.
func Logprob(token int32, text string, top int) api.TokenLogprob {
	p := api.TokenLogprob{Token: token, Text: text, Bytes: []byte(text), Logprob: -0.25}
	for i := range top {
		alt := text
		if i > 0 {
			alt = text + string(rune('a'+i))
		}
		p.Top = append(p.Top, api.TokenLogprob{Token: token + int32(i), Text: alt, Bytes: []byte(alt),
			Logprob: -0.25 - float32(i)})
	}
	return p
}

// Submit implements api.Engine.
func (e *Engine) Submit(_ context.Context, r *api.Request) (api.Stream, error) {
	e.mu.Lock()
	e.requests = append(e.requests, r)
	e.mu.Unlock()
	if e.Refuse != nil {
		if err := e.Refuse(r); err != nil {
			return nil, err
		}
	}
	s := &Stream{taken: make(chan struct{}, 1), wake: make(chan struct{}, 1), closed: make(chan struct{})}
	e.streams.Add(2) // the script, and Close
	s.onClose = e.streams.Done
	go func() {
		defer e.streams.Done()
		e.Script(r, s)
	}()
	return s, nil
}

// Requests returns the submitted requests.
func (e *Engine) Requests() []*api.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*api.Request(nil), e.requests...)
}

// WaitIdle blocks until every stream is closed and every script has returned.
func (e *Engine) WaitIdle() { e.streams.Wait() }

// Models implements api.Engine.
func (e *Engine) Models() []api.Model { return e.Served }

// Ready implements api.Engine.
func (e *Engine) Ready() error { return e.NotReady }

// Tokenize implements api.Engine. The id of each byte of the text, or of the messages' contents, is
// its value. Special tokens are one id 1 at the start.
func (e *Engine) Tokenize(_ context.Context, r *api.TokenizeRequest) ([]int32, error) {
	var ids []int32
	if r.AddSpecialTokens {
		ids = append(ids, 1)
	}
	for _, b := range []byte(r.Prompt) {
		ids = append(ids, int32(b))
	}
	for _, m := range r.Messages {
		for _, b := range []byte(m.Content) {
			ids = append(ids, int32(b))
		}
	}
	return ids, nil
}

// Detokenize implements api.Engine as the inverse of Tokenize. It refuses ids above 255.
func (e *Engine) Detokenize(_ context.Context, _ string, tokens []int32) (string, error) {
	text := make([]byte, len(tokens))
	for i, id := range tokens {
		if id > 255 {
			return "", api.Invalid("tokens", "tokens[%d]: found %d, expected an id below 256", i, id)
		}
		text[i] = byte(id)
	}
	return string(text), nil
}

// Stream passes a script's events to their reader.
type Stream struct {
	mu      sync.Mutex
	sent    *api.Event    // that the reader has not read; nil: none
	taken   chan struct{} // receives a value when it has
	wake    chan struct{}
	closed  chan struct{}
	once    sync.Once
	onClose func()
	seq     uint64
	done    bool
}

// Send numbers an event and passes it to the reader. It returns false if the stream is closed. It is
// for one goroutine.
func (s *Stream) Send(ev api.Event) bool {
	s.seq++
	ev.Seq = s.seq
	s.mu.Lock()
	s.sent = &ev
	s.mu.Unlock()
	s.notify()
	select {
	case <-s.taken:
		return true
	case <-s.closed:
		return false
	}
}

// Closed returns a channel that is closed when the reader closes the stream.
func (s *Stream) Closed() <-chan struct{} { return s.closed }

// Next implements api.Stream.
func (s *Stream) Next(ctx context.Context) (api.Event, error) {
	for {
		if ev, ok, err := s.Poll(); ok || err != nil {
			return ev, err
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return api.Event{}, ctx.Err()
		}
	}
}

// Poll implements api.Stream.
func (s *Stream) Poll() (ev api.Event, ok bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return api.Event{}, false, io.EOF
	}
	select {
	case <-s.closed: // what the script sends does not arrive
		return api.Event{}, false, nil
	default:
	}
	if s.sent == nil {
		return api.Event{}, false, nil
	}
	ev, s.sent = *s.sent, nil
	s.done = ev.Done
	s.taken <- struct{}{}
	return ev, true, nil
}

// Wake implements api.Stream.
func (s *Stream) Wake() <-chan struct{} { return s.wake }

func (s *Stream) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Close implements api.Stream.
func (s *Stream) Close() {
	s.once.Do(func() {
		close(s.closed)
		s.notify()
		s.onClose()
	})
}
