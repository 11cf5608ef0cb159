// Package client speaks to Millrace over HTTP or NATS. Both transports give the
// same answers. A stream whose server dies goes on at another one, where the
// servers can do that (--stream-resume): each chunk comes exactly once.
//
//	c, err := client.NewHTTP("http://127.0.0.1:8080")
//	for chunk, err := range c.ChatStream(ctx, client.ChatRequest{Messages: ...}) {
//		...
//	}
package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/nats-io/nuid"
)

// Client is what both transports give. Errors of the server are *Error.
type Client interface {
	// Chat gathers a stream where the client resumes those, so that an answer in one
	// piece outlives its server, too.
	Chat(ctx context.Context, r ChatRequest) (*Response, error)
	// ChatStream yields the answer as it is made. An error is the last thing that
	// is yielded. Leaving the loop, or ending ctx, cancels the request.
	ChatStream(ctx context.Context, r ChatRequest) iter.Seq2[Chunk, error]
	Complete(ctx context.Context, r CompletionRequest) (*Response, error)
	CompleteStream(ctx context.Context, r CompletionRequest) iter.Seq2[Chunk, error]
	Models(ctx context.Context) ([]Model, error)
	Tokenize(ctx context.Context, r TokenizeRequest) ([]int32, error)
	Detokenize(ctx context.Context, model string, tokens []int32) (string, error)
	// Close ends what the client itself opened.
	Close()
}

var (
	// ErrGap: a message of a stream is missing, and the stream cannot be resumed.
	// What came before it is good.
	ErrGap = errors.New("millrace: a part of the stream is missing")
	// ErrCut: the stream ended without its end.
	ErrCut = errors.New("millrace: the stream was cut")
	// ErrTooLarge: the request does not fit the transport's messages.
	ErrTooLarge = errors.New("millrace: request too large for the transport")
)

// Error is what the server said.
type Error struct {
	Status     int           // as HTTP's; 0 when the error came inside a stream over HTTP and is no refusal
	Message    string        // in words
	Type       string        // OpenAI's class, "invalid_request_error"
	Code       string        // a stable word, "model_not_found"
	Param      string        // the field at fault
	RetryAfter time.Duration // with status 429 and 503
}

func (e *Error) Error() string {
	if e.Status == 0 {
		return "millrace: " + e.Message
	}
	return fmt.Sprintf("millrace: %s (%d)", e.Message, e.Status)
}

// path names an operation on both transports.
type path struct{ http, nats string }

var (
	pathChat       = path{"/v1/chat/completions", "chat.completions"}
	pathComplete   = path{"/v1/completions", "completions"}
	pathModels     = path{"/v1/models", "models"}
	pathTokenize   = path{"/tokenize", "tokenize"}
	pathDetokenize = path{"/detokenize", "detokenize"}
)

// transport moves bodies. stream yields the JSON of each chunk, which is valid
// until the next.
type transport interface {
	resumes() bool // a stream that is lost is gone on with
	once(ctx context.Context, p path, body []byte) ([]byte, error)
	stream(ctx context.Context, p path, body []byte) iter.Seq2[[]byte, error]
	close()
}

type client struct{ t transport }

// streamed makes a streamed request of a plain one.
type streamed struct {
	Stream  bool          `json:"stream"`
	Options streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

var asStream = streamed{Stream: true, Options: streamOptions{IncludeUsage: true}}

// resumable makes a generation request one whose answer outlives the server that
// began it, where the server can. The id is the caller's, or new for every request: sent
// again, it stands for the same answer.
type resumable struct {
	Resume string `json:"stream_resume,omitempty"`
	ID     string `json:"request_id,omitempty"`
}

func (c *client) resumable(id string) resumable {
	if !c.t.resumes() {
		return resumable{ID: id}
	}
	return resumable{Resume: "auto", ID: cmp.Or(id, nuid.Next())}
}

// resumeFor is how long a client tries to go on with a stream that it lost.
const resumeFor = 30 * time.Second

// backoff is the wait before the next try, from 20 ms to a second.
func backoff(tries int) time.Duration {
	const first = 20 * time.Millisecond
	return min(first<<min(tries, 6), time.Second)
}

// retry asks until a server takes the request, for as long as it passes by waiting and at
// most for a while.
func retry[T any](ctx context.Context, limit time.Duration, send func() (T, error), temporary func(error) bool) (T, error) {
	begin := time.Now()
	for tries := 0; ; tries++ {
		answer, err := send()
		if err == nil || !temporary(err) || time.Since(begin) > limit || !sleep(ctx, backoff(tries)) {
			return answer, err
		}
	}
}

// sleep is false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

type completionWire struct {
	CompletionRequest
	Prompt any `json:"prompt"`
}

func (r CompletionRequest) wire() (completionWire, error) {
	w := completionWire{CompletionRequest: r}
	set := 0
	if r.Prompt != "" {
		w.Prompt, set = r.Prompt, set+1
	}
	if r.Prompts != nil {
		w.Prompt, set = r.Prompts, set+1
	}
	if r.PromptTokens != nil {
		w.Prompt, set = r.PromptTokens, set+1
	}
	if set != 1 {
		return w, fmt.Errorf("millrace: expected one of Prompt, Prompts and PromptTokens, found %d", set)
	}
	return w, nil
}

func (c *client) Chat(ctx context.Context, r ChatRequest) (*Response, error) {
	return c.whole(ctx, pathChat, r, c.ChatStream(ctx, r))
}

func (c *client) ChatStream(ctx context.Context, r ChatRequest) iter.Seq2[Chunk, error] {
	return c.chunks(ctx, pathChat, struct {
		ChatRequest
		streamed
		resumable
	}{r, asStream, c.resumable(r.RequestID)}, nil)
}

func (c *client) Complete(ctx context.Context, r CompletionRequest) (*Response, error) {
	w, err := r.wire()
	if err != nil {
		return nil, err
	}
	return c.whole(ctx, pathComplete, w, c.CompleteStream(ctx, r))
}

func (c *client) CompleteStream(ctx context.Context, r CompletionRequest) iter.Seq2[Chunk, error] {
	w, err := r.wire()
	return c.chunks(ctx, pathComplete, struct {
		completionWire
		streamed
		resumable
	}{w, asStream, c.resumable(r.RequestID)}, err)
}

func (c *client) Models(ctx context.Context) ([]Model, error) {
	var a struct{ Data []Model }
	err := c.call(ctx, pathModels, nil, &a)
	return a.Data, err
}

func (c *client) Tokenize(ctx context.Context, r TokenizeRequest) ([]int32, error) {
	var a struct{ Tokens []int32 }
	err := c.call(ctx, pathTokenize, r, &a)
	return a.Tokens, err
}

func (c *client) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	var a struct{ Prompt string }
	err := c.call(ctx, pathDetokenize, struct {
		Model  string  `json:"model,omitempty"`
		Tokens []int32 `json:"tokens"`
	}{model, tokens}, &a)
	return a.Prompt, err
}

func (c *client) Close() { c.t.close() }

// whole returns an answer in one piece: gathered from its stream where the client resumes
// those.
func (c *client) whole(ctx context.Context, p path, request any, stream iter.Seq2[Chunk, error]) (*Response, error) {
	if c.t.resumes() {
		if a, err := gather(stream); code(err) != codeTooLarge {
			return a, err
		}
	}
	a := &Response{}
	if err := c.call(ctx, p, request, a); err != nil {
		return nil, err
	}
	return a, nil
}

func (c *client) call(ctx context.Context, p path, request, answer any) error {
	body, err := encode(request)
	if err != nil {
		return err
	}
	raw, err := c.t.once(ctx, p, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, answer); err != nil {
		return fmt.Errorf("millrace: answer of %s: %w", p.http, err)
	}
	return nil
}

func encode(request any) ([]byte, error) {
	if request == nil {
		return nil, nil
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("millrace: request: %w", err)
	}
	return body, nil
}

// chunks yields a stream's chunks; invalid is an error from before the request.
func (c *client) chunks(ctx context.Context, p path, request any, invalid error) iter.Seq2[Chunk, error] {
	return func(yield func(Chunk, error) bool) {
		body, err := encode(request)
		if err = errors.Join(invalid, err); err != nil {
			yield(Chunk{}, err)
			return
		}
		for raw, err := range c.t.stream(ctx, p, body) {
			var chunk Chunk
			if err == nil {
				err = json.Unmarshal(raw, &chunk)
			}
			if !yield(chunk, err) || err != nil {
				return
			}
		}
	}
}

// parseError reads an error in OpenAI's shape; what is none is kept as text.
func parseError(status int, body []byte, retryAfter string) *Error {
	var e struct {
		Error struct{ Message, Type, Code, Param string }
	}
	if json.Unmarshal(body, &e) != nil || e.Error.Message == "" {
		const limit = 200
		e.Error.Message = http.StatusText(status) + " " + string(body[:min(len(body), limit)])
	}
	out := &Error{Status: status, Message: e.Error.Message, Type: e.Error.Type, Code: e.Error.Code, Param: e.Error.Param}
	if s, err := strconv.Atoi(retryAfter); err == nil {
		out.RetryAfter = time.Duration(s) * time.Second
	}
	return out
}
