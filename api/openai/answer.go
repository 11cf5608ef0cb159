// Package openai decodes OpenAI's requests and encodes its answers. It is a codec of pure functions:
// it must not know HTTP, NATS, an engine or how a call runs.
package openai

import (
	"encoding/json"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
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

	Proof          *proof.Proof    `json:"proof,omitempty" doc:"With proof"`
	PromptLogprobs json.RawMessage `json:"prompt_logprobs,omitempty" doc:"With prompt_logprobs: for each token of the prompt null (the first one), or an object with token ids as keys and logprob, rank and decoded_token"`
}

// ChatChoice is one choice of a chat completion.
type ChatChoice struct {
	Index        int             `json:"index"`
	Message      AnswerMessage   `json:"message"`
	Logprobs     json.RawMessage `json:"logprobs" doc:"With logprobs: content, a list of token, logprob, bytes, top_logprobs"`
	FinishReason string          `json:"finish_reason" doc:"stop, length or tool_calls"`
	TokenIDs     []int32         `json:"token_ids,omitempty" doc:"With return_token_ids or proof"`
}

// AnswerMessage is the assistant's message.
type AnswerMessage struct {
	Role      string       `json:"role"`
	Content   *string      `json:"content" doc:"null beside tool_calls, where there is no text"`
	Refusal   *string      `json:"refusal"`
	Reasoning *string      `json:"reasoning_content,omitempty" doc:"Only of a model that reasons"`
	ToolCalls []AnswerCall `json:"tool_calls,omitempty"`
}

// AnswerCall is a call of a tool.
type AnswerCall struct {
	ID       string         `json:"id"`
	Type     string         `json:"type" doc:"Always \"function\""`
	Function AnswerFunction `json:"function"`
}

// AnswerFunction is the function that is called.
type AnswerFunction struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments" doc:"A JSON object, as a string; a part of it where finish_reason is length"`
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
	Proof             *proof.Proof `json:"proof,omitempty" doc:"With proof"`
}

// TextChoice is one choice of a plain completion. Index counts through prompts x n.
type TextChoice struct {
	Index        int             `json:"index"`
	Text         string          `json:"text"`
	Logprobs     json.RawMessage `json:"logprobs" doc:"With logprobs: tokens, token_logprobs, top_logprobs, text_offset"`
	FinishReason string          `json:"finish_reason" doc:"stop or length"`
	TokenIDs     []int32         `json:"token_ids,omitempty" doc:"With return_token_ids or proof"`

	PromptLogprobs json.RawMessage `json:"prompt_logprobs,omitempty" doc:"With prompt_logprobs, as in a chat"`
}

// Usage counts tokens.
type Usage struct {
	PromptTokens        int                 `json:"prompt_tokens"`
	CompletionTokens    int                 `json:"completion_tokens"`
	TotalTokens         int                 `json:"total_tokens"`
	PromptTokensDetails PromptTokensDetails `json:"prompt_tokens_details"`

	CompletionTokensDetails *CompletionTokensDetails `json:"completion_tokens_details,omitempty" doc:"Only of a model that reasons"`
}

// CompletionTokensDetails counts the tokens of reasoning.
type CompletionTokensDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// PromptTokensDetails counts the tokens of the prompt that were in the prefix cache.
type PromptTokensDetails struct {
	CachedTokens int `json:"cached_tokens"`
}

// EncodeAnswer returns the body of the whole answer to a call. fingerprint is the system_fingerprint of
// a request without a numerics digest.
func EncodeAnswer(c *call.Call, r *call.Result, fingerprint string) ([]byte, error) {
	choices, u := r.Choices, r.Usage
	fingerprint = joinFingerprints(r.Pins, fingerprint)
	usage := Usage{PromptTokens: u.PromptTokens, CompletionTokens: u.CompletionTokens,
		TotalTokens:         u.PromptTokens + u.CompletionTokens,
		PromptTokensDetails: PromptTokensDetails{CachedTokens: u.CachedTokens}}
	if r.Reasons {
		usage.CompletionTokensDetails = &CompletionTokensDetails{ReasoningTokens: r.Reasoning}
	}
	proven := proof.Of(c, r)
	if c.Kind == call.Chat {
		a := ChatCompletion{ID: c.ID, Object: "chat.completion", Created: c.Created.Unix(), Model: c.Model,
			SystemFingerprint: fingerprint, Usage: usage, Proof: proven, PromptLogprobs: promptLogprobs(c, &choices[0])}
		for i := range choices {
			ch := &choices[i]
			a.Choices = append(a.Choices, ChatChoice{Index: i,
				Message:  message(ch),
				Logprobs: logprobs(c, ch), FinishReason: string(ch.Finish), TokenIDs: tokenIDs(c, ch)})
		}
		return api.Marshal(a)
	}
	a := TextCompletion{ID: c.ID, Object: "text_completion", Created: c.Created.Unix(), Model: c.Model,
		SystemFingerprint: fingerprint, Usage: usage, Proof: proven}
	for i := range choices {
		ch := &choices[i]
		a.Choices = append(a.Choices, TextChoice{Index: i, Text: ch.Text, PromptLogprobs: promptLogprobs(c, ch),
			Logprobs: logprobs(c, ch), FinishReason: string(ch.Finish), TokenIDs: tokenIDs(c, ch)})
	}
	return api.Marshal(a)
}

func message(ch *call.Choice) AnswerMessage {
	m := AnswerMessage{Role: "assistant"}
	if ch.Text != "" || len(ch.Calls) == 0 {
		m.Content = &ch.Text
	}
	if ch.Reasoning != "" {
		m.Reasoning = &ch.Reasoning
	}
	for _, c := range ch.Calls {
		m.ToolCalls = append(m.ToolCalls, AnswerCall{ID: c.ID, Type: "function",
			Function: AnswerFunction{Name: c.Name, Arguments: c.Arguments}})
	}
	return m
}

func logprobs(c *call.Call, ch *call.Choice) json.RawMessage {
	switch {
	case c.Requests[0].TopLogprobs < 0:
		return json.RawMessage("null")
	case c.Kind == call.Chat:
		return appendChatLogprobs(nil, ch.Logprobs)
	}
	tokens := ch.Logprobs
	if c.Echo {
		tokens = slices.Concat(ch.Prompt, tokens)
	}
	return appendCompletionLogprobs(nil, tokens, new(position))
}

// promptLogprobs returns the log probabilities of a prompt in vLLM's form; nil if the call wants none, or only those of an echo.
func promptLogprobs(c *call.Call, ch *call.Choice) json.RawMessage {
	if ch.Prompt == nil || c.Echo && c.Requests[0].TopLogprobs >= 0 {
		return nil
	}
	dst := []byte{'['}
	for i, t := range ch.Prompt {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendPromptToken(dst, t)
	}
	return append(dst, ']')
}

func tokenIDs(c *call.Call, ch *call.Choice) []int32 {
	if c.TokenIDs {
		return ch.Tokens
	}
	return nil
}
