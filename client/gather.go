package client

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"
)

// codeTooLarge is the code of a stream with a chunk larger than a NATS message. An answer in one
// piece is sent in parts instead.
const codeTooLarge = "answer_too_large"

// Gather returns the whole answer that the chunks of a stream make up. A stream that was cut is an ErrCut.
func Gather(chunks iter.Seq2[Chunk, error]) (*Response, error) {
	a := &Response{}
	var choices []*gathered
	for chunk, err := range chunks {
		if err != nil {
			return nil, err
		}
		a.ID, a.Model, a.Created, a.Fingerprint = chunk.ID, chunk.Model, chunk.Created, chunk.Fingerprint
		if chunk.Usage != nil {
			a.Usage = *chunk.Usage
		}
		if chunk.Proof != nil {
			a.Proof = chunk.Proof
		}
		for i := range chunk.Choices {
			part := &chunk.Choices[i]
			if part.Index < 0 || part.Index > maxChoice {
				return nil, fmt.Errorf("millrace: found choice %d, expected 0 to %d", part.Index, maxChoice)
			}
			for len(choices) <= part.Index {
				choices = append(choices, &gathered{})
			}
			if err := choices[part.Index].add(part); err != nil {
				return nil, fmt.Errorf("millrace: choice %d: %w", part.Index, err)
			}
		}
	}
	for i, g := range choices {
		c, err := g.whole(i)
		if err != nil {
			return nil, fmt.Errorf("millrace: choice %d: %w", i, err)
		}
		a.Choices = append(a.Choices, c)
	}
	return a, nil
}

// maxChoice bounds the number of a choice.
const maxChoice = 1 << 16

// gathered is the part of a choice that has arrived.
type gathered struct {
	role, finish  string
	content, text strings.Builder
	reasoning     strings.Builder
	calls         []*gatheredCall
	tokens        []int32
	logprobs      map[string][]json.RawMessage // an object of lists
}

// add appends a chunk's part of the choice.
func (g *gathered) add(part *ChunkChoice) error {
	if part.Delta.Role != "" {
		g.role = part.Delta.Role
	}
	if part.FinishReason != "" {
		g.finish = part.FinishReason
	}
	g.content.WriteString(part.Delta.Content)
	g.reasoning.WriteString(part.Delta.Reasoning)
	for _, c := range part.Delta.ToolCalls {
		if err := g.addCall(c); err != nil {
			return err
		}
	}
	g.text.WriteString(part.Text)
	g.tokens = append(g.tokens, part.TokenIDs...)
	if len(part.Logprobs) == 0 || string(part.Logprobs) == "null" {
		return nil
	}
	var more map[string][]json.RawMessage
	if err := json.Unmarshal(part.Logprobs, &more); err != nil {
		return fmt.Errorf("logprobs: %w", err)
	}
	if g.logprobs == nil {
		g.logprobs = make(map[string][]json.RawMessage)
	}
	for name, list := range more {
		g.logprobs[name] = append(g.logprobs[name], list...)
	}
	return nil
}

// gatheredCall is the part of a tool call that has arrived.
type gatheredCall struct {
	ToolCall
	arguments strings.Builder
}

// maxCalls bounds the number of a call.
const maxCalls = 1 << 16

// addCall appends a chunk's part of a tool call.
func (g *gathered) addCall(c ToolCall) error {
	if c.Index < 0 || c.Index > maxCalls {
		return fmt.Errorf("tool call: found number %d, expected 0 to %d", c.Index, maxCalls)
	}
	for len(g.calls) <= c.Index {
		g.calls = append(g.calls, &gatheredCall{})
	}
	into := g.calls[c.Index]
	if c.ID != "" {
		into.ID, into.Type, into.Function.Name = c.ID, c.Type, c.Function.Name
	}
	into.arguments.WriteString(c.Function.Arguments)
	return nil
}

// whole returns the choice. Without a finish_reason it is an error.
func (g *gathered) whole(index int) (Choice, error) {
	c := Choice{Index: index, FinishReason: g.finish, Text: g.text.String(), TokenIDs: g.tokens,
		Message: Message{Role: g.role, Content: g.content.String(), Reasoning: g.reasoning.String()}}
	for _, call := range g.calls {
		call.Function.Arguments = call.arguments.String()
		c.Message.ToolCalls = append(c.Message.ToolCalls, call.ToolCall)
	}
	if g.finish == "" {
		return c, fmt.Errorf("%w: found no finish_reason", ErrCut)
	}
	var err error
	c.Logprobs, err = json.Marshal(g.logprobs) // null if there are none, as in the server's answer
	return c, err
}
