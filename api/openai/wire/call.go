// Package wire is the OpenAI form of requests and answers, the same behind HTTP
// and NATS: decoding with validation, answers whole or as chunks, errors.
package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// Kind is which of the two generation interfaces a call came through.
type Kind int

const (
	Chat Kind = iota
	Completion
)

// Call is one decoded generation call: a request for each prompt, and how the
// answer is to look.
type Call struct {
	ID           string
	Kind         Kind
	Model        string
	Created      time.Time
	Stream       bool
	IncludeUsage bool // a last chunk with the usage
	TokenIDs     bool // token ids beside the text
	Echo         bool // each choice begins with its prompt's text
	N            int  // choices per prompt
	Requests     []*api.Request
}

// Choices is how many choices the answer has.
func (c *Call) Choices() int { return len(c.Requests) * c.N }

// eventBuffer is how many events wait for a slow reader before its own stream,
// and nothing else, is held up.
const eventBuffer = 64

// Run submits every request of the call and returns their events as one stream:
// choices numbered through, Seq from 1 without a gap, one Done with the summed
// usage. The channel closes after Done, or early when ctx ends. Ending ctx
// cancels what still runs; the caller must end it.
func (c *Call) Run(ctx context.Context, engine api.Engine) (<-chan api.Event, error) {
	echoes, err := c.echoes(ctx, engine)
	if err != nil {
		return nil, err
	}
	streams := make([]api.Stream, 0, len(c.Requests))
	for _, r := range c.Requests {
		s, err := engine.Submit(ctx, r)
		if err != nil {
			for _, s := range streams {
				s.Close()
			}
			return nil, err
		}
		streams = append(streams, s)
	}
	f := &fanIn{out: make(chan api.Event, eventBuffer), pumps: len(streams), undone: len(streams)}
	for i, s := range streams {
		go f.pump(ctx, s, i*c.N, c.N, echoes[i])
	}
	return f.out, nil
}

// echoes are the texts that the choices of each request begin with.
func (c *Call) echoes(ctx context.Context, engine api.Engine) ([]string, error) {
	texts := make([]string, len(c.Requests))
	if !c.Echo {
		return texts, nil
	}
	for i, r := range c.Requests {
		texts[i] = r.Prompt
		if len(r.PromptTokens) > 0 {
			text, err := engine.Detokenize(ctx, r.Model, r.PromptTokens)
			if err != nil {
				return nil, err
			}
			texts[i] = text
		}
	}
	return texts, nil
}

// fanIn makes one numbered stream of several.
type fanIn struct {
	out chan api.Event

	mu     sync.Mutex
	pumps  int // still running; the last one closes out
	undone int // streams whose Done event has not come
	seq    uint64
	usage  api.Usage
}

// pump moves a stream's events until it is done or ctx ends, and closes it. The
// echo goes before the first event that is no failure: a refusal stays the first.
func (f *fanIn) pump(ctx context.Context, s api.Stream, first, n int, echo string) {
	defer f.exit()
	defer s.Close()
	for {
		ev, err := s.Next(ctx)
		if err == nil && (ev.Choice < 0 || ev.Choice >= n) {
			err = fmt.Errorf("choice %d of %d", ev.Choice, n)
		}
		if err != nil {
			ev = api.Event{Finish: api.FinishError, Err: broken(err), Done: true}
		}
		ev.Choice += first
		for i := 0; echo != "" && i < n && Failure(ev) == nil; i++ {
			f.send(ctx, api.Event{Choice: first + i, Text: echo})
		}
		echo = ""
		if done := ev.Done; !f.send(ctx, ev) || done {
			return
		}
	}
}

func broken(err error) error {
	if errors.Is(err, io.EOF) {
		return &api.Error{Code: api.CodeInternal, Message: "the answer ended without its last event"}
	}
	return err
}

// send numbers an event and passes it on; false when ctx ended first. The lock
// is held while the reader is behind: the streams of one call wait together.
func (f *fanIn) send(ctx context.Context, ev api.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ev.Done {
		f.undone--
	}
	if u := ev.Usage; u != nil {
		f.usage.PromptTokens += u.PromptTokens
		f.usage.CompletionTokens += u.CompletionTokens
		f.usage.CachedTokens += u.CachedTokens
	}
	ev.Done, ev.Usage = f.undone == 0, nil
	if ev.Done {
		usage := f.usage
		ev.Usage = &usage
	}
	f.seq++
	ev.Seq = f.seq
	select {
	case f.out <- ev:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *fanIn) exit() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pumps--; f.pumps == 0 {
		close(f.out)
	}
}
