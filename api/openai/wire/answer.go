// Package wire decodes OpenAI's requests and encodes its answers. It must not know HTTP, NATS or how a call runs.
package wire

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// ChatCompletion is the whole answer to a chat call.
type ChatCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object" doc:"Always \"chat.completion\""`
	Created           int64        `json:"created" doc:"Unix seconds"`
	Model             string       `json:"model"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Choices           []ChatChoice `json:"choices"`
	Usage             Usage        `json:"usage"`
}

// ChatChoice is one answer of n.
type ChatChoice struct {
	Index        int             `json:"index"`
	Message      AnswerMessage   `json:"message"`
	Logprobs     json.RawMessage `json:"logprobs" doc:"With logprobs: content, a list of token, logprob, bytes, top_logprobs"`
	FinishReason string          `json:"finish_reason" doc:"stop or length"`
	TokenIDs     []int32         `json:"token_ids,omitempty" doc:"With return_token_ids"`
}

// AnswerMessage is the assistant's turn.
type AnswerMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// TextCompletion is the whole answer to a plain completion call.
type TextCompletion struct {
	ID                string       `json:"id"`
	Object            string       `json:"object" doc:"Always \"text_completion\""`
	Created           int64        `json:"created" doc:"Unix seconds"`
	Model             string       `json:"model"`
	SystemFingerprint string       `json:"system_fingerprint"`
	Choices           []TextChoice `json:"choices"`
	Usage             Usage        `json:"usage"`
}

// TextChoice is one answer; index counts through prompts x n.
type TextChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     json.RawMessage `json:"logprobs" doc:"With logprobs: tokens, token_logprobs, top_logprobs, text_offset"`
	FinishReason string          `json:"finish_reason" doc:"stop or length"`
	TokenIDs     []int32         `json:"token_ids,omitempty" doc:"With return_token_ids"`
}

// Usage counts tokens.
type Usage struct {
	PromptTokens        int                 `json:"prompt_tokens"`
	CompletionTokens    int                 `json:"completion_tokens"`
	TotalTokens         int                 `json:"total_tokens"`
	PromptTokensDetails PromptTokensDetails `json:"prompt_tokens_details"`
}

// PromptTokensDetails says how much of the prompt was in the prefix cache.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// choice gathers one choice's events.
type choice struct {
	text     strings.Builder
	tokens   []int32
	logprobs []api.TokenLogprob
	finish   api.Finish
}

// Collect reads a call's events to the end and returns the body of the whole
// answer. fingerprint stands for the system where the events name none. Errors are
// *api.Error, or ctx's own.
func Collect(ctx context.Context, c *call.Call, events <-chan api.Event, fingerprint string) ([]byte, error) {
	choices := make([]choice, c.Choices())
	prints := newFingerprints(c, fingerprint)
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case ev, ok := <-events:
			if !ok {
				return nil, &api.Error{Code: api.CodeInternal, Message: "the answer ended without its last event"}
			}
			if err := api.Failure(ev); err != nil {
				return nil, err
			}
			prints.note(ev)
			if ev.Restart {
				of := ev.Choice - ev.Choice%c.N
				clear(choices[of : of+c.N])
				continue
			}
			choices[ev.Choice].add(ev)
			if ev.Done {
				return encode(c, choices, *ev.Usage, prints.all())
			}
		}
	}
}

func (ch *choice) add(ev api.Event) {
	ch.text.WriteString(ev.Text)
	ch.tokens = append(ch.tokens, ev.Tokens...)
	ch.logprobs = append(ch.logprobs, ev.Logprobs...)
	if ev.Finish != api.FinishNone {
		ch.finish = ev.Finish
	}
}

func encode(c *call.Call, choices []choice, u api.Usage, fingerprint string) ([]byte, error) {
	usage := Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		TotalTokens:         u.PromptTokens + u.CompletionTokens,
		PromptTokensDetails: PromptTokensDetails{CachedTokens: u.CachedTokens}}
	if c.Kind == call.Chat {
		a := ChatCompletion{ID: c.ID, Object: "chat.completion", Created: c.Created.Unix(), Model: c.Model,
			SystemFingerprint: fingerprint, Usage: usage}
		for i := range choices {
			ch := &choices[i]
			a.Choices = append(a.Choices, ChatChoice{Index: i,
				Message:  AnswerMessage{Role: "assistant", Content: ch.text.String()},
				Logprobs: logprobs(c, ch), FinishReason: string(ch.finish), TokenIDs: tokenIDs(c, ch)})
		}
		return marshal(a)
	}
	a := TextCompletion{ID: c.ID, Object: "text_completion", Created: c.Created.Unix(), Model: c.Model,
		SystemFingerprint: fingerprint, Usage: usage}
	for i := range choices {
		ch := &choices[i]
		a.Choices = append(a.Choices, TextChoice{Index: i, Text: ch.text.String(),
			Logprobs: logprobs(c, ch), FinishReason: string(ch.finish), TokenIDs: tokenIDs(c, ch)})
	}
	return marshal(a)
}

func logprobs(c *call.Call, ch *choice) json.RawMessage {
	switch {
	case c.Requests[0].TopLogprobs < 0:
		return json.RawMessage("null")
	case c.Kind == call.Chat:
		return appendChatLogprobs(nil, ch.logprobs)
	}
	raw, _ := appendCompletionLogprobs(nil, ch.logprobs, 0)
	return raw
}

func tokenIDs(c *call.Call, ch *choice) []int32 {
	if c.TokenIDs {
		return ch.tokens
	}
	return nil
}
