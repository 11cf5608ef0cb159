package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/millrace/millrace/client"
)

// Choice is one choice of an answer, as a client received it.
type Choice struct {
	Text      string
	Reasoning string                `json:",omitempty"`
	Calls     []client.FunctionCall `json:",omitempty"` // of tools
	Tokens    []int32
	Logprobs  map[string][]json.RawMessage // each field's arrays, joined
	Finish    string
}

// Answer is the answer that a client has at the end of a stream.
type Answer struct {
	ID       string // the server's id
	Choices  []Choice
	Usage    client.Usage
	Err      error
	Begin    time.Time
	End      time.Time
	Arrivals []time.Time // times of the chunks with tokens
}

// Ask runs a stream to its end under a request id. It calls begun with the server's id at the
// first chunk, and token at each chunk with tokens.
func (s *Stream) Ask(ctx context.Context, c client.Client, id string, begun func(id string), token func()) *Answer {
	a := &Answer{Choices: make([]Choice, s.choices), Begin: time.Now()}
	defer func() { a.End = time.Now() }()
	if s.Way.Plain {
		if a.Err = s.whole(ctx, c, a); a.Err == nil {
			token()
		}
		return a
	}
	for chunk, err := range s.open(ctx, c, id) {
		if err == nil && a.ID == "" {
			a.ID = chunk.ID
			begun(a.ID)
		}
		if err == nil {
			err = a.add(&chunk)
		}
		if err != nil {
			a.Err = err
			return a
		}
		if len(chunk.Choices) > 0 && len(chunk.Choices[0].TokenIDs) > 0 {
			a.Arrivals = append(a.Arrivals, time.Now())
			token()
		}
	}
	for i, c := range a.Choices {
		if c.Finish == "" {
			a.Err = fmt.Errorf("choice %d has no finish_reason: %w", i, client.ErrCut)
		}
	}
	return a
}

func (s *Stream) open(ctx context.Context, c client.Client, id string) iter.Seq2[client.Chunk, error] {
	if s.chat != nil {
		r := *s.chat
		r.RequestID = id
		return c.ChatStream(ctx, r)
	}
	r := *s.plain
	r.RequestID = id
	return c.CompleteStream(ctx, r)
}

// An answer in one piece: its client does not learn that the gateway is gone.
const (
	wholePatience = 20 * time.Second       // longest wait of one try
	wholeRetry    = 100 * time.Millisecond // wait before the next try
)

// whole requests the answer in one piece, again if no server gave one.
func (s *Stream) whole(ctx context.Context, c client.Client, a *Answer) error {
	for {
		try, cancel := context.WithTimeout(ctx, wholePatience)
		r, err := c.Complete(try, *s.plain)
		cancel()
		var said *client.Error
		switch {
		case err == nil:
			return a.fill(r)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, &said) && said.Code != "no_responders" && said.Code != "stopping":
			return err
		}
		select {
		case <-time.After(wholeRetry):
		case <-ctx.Done():
		}
	}
}

// fill copies an answer in one piece.
func (a *Answer) fill(r *client.Response) error {
	if len(r.Choices) != len(a.Choices) {
		return fmt.Errorf("found %d choices, expected %d", len(r.Choices), len(a.Choices))
	}
	a.ID, a.Usage = r.ID, r.Usage
	for i, c := range r.Choices {
		a.Choices[i] = Choice{Text: c.Content(), Tokens: c.TokenIDs, Finish: c.FinishReason}
	}
	return nil
}

// add appends a chunk.
func (a *Answer) add(chunk *client.Chunk) error {
	if chunk.Usage != nil {
		a.Usage = *chunk.Usage
	}
	for i := range chunk.Choices {
		part := &chunk.Choices[i]
		if part.Index < 0 || part.Index >= len(a.Choices) {
			return fmt.Errorf("found choice %d, expected %d choices", part.Index, len(a.Choices))
		}
		if err := a.Choices[part.Index].add(part); err != nil {
			return err
		}
	}
	return nil
}

func (c *Choice) add(part *client.ChunkChoice) error {
	if c.Finish != "" && (part.Content() != "" || len(part.TokenIDs) > 0) {
		return fmt.Errorf("found %q after the choice's end", part.Content())
	}
	c.Text += part.Content()
	c.Reasoning += part.Delta.Reasoning
	for _, call := range part.Delta.ToolCalls {
		if call.Index != len(c.Calls) && call.Index != len(c.Calls)-1 {
			return fmt.Errorf("found a part of tool call %d after %d calls", call.Index, len(c.Calls))
		}
		if call.Index == len(c.Calls) {
			c.Calls = append(c.Calls, client.FunctionCall{})
		}
		c.Calls[call.Index].Name += call.Function.Name
		c.Calls[call.Index].Arguments += call.Function.Arguments
	}
	c.Tokens = append(c.Tokens, part.TokenIDs...)
	if part.FinishReason != "" {
		c.Finish = part.FinishReason
	}
	if len(part.Logprobs) == 0 {
		return nil
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(part.Logprobs, &fields); err != nil {
		return fmt.Errorf("logprobs: %w", err)
	}
	for name, field := range fields {
		var list []json.RawMessage
		if err := json.Unmarshal(field, &list); err != nil {
			return fmt.Errorf("logprobs: %s: %w", name, err)
		}
		if c.Logprobs == nil {
			c.Logprobs = map[string][]json.RawMessage{}
		}
		c.Logprobs[name] = append(c.Logprobs[name], list...)
	}
	return nil
}
