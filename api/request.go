// Package api holds the request type that all interfaces share (HTTP, NATS, command line), and the
// interface of the engine that serves it. It must not know how a request is encoded or how an engine
// works.
package api

import (
	"context"
	"errors"
	"math"
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

	// Truncate keeps the first tokens of a prompt that is longer than the model's context takes. In a chat the oldest messages leave first,
	// and system messages and the last one stay. Without it such a prompt is refused.
	Truncate bool

	Messages           []Message // a chat, rendered with the model's template
	Tools              []any     // JSON values, passed to the template unchanged
	TemplateArgs       map[string]any
	ContinueFinal      bool // the answer continues the last assistant message
	NoGenerationPrompt bool
	Prompt             string
	Second             string // with Prompt, and a Pool of an encoder: the second text of a pair; "": there is one text
	PromptTokens       []int32
	TopLogprobs        int  // alternatives per token; -1: no logprobs
	PromptLogprobs     *int // alternatives per token of the prompt, at most sample.MaxTopLogprobs; nil: no logprobs of the prompt
	N                  int  // choices, 1 or more
	MaxTokens          int  // 0: up to the context limit
	ClipMaxTokens      bool // MaxTokens above the room after the prompt means all of it; false: it is refused
	Stop               []string
	StopTokens         []int32
	IgnoreEOS          bool
	IncludeStop        bool     // keep the stop string in the text
	KeepSpecial        bool     // keep special tokens in the text
	KeepTokens         []string // special tokens that are kept in any case: markers of reasoning and calls
	Pool               *Pool    // what is read of the prompt in place of an answer, with N and MaxTokens 1; nil: an answer is generated
	Sampling           sample.Params
	Beams              *sample.BeamParams // beam search: the N best answers, without Sampling; nil: none
	Grammar            *grammar.Spec      // what the text may be, without Beams; shared: read only; nil: anything
	Priority           int                // lower runs first; 0 by default
	Deadline           time.Time          // zero: none
	Arrival            time.Time
	Clock              time.Time // of the chat template; zero: Arrival

	// Equal makes the answer one of workers with these digests, or an error. nil: of any workers. Its hash of the prompt does not count.
	Equal *Pin

	// ReasoningEnd is the text that ends the model's reasoning, "" for a model without it. If the prompt opens
	// reasoning, Grammar begins after it.
	ReasoningEnd string

	// Buffered means that the client sees nothing of the answer before its end, so the answer may
	// start over with an event that has Restart set.
	Buffered bool

	// Takeover is the answer so far of a request that this gateway takes over from another
	// one. The answer continues after it, with events numbered from 1 again, and its Usage counts all
	// tokens. The text is the same as without the takeover if Sampling.Seed is the same. nil
	// means that the request starts here.
	Takeover *Progress
}

// Pool makes a request read what the model makes of its prompt. No answer is generated: one event has a vector and ends the request.
type Pool struct {
	Pooling Pooling
	Tokens  []int32 // of PoolLogits and PoolLogprobs
	// Answers, in place of Tokens, are texts that the answer to Messages may begin with. The log probabilities of their tokens are in
	// Extra.Answers.
	Answers []string
}

// Pooling says what a vector is made of.
type Pooling string

// The poolings.
const (
	PoolLast   Pooling = "last"   // the hidden state of the last token, after the model's last norm
	PoolMean   Pooling = "mean"   // the mean of the hidden states of all tokens
	PoolLogits Pooling = "logits" // the logits of Pool.Tokens after the last token
	// PoolLogprobs is the log probabilities of Pool.Tokens after the last token, among all tokens of the vocabulary.
	PoolLogprobs Pooling = "logprobs"
	// PoolText and PoolClasses are of encoders, which have the whole text in one step.
	PoolText    Pooling = "text"    // the vector that the model's own pooling makes of the text
	PoolClasses Pooling = "classes" // the logits of the model's classes
	PoolNone    Pooling = "none"    // there is no vector, and the end is FinishLength: only PromptLogprobs count
)

// Validate returns an error for a pooling of another version, or one without what it needs.
func (p *Pool) Validate() error {
	switch p.Pooling {
	case PoolLast, PoolMean, PoolText, PoolClasses, PoolNone:
		return nil
	case PoolLogits, PoolLogprobs:
		if len(p.Tokens) > 0 || p.Pooling == PoolLogprobs && len(p.Answers) > 0 {
			return nil
		}
		return Invalid("pooling", "pooling: found %q without tokens, expected at least one", p.Pooling)
	}
	return Invalid("pooling", "pooling: found %q, expected %q, %q, %q, %q, %q, %q or %q", p.Pooling, PoolLast, PoolMean, PoolLogits,
		PoolLogprobs, PoolText, PoolClasses, PoolNone)
}

// Texts returns Answers, nil without a Pool.
func (p *Pool) Texts() []string {
	if p == nil {
		return nil
	}
	return p.Answers
}

// Whole reports whether every token of the prompt has to be computed: cached ones have no hidden states.
func (p *Pool) Whole() bool { return p != nil && p.Pooling == PoolMean || p.Encodes() }

// Encodes reports whether it is a pooling of encoders.
func (p *Pool) Encodes() bool {
	return p != nil && (p.Pooling == PoolText || p.Pooling == PoolClasses)
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

// PriorityIdle is the lowest priority: such a request gets steps, or rows of them, that no other request needs.
const PriorityIdle = math.MaxInt32

// TemplateClock returns the time that the chat template sees.
func (r *Request) TemplateClock() time.Time {
	if r.Clock.IsZero() {
		return r.Arrival
	}
	return r.Clock
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
	// Parts are the offsets in Content at which the text parts begin, each but the first after a newline. Nil: the
	// content is a string.
	Parts []int `json:"content_parts,omitempty"`
}

// TextParts returns the text parts of the content, nil where it is a string.
func (m *Message) TextParts() []string {
	var parts []string
	for i, start := range m.Parts {
		end := len(m.Content)
		if i+1 < len(m.Parts) {
			end = m.Parts[i+1] - 1
		}
		if start < 0 || start > end || end > len(m.Content) { // the offsets are of another content
			return nil
		}
		parts = append(parts, m.Content[start:end])
	}
	return parts
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
	Bytes   []byte         // the token's bytes, possibly a part of a character
	Logprob float32        // NaN: none, of the first token of a prompt
	Rank    int            // of a token of a prompt: 1 for the likeliest; else 0
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
	Ended    int64  // with Done of a call: when its answer ended, in Unix seconds
	Extra    *Extra // on few events; else nil
}

// Extra is what few events have. It is apart, because each token is an event.
type Extra struct {
	Prompt []TokenLogprob // with Request.PromptLogprobs on the first event of the first choice: all tokens of the prompt
	Vector []float32      // of a request with Pool, with FinishStop
	// Answers are those of Pool.Answers, in their order, in place of Vector.
	Answers []AnswerLogprobs
	// Dropped is how many messages left a chat that did not fit, on the first event of a choice, see Request.Truncate.
	Dropped int
}

// AnswerLogprobs is how probable it is that an answer begins with a text.
type AnswerLogprobs struct {
	Tokens   []int32   // of the text, as it follows the prompt
	Logprobs []float32 // of each token after the prompt and the tokens before it
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
	// Poll is Next without a wait: ok is false if there is no event yet.
	Poll() (ev Event, ok bool, err error)
	// Wake returns a channel that receives a value when Poll may have more than in its last call.
	Wake() <-chan struct{}
	// Close cancels the request if it still runs. Later calls do nothing.
	Close()
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
	Second           string // with Prompt: the second text of a pair; "": there is one text
	AddSpecialTokens bool   // with Prompt
	Truncate         bool   // with Prompt: a text that surely has more tokens than the model's context is cut, not refused

	Messages           []Message
	Tools              []any
	TemplateArgs       map[string]any
	ContinueFinal      bool
	NoGenerationPrompt bool
	Clock              time.Time // date and time for the template; zero: now
}
