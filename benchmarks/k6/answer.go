package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// answer gathers one answer, whatever carries it: a plain state machine fed
// with chunks and the times at which they came.
type answer struct {
	started, first, last time.Time // first, last: of a piece of text
	gaps                 []time.Duration
	text                 strings.Builder
	pieces               int // chunks with text
	usage                int // completion tokens, if the server reports them
	finish               string
	status               int
	body                 string
	cancelled            bool
}

// chunk is what matters here of OpenAI's completions of either kind, their chunks and errors.
type chunk struct {
	Choices []struct {
		Text    string // of a plain completion
		Delta   struct{ Content string }
		Message struct{ Content string }
		Finish  string `json:"finish_reason"`
	}
	Usage *struct {
		CompletionTokens int `json:"completion_tokens"`
	}
	Error *struct{ Message string }
}

// add takes a chunk, or a whole answer.
func (a *answer) add(data []byte, at time.Time) error {
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("chunk %.80q: %w", data, err)
	}
	if c.Error != nil {
		return fmt.Errorf("error chunk: %s", c.Error.Message)
	}
	if c.Usage != nil {
		a.usage = c.Usage.CompletionTokens
	}
	for _, choice := range c.Choices {
		if choice.Finish != "" {
			a.finish = choice.Finish
		}
		if piece := choice.Text + choice.Delta.Content + choice.Message.Content; piece != "" {
			a.piece(piece, at)
		}
	}
	return nil
}

func (a *answer) piece(text string, at time.Time) {
	if a.pieces == 0 {
		a.first = at
	} else {
		a.gaps = append(a.gaps, at.Sub(a.last))
	}
	a.last = at
	a.pieces++
	a.text.WriteString(text)
}

// abandon returns true once, when the stream has had the given number of pieces.
func (a *answer) abandon(after int) bool {
	if after > 0 && a.pieces >= after && a.finish == "" {
		a.cancelled = true
	}
	return a.cancelled
}

// complete is an error unless the answer came to its end.
func (a *answer) complete() error {
	if a.finish == "" {
		return fmt.Errorf("the stream ended after %d pieces without a finish_reason", a.pieces)
	}
	return nil
}

// tokens is the server's count, or that of the pieces if it was cut short.
func (a *answer) tokens() int { return max(a.usage, a.pieces) }

// refused: the server had no room, and said so.
func (a *answer) refused() bool {
	return a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable
}
