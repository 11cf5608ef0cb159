// Package client is a client of Millrace over HTTP or NATS. Both transports give
// the same answers. A stream whose server dies continues at another server where
// the servers allow it (--stream-resume): each chunk is yielded exactly once.
//
//	c, err := client.NewHTTP("http://127.0.0.1:8080")
//	for chunk, err := range c.ChatStream(ctx, client.ChatRequest{Messages: ...}) {
//		...
//	}
//
// It must not know how a server works: it imports no other package of this repository, and builds
// without cgo.
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

// Client sends requests to the servers of one transport. Its methods may be called
// by several goroutines. An error that a server reports is an *Error.
type Client interface {
	// Chat returns the whole answer to a conversation. Where the client resumes
	// streams, it gathers the answer from a stream, so that the answer survives the
	// server that began it.
	Chat(ctx context.Context, r ChatRequest) (*Response, error)
	// ChatStream yields the answer to a conversation while the server makes it. An
	// error ends the loop. Leaving the loop, or ending ctx, cancels the request.
	ChatStream(ctx context.Context, r ChatRequest) iter.Seq2[Chunk, error]
	// Complete returns the whole continuation of a text, as Chat does.
	Complete(ctx context.Context, r CompletionRequest) (*Response, error)
	// CompleteStream yields the continuation of a text, as ChatStream does.
	CompleteStream(ctx context.Context, r CompletionRequest) iter.Seq2[Chunk, error]
	// Models returns the served models.
	Models(ctx context.Context) ([]Model, error)
	// Tokenize returns the token ids of a text or a conversation.
	Tokenize(ctx context.Context, r TokenizeRequest) ([]int32, error)
	// Detokenize returns the text of token ids. model may be "" where one is served.
	Detokenize(ctx context.Context, model string, tokens []int32) (string, error)
	// Embed returns the vector of each text.
	Embed(ctx context.Context, r EmbeddingRequest) ([][]float32, error)
	// Decide returns the probabilities of the answers to questions.
	Decide(ctx context.Context, r DecisionRequest) (*Decision, error)
	// Post sends the JSON body of a request that does not stream to a path of the HTTP API, such as
	// /v1/chat/completions, or to its subject, and returns the body of the answer.
	Post(ctx context.Context, path string, body []byte) ([]byte, error)
	// Close closes the connections that the client opened.
	Close()
}

var (
	// ErrGap reports that a part of a stream is missing and cannot be requested again.
	// The chunks before it are complete.
	ErrGap = errors.New("millrace: a part of the stream is missing")
	// ErrCut reports that a stream that cannot be resumed ended before its last chunk.
	ErrCut = errors.New("millrace: the stream was cut")
	// ErrTooLarge reports that a request is larger than the transport's messages.
	ErrTooLarge = errors.New("millrace: request too large for the transport")
)

// Error is an error that a server reports.
type Error struct {
	Status     int           // HTTP status; 0 for an error inside an HTTP stream that is not a refusal
	Message    string        // text for people
	Type       string        // OpenAI's class, such as "invalid_request_error"
	Code       string        // stable code, such as "model_not_found"
	Param      string        // field at fault; "" if none is
	RetryAfter time.Duration // wait before the next try, with status 429 and 503; 0 if unknown
}

// Error returns the message with the status.
func (e *Error) Error() string {
	if e.Status == 0 {
		return "millrace: " + e.Message
	}
	return fmt.Sprintf("millrace: %s (%d)", e.Message, e.Status)
}

// path is the name of an operation on each transport.
type path struct {
	http, nats string
	generates  bool // an answer takes as long as it is, and a second request would compute it again
}

var (
	pathChat       = path{"/v1/chat/completions", "chat.completions", true}
	pathComplete   = path{"/v1/completions", "completions", true}
	pathModels     = path{"/v1/models", "models", false}
	pathTokenize   = path{"/tokenize", "tokenize", false}
	pathDetokenize = path{"/detokenize", "detokenize", false}
	pathDecide     = path{"/v1/decisions", "decisions", true}
	pathEmbed      = path{"/v1/embeddings", "embeddings", true}
	pathResponses  = path{"/v1/responses", "responses", true}
	pathMessages   = path{"/v1/messages", "messages", true}
)

// transport sends the bodies of requests and receives those of answers.
type transport interface {
	// resumes reports whether lost streams are resumed.
	resumes() bool
	// once returns the body of an answer in one piece.
	once(ctx context.Context, p path, body []byte) ([]byte, error)
	// stream yields the JSON of each chunk. It is valid until the next one.
	stream(ctx context.Context, p path, body []byte) iter.Seq2[[]byte, error]
	// close closes the connections that the transport opened.
	close()
}

type client struct{ t transport }

// streamed are the fields that make a request a streamed one.
type streamed struct {
	Stream  bool          `json:"stream"`
	Options streamOptions `json:"stream_options"`
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

var asStream = streamed{Stream: true, Options: streamOptions{IncludeUsage: true}}

// resumable are the fields that make a request a resumable one, where the server allows it.
// A request that is sent again with the same ID gets the same answer.
type resumable struct {
	Resume string `json:"stream_resume,omitempty"`
	ID     string `json:"request_id,omitempty"`
}

// resumable returns the fields for a request with the caller's id, or with a new one for "".
func (c *client) resumable(id string) resumable {
	if !c.t.resumes() {
		return resumable{ID: id}
	}
	return resumable{Resume: "auto", ID: cmp.Or(id, nuid.Next())}
}

// resumeFor is how long a client tries to resume a lost stream, unless it is set.
const resumeFor = 30 * time.Second

// backoff returns the wait before the next try, from 20 ms to 1 s.
func backoff(tries int) time.Duration {
	const first = 20 * time.Millisecond
	return min(first<<min(tries, 6), time.Second)
}

// retry sends a request until it succeeds, fails with an error that is not temporary, or limit
// has passed.
func retry[T any](ctx context.Context, limit time.Duration, send func() (T, error), temporary func(error) bool) (T, error) {
	begin := time.Now()
	for tries := 0; ; tries++ {
		answer, err := send()
		if err == nil || !temporary(err) || time.Since(begin) > limit || !sleep(ctx, backoff(tries)) {
			return answer, err
		}
	}
}

// sleep waits for d. It reports false if ctx ended before.
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

// completionWire is the JSON form of a CompletionRequest.
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
		return w, fmt.Errorf("millrace: found %d of Prompt, Prompts and PromptTokens, expected 1", set)
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

// Embed implements Client.
func (c *client) Embed(ctx context.Context, r EmbeddingRequest) ([][]float32, error) {
	var a struct {
		Data []struct {
			Embedding []float32 `json:"embedding"`
		} `json:"data"`
	}
	if err := c.call(ctx, pathEmbed, r, &a); err != nil {
		return nil, err
	}
	if len(a.Data) != len(r.Input) {
		return nil, fmt.Errorf("millrace: found %d vectors, expected %d, one for each text", len(a.Data), len(r.Input))
	}
	vectors := make([][]float32, len(a.Data))
	for i := range a.Data {
		vectors[i] = a.Data[i].Embedding
	}
	return vectors, nil
}

// Decide implements Client.
func (c *client) Decide(ctx context.Context, r DecisionRequest) (*Decision, error) {
	a := &Decision{}
	if err := c.call(ctx, pathDecide, r, a); err != nil {
		return nil, err
	}
	if len(a.Answers) != len(r.Questions) {
		return nil, fmt.Errorf("millrace: found %d answers, expected %d, one for each question", len(a.Answers), len(r.Questions))
	}
	return a, nil
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

// Post implements Client.
func (c *client) Post(ctx context.Context, to string, body []byte) ([]byte, error) {
	for _, p := range []path{pathChat, pathComplete, pathEmbed, pathTokenize, pathDetokenize, pathResponses, pathMessages, pathDecide} {
		if p.http == to {
			return c.t.once(ctx, p, body)
		}
	}
	return nil, fmt.Errorf("millrace: found path %q, expected one that a Client has a method for", to)
}

func (c *client) Close() { c.t.close() }

// whole returns an answer in one piece. Where the client resumes streams, it gathers the
// answer from its stream.
func (c *client) whole(ctx context.Context, p path, request any, stream iter.Seq2[Chunk, error]) (*Response, error) {
	if c.t.resumes() {
		if a, err := Gather(stream); code(err) != codeTooLarge {
			return a, err
		}
	}
	a := &Response{}
	if err := c.call(ctx, p, request, a); err != nil {
		return nil, err
	}
	return a, nil
}

// call sends a request and decodes its answer.
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

// encode returns the JSON of a request; nil for nil.
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

// chunks yields the chunks of a stream. invalid is an error of the request itself.
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

// parseError decodes an error of OpenAI's form. Any other body becomes the message, cut to 200 bytes.
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
