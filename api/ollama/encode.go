package ollama

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/api/tools"
)

// Part is a line of a stream, or a whole answer. Message belongs to a chat, Response and Thinking to /api/generate. The counts and
// durations (in nanoseconds) come with the last line.
type Part struct {
	Model              string  `json:"model"`
	CreatedAt          string  `json:"created_at"`
	Message            *Turn   `json:"message,omitempty"`
	Response           *string `json:"response,omitempty"`
	Thinking           string  `json:"thinking,omitempty"`
	Done               bool    `json:"done"`
	DoneReason         string  `json:"done_reason,omitempty" doc:"stop, length, or load: the call had no prompt"`
	TotalDuration      int64   `json:"total_duration,omitempty"`
	LoadDuration       *int64  `json:"load_duration,omitempty"`
	PromptEvalCount    int     `json:"prompt_eval_count,omitempty"`
	PromptEvalDuration int64   `json:"prompt_eval_duration,omitempty"`
	EvalCount          int     `json:"eval_count,omitempty"`
	EvalDuration       int64   `json:"eval_duration,omitempty"`
	TruncatedMessages  int     `json:"truncated_messages,omitempty" doc:"How many messages left a conversation that did not fit into the context, the oldest ones"`

	Logprobs []Logprob `json:"logprobs,omitempty" doc:"With logprobs: the tokens of the part"`
}

// Logprob is a token with its log probability. Top are alternatives, which have none.
type Logprob struct {
	Token   string    `json:"token"`
	Logprob float32   `json:"logprob" doc:"-9999 for a probability of zero"`
	Bytes   []int     `json:"bytes,omitempty"`
	Top     []Logprob `json:"top_logprobs,omitempty"`
}

// Turn is the assistant's message.
type Turn struct {
	Role      string     `json:"role"`
	Content   string     `json:"content"`
	Thinking  string     `json:"thinking,omitempty"`
	ToolCalls []TurnCall `json:"tool_calls,omitempty"`
}

// TurnCall is a call of a function. Its arguments are an object.
type TurnCall struct {
	ID       string         `json:"id,omitempty"`
	Function CalledFunction `json:"function"`
}

// CalledFunction is the function of a TurnCall.
type CalledFunction struct {
	Index     int             `json:"index" doc:"The number of the call, from 0"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// encoder encodes the answer of one call.
type encoder struct {
	call   *call.Call
	parser *call.Parser
	now    func() time.Time
	first  time.Time // of the first token; zero: none came
	drops  int       // messages that left the chat
	made   TurnCall  // the tool call in hand
	args   bytes.Buffer
	scored []Logprob // tokens without a line so far
}

func newEncoder(c *call.Call) *encoder {
	return &encoder{call: c, parser: call.NewParser(c), now: time.Now}
}

// NewStream returns the encoder of a streamed answer.
func NewStream(c *call.Call, _ string) call.Encoder { return newEncoder(c) }

// Observe does nothing: no line has a digest.
func (*encoder) Observe(api.Event) {}

// Open returns nothing: a stream begins with its first text.
func (*encoder) Open() [][]byte { return nil }

// Encode returns the lines of an event.
func (e *encoder) Encode(ev api.Event) [][]byte {
	if e.first.IsZero() && len(ev.Tokens) > 0 {
		e.first = e.now()
	}
	if ev.Extra != nil {
		e.drops = max(e.drops, ev.Extra.Dropped)
	}
	deltas, _ := e.parser.Deltas(&ev)
	e.scored = append(e.scored, logprobs(ev.Logprobs)...)
	var lines [][]byte
	if m := e.message(deltas); m.Content != "" || m.Thinking != "" || len(m.ToolCalls) > 0 {
		lines = append(lines, e.line(e.part(m)))
	}
	if ev.Done {
		last := e.part(Turn{})
		e.end(&last, ev.Finish, ev.Usage)
		lines = append(lines, e.line(last))
	}
	return lines
}

// message collects deltas. A tool call is complete at its end, since its arguments are an object.
func (e *encoder) message(deltas []tools.Delta) Turn {
	m := Turn{Role: "assistant"}
	for _, d := range deltas {
		switch d.Kind {
		case tools.Content:
			m.Content += d.Text
		case tools.Reasoning:
			m.Thinking += d.Text
		case tools.Begin:
			e.made = TurnCall{d.ID, CalledFunction{Index: d.Call, Name: d.Name}}
			e.args.Reset()
		case tools.Arguments:
			e.args.WriteString(d.Text)
		case tools.End:
			e.made.Function.Arguments = bytes.Clone(e.args.Bytes())
			m.ToolCalls = append(m.ToolCalls, e.made)
		}
	}
	return m
}

func (e *encoder) part(m Turn) Part {
	p := Part{Model: e.call.Model, CreatedAt: e.now().UTC().Format(time.RFC3339Nano), Logprobs: e.scored}
	e.scored = nil
	if e.call.Kind == call.OllamaChat {
		m.Role = "assistant"
		p.Message = &m
	} else {
		p.Response, p.Thinking = &m.Content, m.Thinking
	}
	return p
}

// end adds what only the last line has.
func (e *encoder) end(p *Part, f api.Finish, u *api.Usage) {
	p.Done, p.DoneReason = true, "stop"
	if f == api.FinishLength {
		p.DoneReason = "length"
	}
	now, loaded := e.now(), int64(0)
	p.TruncatedMessages = e.drops
	p.TotalDuration, p.LoadDuration = now.Sub(e.call.Created).Nanoseconds(), &loaded
	if e.call.Requests[0].Pool != nil {
		p.DoneReason = "load"
		return
	}
	if !e.first.IsZero() {
		p.PromptEvalDuration, p.EvalDuration = e.first.Sub(e.call.Created).Nanoseconds(), now.Sub(e.first).Nanoseconds()
	}
	if u != nil {
		p.PromptEvalCount, p.EvalCount = u.PromptTokens, u.CompletionTokens
	}
}

func logprobs(tokens []api.TokenLogprob) []Logprob {
	list := make([]Logprob, len(tokens))
	for i, t := range tokens {
		list[i] = Logprob{Token: t.Text, Logprob: openai.Logprob(t.Logprob), Top: logprobs(t.Top)}
		for _, b := range t.Bytes {
			list[i].Bytes = append(list[i].Bytes, int(b))
		}
	}
	return list
}

func (e *encoder) line(p Part) []byte {
	text, err := api.Marshal(p)
	if err != nil {
		return EncodeError(api.AsError(err))
	}
	return text
}

// Encode returns the body of a whole answer.
func Encode(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	e := newEncoder(c)
	ch := &r.Choices[0]
	e.first, e.scored, e.drops = r.First, logprobs(ch.Logprobs), r.Dropped
	m := Turn{Content: ch.Text, Thinking: ch.Reasoning}
	for i, made := range ch.Calls {
		if json.Valid([]byte(made.Arguments)) { // else the call was cut
			m.ToolCalls = append(m.ToolCalls, TurnCall{made.ID, CalledFunction{i, made.Name, json.RawMessage(made.Arguments)}})
		}
	}
	p := e.part(m)
	e.end(&p, ch.Finish, &r.Usage)
	return e.line(p), nil
}

// EncodeError returns the body of an error.
func EncodeError(e *api.Error) []byte {
	body, err := json.Marshal(map[string]string{"error": e.Message})
	if err != nil { // strings always marshal
		return []byte(`{"error":"internal error"}`)
	}
	return body
}
