// Package api holds the one request type behind every interface (HTTP, NATS,
// command line) and the engine that serves it. It must not know how a request is encoded or
// how an engine works.
package api

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/compute/sample"
)

// Request is a generation request, validated by an interface, before
// tokenization. Exactly one of Messages, Prompt, PromptTokens is set.
type Request struct {
	ID     string // in every log line; "chatcmpl-..." or "cmpl-..."
	First  string // of a further attempt: ID of the first one, which another process had; "": it is the first
	Model  string
	Tenant string // whose request it is; "": nobody's in particular
	Weight int    // of the tenant among others; 0: 1

	Messages           []Message // chat: rendered with the model's template
	Tools              []any     // passed to the template as they are (JSON values)
	TemplateArgs       map[string]any
	ContinueFinal      bool // the last assistant message is a prefix to go on with
	NoGenerationPrompt bool
	Prompt             string
	PromptTokens       []int32
	TopLogprobs        int // alternatives per token; -1: no logprobs at all
	N                  int // choices, >= 1
	MaxTokens          int // 0: up to the context limit
	Stop               []string
	StopTokens         []int32
	IgnoreEOS          bool
	IncludeStop        bool // keep the stop string in the text
	KeepSpecial        bool // do not skip special tokens in the text
	Sampling           sample.Params
	Beams              *sample.BeamParams // nil: none; else N of its answers, and Sampling is not used
	Priority           int                // lower runs first; 0 by default
	Deadline           time.Time          // zero: none
	Arrival            time.Time          // the clock of its chat template, too

	// Buffered says that nothing of the answer is shown before its end: it may begin again,
	// with an event that has Restart set.
	Buffered bool

	// Takeover is the answer so far of a request that this gateway takes over from another
	// one. The answer continues after it, with events numbered from 1 again, and its Usage counts all
	// tokens. The text is the same as without the takeover if Sampling.Seed is the same. nil
	// means that the request starts here.
	Takeover *Progress
}

// Origin is the ID that all attempts have in common.
func (r *Request) Origin() string {
	if r.First != "" {
		return r.First
	}
	return r.ID
}

// Progress is an answer so far.
type Progress struct {
	Choices []ChoiceProgress // [N]
	Pin     Pin              // of the attempt that made it
}

// ChoiceProgress is what one choice had. With a Finish it gets no more events.
type ChoiceProgress struct {
	Tokens []int32
	Finish Finish
}

// Message is one turn of a chat.
type Message struct {
	Role       string `json:"role"`
	Content    string `json:"content"`
	Name       string `json:"name,omitempty"`
	ToolCalls  []any  `json:"tool_calls,omitempty"`
	ToolCallID string `json:"tool_call_id,omitempty"`
}

// Finish says why a choice ended.
type Finish string

// Reasons for the end of a choice.
const (
	FinishNone      Finish = ""
	FinishStop      Finish = "stop"      // end-of-sequence token, stop token or stop string
	FinishLength    Finish = "length"    // MaxTokens or the context limit
	FinishCancelled Finish = "cancelled" // by the client
	FinishError     Finish = "error"     // see Event.Err
)

// TokenLogprob is a token with its natural-log probability.
type TokenLogprob struct {
	Token   int32
	Text    string
	Bytes   []byte // the token's bytes; may be half a character
	Logprob float32
	Top     []TokenLogprob // alternatives, best first; nil inside Top
}

// Event is a piece of an answer. Seq counts the events of a request from 1
// without a gap. The last event of a request has Done set.
type Event struct {
	Seq      uint64
	Choice   int    // 0..N-1
	Text     string // whole characters only; may be empty
	Tokens   []int32
	Logprobs []TokenLogprob
	Finish   Finish // set on the choice's last event
	Err      error  // with FinishError: an *Error
	Pin      *Pin   // on the first event, and on the first after the pin changed; else nil
	Restart  bool   // of a Buffered request: what came of any of its choices before is void
	Done     bool   // the request's last event
	Usage    *Usage // with Done; in a call of several requests at the end of each, the sum so far
}

// Usage counts tokens.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	CachedTokens     int // 0: no prefix is shared; clients expect the field
}

// Stream is the answer to one request. One goroutine reads it.
type Stream interface {
	// Next blocks for the next event. After the Done event it returns io.EOF.
	Next(ctx context.Context) (Event, error)
	// Close cancels the request if it still runs. It may be called more than once.
	Close()
}

// Model describes a served model.
type Model struct {
	ID            string
	Created       time.Time
	ContextLength int
	Sampling      sample.Params // of a request that says nothing; the zero value is sample.Default()
}

// ErrTakenOver is the cause of a context that ends because another process goes on with the
// request, as a further attempt.
var ErrTakenOver = errors.New("api: another process goes on with the request")

// Engine serves requests. Errors it returns are *Error.
type Engine interface {
	// Submit starts a request. It returns quickly: a refusal (bad request,
	// unknown model, overload) is an *Error here or as the first event. If ctx has
	// ended because of ErrTakenOver when the stream is closed, what other processes compute
	// of it is left to run on.
	Submit(ctx context.Context, r *Request) (Stream, error)
	Models() []Model
	// Tokenize turns text (or rendered messages) into ids.
	Tokenize(ctx context.Context, r *TokenizeRequest) ([]int32, error)
	Detokenize(ctx context.Context, model string, tokens []int32) (string, error)
	// Ready is nil when the engine is loaded and its steps make progress.
	Ready() error
}

// TokenizeRequest is text or messages to tokenize; exactly one is set.
type TokenizeRequest struct {
	Model            string
	Prompt           string
	AddSpecialTokens bool // with Prompt

	Messages           []Message
	Tools              []any
	TemplateArgs       map[string]any
	ContinueFinal      bool
	NoGenerationPrompt bool
	Clock              time.Time // the template's date and time; zero: now
}
