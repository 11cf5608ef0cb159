// Package api holds the request type that all interfaces share (HTTP, NATS, command line), and the
// interface of the engine that serves it. It must not know how a request is encoded or how an engine
// works.
package api

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

// Request is a generation request before tokenization. An interface has validated it. Exactly one of
// Messages, Prompt and PromptTokens is set.
type Request struct {
	ID     string // "chatcmpl-..." or "cmpl-..."; every log line of the request has it
	First  string // ID of the first attempt, which ran in another process; "": this is the first attempt
	Model  string
	Tenant string // owner of the request; "": the shared tenant of requests without a key
	Weight int    // the tenant's share relative to others; 0: 1

	// CacheSalt divides the tenant's prefix cache: requests share prefixes only with those of an equal salt.
	CacheSalt string // "": the part without a salt; at most MaxCacheSalt bytes

	Messages           []Message // a chat, rendered with the model's template
	Tools              []any     // JSON values, passed to the template unchanged
	TemplateArgs       map[string]any
	ContinueFinal      bool // the answer continues the last assistant message
	NoGenerationPrompt bool
	Prompt             string
	PromptTokens       []int32
	TopLogprobs        int // alternatives per token; -1: no logprobs
	N                  int // choices, 1 or more
	MaxTokens          int // 0: up to the context limit
	Stop               []string
	StopTokens         []int32
	IgnoreEOS          bool
	IncludeStop        bool     // keep the stop string in the text
	KeepSpecial        bool     // keep special tokens in the text
	KeepTokens         []string // special tokens that are kept in any case: markers of reasoning and calls
	Sampling           sample.Params
	Beams              *sample.BeamParams // beam search: the N best answers, without Sampling; nil: none
	Grammar            *grammar.Spec      // what the text may be, without Beams; shared: read only; nil: anything
	Priority           int                // lower runs first; 0 by default
	Deadline           time.Time          // zero: none
	Arrival            time.Time          // also the clock of the chat template

	// ReasoningEnd is the text that ends the model's reasoning, "" for a model without it. If the prompt opens
	// reasoning, Grammar begins after it.
	ReasoningEnd string
	// AwaitReasoning makes Grammar begin there also if the prompt says nothing about reasoning.
	AwaitReasoning bool

	// Buffered means that the client sees nothing of the answer before its end, so the answer may
	// start over with an event that has Restart set.
	Buffered bool

	// Takeover is the answer so far of a request that this gateway takes over from another
	// one. The answer continues after it, with events numbered from 1 again, and its Usage counts all
	// tokens. The text is the same as without the takeover if Sampling.Seed is the same. nil
	// means that the request starts here.
	Takeover *Progress
}

// MaxCacheSalt bounds CacheSalt, in bytes.
const MaxCacheSalt = 256

// CacheSpace names the part of the prefix cache that a tenant's requests with a salt share. Both are UTF-8.
func CacheSpace(tenant, salt string) string {
	if salt == "" {
		return tenant
	}
	return tenant + "\xff" + salt // the byte 0xff is not in UTF-8, so that no two pairs have the same name
}

// Origin returns the ID of the first attempt, which all attempts share.
func (r *Request) Origin() string {
	if r.First != "" {
		return r.First
	}
	return r.ID
}

// Progress is an incomplete answer.
type Progress struct {
	Choices []ChoiceProgress // [N]
	Pin     Pin              // of the attempt that computed it
}

// ChoiceProgress is the incomplete answer of one choice. With a Finish it gets no more events.
type ChoiceProgress struct {
	Tokens []int32
	Finish Finish
}

// Message is one turn of a chat.
type Message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	Reasoning  string `json:"reasoning_content,omitempty"` // of an assistant's earlier turn
	Name       string `json:"name,omitempty"`
	ToolCalls  []any  `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// Finish says why a choice ended.
type Finish string

// The reasons for the end of a choice.
const (
	FinishNone      Finish = ""
	FinishStop      Finish = "stop"       // end-of-sequence token, stop token or stop string
	FinishLength    Finish = "length"     // MaxTokens or the context limit
	FinishToolCalls Finish = "tool_calls" // FinishStop of a choice with calls; only in answers, not in events
	FinishCancelled Finish = "cancelled"  // by the client
	FinishError     Finish = "error"      // see Event.Err
)

// TokenLogprob is a token with its natural-log probability.
type TokenLogprob struct {
	Token   int32
	Text    string
	Bytes   []byte // the token's bytes, possibly a part of a character
	Logprob float32
	Top     []TokenLogprob // alternatives, best first; nil inside Top
}

// Event is a part of an answer. Seq counts the events of a request from 1 without a gap. The last
// event of a request has Done set.
type Event struct {
	Seq      uint64
	Choice   int    // 0..N-1
	Text     string // whole characters only; may be empty
	Tokens   []int32
	Logprobs []TokenLogprob
	Finish   Finish // on the choice's last event
	Stop     string // with FinishStop: the stop string that ended the choice; "": a token did
	Err      error  // with FinishError: an *Error
	Pin      *Pin   // on the first event and after each change; else nil
	Reasons  bool   // on the first token of a choice: the prompt ends inside reasoning, which the text continues
	Restart  bool   // earlier events of all choices are void; only if Request.Buffered
	Done     bool   // the request's last event
	Usage    *Usage // with Done; in a call of several requests on each one's last event, the sum so far
}

// Usage counts tokens.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int // of the prompt: a worker had them in its KV cache when it began the first sequence
}

// Stream is the answer to one request. It is for one goroutine.
type Stream interface {
	// Next blocks for the next event. After the Done event it returns io.EOF.
	Next(ctx context.Context) (Event, error)
	// Close cancels the request if it still runs. Later calls do nothing.
	Close()
}

// Model describes a served model.
type Model struct {
	ID            string
	Created       time.Time
	ContextLength int
	Sampling      sample.Params // defaults of a request; the zero value means sample.Default()
	Format        string        // of reasoning and tool calls, as package tools names it; "": not known
	// Special are the ids of the tokens by which Format marks reasoning and calls, as far as they are special.
	Special map[string]int32
}

// ErrTakenOver is the cause of a context that ends because another process continues the request as
// a further attempt.
var ErrTakenOver = errors.New("api: another process has taken over the request")

// Engine serves requests. Its errors are *Error.
type Engine interface {
	// Submit starts a request and does not wait for its answer. A refusal (bad request, unknown
	// model, overload) is an *Error here or in the first event. Closing the stream stops the
	// computation in other processes, unless ctx has ended because of ErrTakenOver.
	Submit(ctx context.Context, r *Request) (Stream, error)
	// Models returns the served models.
	Models() []Model
	// Tokenize turns text (or rendered messages) into ids.
	Tokenize(ctx context.Context, r *TokenizeRequest) ([]int32, error)
	// Detokenize turns ids into text.
	Detokenize(ctx context.Context, model string, tokens []int32) (string, error)
	// Ready returns nil if the model is loaded and steps make progress, else the reason.
	Ready() error
}

// TokenizeRequest is a text or a chat to tokenize. Exactly one of Prompt and Messages is set.
type TokenizeRequest struct {
	Model            string
	Prompt           string
	AddSpecialTokens bool // with Prompt

	Messages           []Message
	Tools              []any
	TemplateArgs       map[string]any
	ContinueFinal      bool
	NoGenerationPrompt bool
	Clock              time.Time // date and time for the template; zero: now
}
