package responses

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/api/tools"
)

// Response is an answer, whole or so far.
type Response struct {
	ID                string         `json:"id"`
	Object            string         `json:"object" doc:"Always \"response\""`
	CreatedAt         int64          `json:"created_at" doc:"Unix seconds"`
	Status            string         `json:"status" doc:"queued, in_progress, completed, incomplete, failed or cancelled"`
	Error             *ErrorObject   `json:"error"`
	IncompleteDetails *Incomplete    `json:"incomplete_details"`
	Model             string         `json:"model"`
	Output            []Item         `json:"output"`
	Usage             *ResponseUsage `json:"usage"`
	Temperature       float32        `json:"temperature"`
	TopP              float32        `json:"top_p"`
	Truncation        string         `json:"truncation" doc:"Always \"disabled\": a prompt that is too long is an error"`
	Proof             *proof.Proof   `json:"proof,omitempty" doc:"With proof, of an answer that has ended"`
	Repeated
	Required
}

// Repeated are fields of the request that its answer repeats.
type Repeated struct {
	Store           bool              `json:"store" doc:"The response can be retrieved"`
	Background      bool              `json:"background"`
	PreviousID      *string           `json:"previous_response_id"`
	Instructions    *string           `json:"instructions"`
	MaxOutputTokens json.RawMessage   `json:"max_output_tokens"`
	Metadata        json.RawMessage   `json:"metadata"`
	Parallel        bool              `json:"parallel_tool_calls"`
	Reasoning       ReasoningSettings `json:"reasoning"`
	Text            TextSettings      `json:"text"`
	ToolChoice      json.RawMessage   `json:"tool_choice"`
	Tools           []json.RawMessage `json:"tools"`
}

// ReasoningSettings are what a request says of reasoning.
type ReasoningSettings struct {
	Effort  *string `json:"effort"`
	Summary *string `json:"summary"`
}

// TextSettings are what a request says of the text of the answer.
type TextSettings struct {
	Format json.RawMessage `json:"format"`
}

// ErrorObject is why a response failed.
type ErrorObject struct {
	_       struct{} `json:"-" nullable:"true"`
	Code    string   `json:"code"`
	Message string   `json:"message"`
}

// Incomplete is why a response is incomplete.
type Incomplete struct {
	_      struct{} `json:"-" nullable:"true"`
	Reason string   `json:"reason" doc:"Always \"max_output_tokens\""`
}

// Item is one part of an answer: a message, reasoning or a call of a tool. Its type says which fields it has.
type Item struct {
	ID        string         `json:"id"`
	Type      string         `json:"type" doc:"message, reasoning, function_call or custom_tool_call"`
	Status    string         `json:"status,omitempty"`
	Role      string         `json:"role,omitempty"`
	Content   *[]ContentPart `json:"content,omitempty"`
	Summary   *[]string      `json:"summary,omitempty" doc:"Always empty"`
	CallID    string         `json:"call_id,omitempty"`
	Name      string         `json:"name,omitempty"`
	Namespace string         `json:"namespace,omitempty" doc:"Only a tool of a namespace has it"`
	Arguments *string        `json:"arguments,omitempty" doc:"JSON. Only a function_call has it"`
	Input     *string        `json:"input,omitempty" doc:"Text. Only a custom_tool_call has it"`
}

// ContentPart is text of an item.
type ContentPart struct {
	Type        string         `json:"type" doc:"output_text or reasoning_text"`
	Text        string         `json:"text"`
	Annotations *[]string      `json:"annotations,omitempty" doc:"Always empty"`
	Logprobs    *[]TextLogprob `json:"logprobs,omitempty" doc:"Only an output_text has it. Empty unless the request includes message.output_text.logprobs or has top_logprobs"`
}

// TextLogprob is the log probability of a token of the text, with those of the likeliest tokens.
type TextLogprob struct {
	TopToken
	Top []TopToken `json:"top_logprobs"`
}

// TopToken is a token with its log probability of a token.
type TopToken struct {
	Token   string  `json:"token"`
	Logprob float32 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

func tokenLogprob(t *api.TokenLogprob) TopToken {
	out := TopToken{Token: t.Text, Logprob: openai.Logprob(t.Logprob), Bytes: make([]int, len(t.Bytes))}
	for i, b := range t.Bytes {
		out.Bytes[i] = int(b)
	}
	return out
}

// logprobsOf returns log probabilities as the API has them.
func logprobsOf(tokens []api.TokenLogprob) *[]TextLogprob {
	list := make([]TextLogprob, len(tokens))
	for i := range tokens {
		list[i] = TextLogprob{tokenLogprob(&tokens[i]), make([]TopToken, len(tokens[i].Top))}
		for k := range tokens[i].Top {
			list[i].Top[k] = tokenLogprob(&tokens[i].Top[k])
		}
	}
	return &list
}

// ResponseUsage counts tokens.
type ResponseUsage struct {
	_             struct{}            `json:"-" nullable:"true"`
	InputTokens   int                 `json:"input_tokens"`
	InputDetails  InputTokensDetails  `json:"input_tokens_details"`
	OutputTokens  int                 `json:"output_tokens"`
	OutputDetails OutputTokensDetails `json:"output_tokens_details"`
	TotalTokens   int                 `json:"total_tokens"`
}

// InputTokensDetails counts the tokens of the input that were in the prefix cache.
type InputTokensDetails struct {
	Cached int `json:"cached_tokens"`
}

// OutputTokensDetails counts the tokens of reasoning.
type OutputTokensDetails struct {
	Reasoning int `json:"reasoning_tokens"`
}

func usageOf(u api.Usage, reasoning int) *ResponseUsage {
	out := &ResponseUsage{InputTokens: u.PromptTokens, OutputTokens: u.CompletionTokens, TotalTokens: u.PromptTokens + u.CompletionTokens}
	out.InputDetails.Cached, out.OutputDetails.Reasoning = u.CachedTokens, reasoning
	return out
}

// The types of items that are calls.
const (
	functionCall = "function_call"
	customCall   = "custom_tool_call"
)

// suffix is the part of a call's ID that the IDs of its answer have.
func suffix(c *call.Call) string { return strings.TrimPrefix(c.ID, "chatcmpl-") }

func newResponse(c *call.Call) Response {
	r := Response{ID: "resp_" + suffix(c), Object: "response", CreatedAt: c.Created.Unix(), Status: "in_progress", Model: c.Model,
		Output:   []Item{},
		Required: requiredOf(c), Truncation: "disabled", Temperature: c.Requests[0].Sampling.Temperature, TopP: c.Requests[0].Sampling.TopP}
	if json.Unmarshal(c.Repeated, &r.Repeated) != nil || r.Tools == nil {
		r.Tools = []json.RawMessage{}
	}
	return r
}

// end sets how a response ended, and when, in Unix seconds. 0 is the time in a log of an earlier version, which has none.
func (r *Response) end(f api.Finish, at int64) {
	if f == api.FinishLength {
		r.Status, r.IncompleteDetails = "incomplete", &Incomplete{Reason: "max_output_tokens"}
		return
	}
	r.Status = "completed"
	if at > 0 {
		r.CompletedAt = &at
	}
}

// newItem returns the item that a delta begins, the n-th of its answer. names are the tools that the client knows in another way.
func newItem(c *call.Call, names map[string]called, d *tools.Delta, n int) Item {
	id := fmt.Sprintf("%s_%d", suffix(c), n)
	switch d.Kind {
	case tools.Reasoning:
		return Item{ID: "rs_" + id, Type: "reasoning", Status: "in_progress", Summary: &[]string{}, Content: &[]ContentPart{}}
	case tools.Begin:
		empty := ""
		name, known := names[d.Name]
		if name.custom {
			return Item{ID: "ctc_" + id, Type: customCall, Status: "in_progress", CallID: d.ID, Name: name.name, Namespace: name.space,
				Input: &empty}
		}
		it := Item{ID: "fc_" + id, Type: functionCall, Status: "in_progress", CallID: d.ID, Name: d.Name, Arguments: &empty}
		if known {
			it.Name, it.Namespace = name.name, name.space
		}
		return it
	default:
		return Item{ID: "msg_" + id, Type: "message", Status: "in_progress", Role: "assistant", Content: &[]ContentPart{}}
	}
}

// setArguments sets what the model wrote as the arguments of a call.
func (it *Item) setArguments(text string) {
	if it.Type == customCall {
		text = call.TextOf(text)
		it.Input = &text
		return
	}
	it.Arguments = &text
}

// newPart returns the empty part of an item that has text.
func newPart(itemType string) ContentPart {
	if itemType == "reasoning" {
		return ContentPart{Type: "reasoning_text"}
	}
	return ContentPart{Type: "output_text", Annotations: &[]string{}, Logprobs: &[]TextLogprob{}}
}

// Encode returns the body of a whole answer.
func Encode(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	out, ch := newResponse(c), &r.Choices[0]
	names := clientNames(out.Tools)
	out.end(ch.Finish, r.Ended)
	text := func(kind tools.Kind, text string) {
		if text == "" {
			return
		}
		it := newItem(c, names, &tools.Delta{Kind: kind}, len(out.Output))
		p := newPart(it.Type)
		p.Text = text
		if kind == tools.Content {
			p.Logprobs = logprobsOf(ch.OfText)
		}
		it.Status, *it.Content = "completed", []ContentPart{p}
		out.Output = append(out.Output, it)
	}
	text(tools.Reasoning, ch.Reasoning)
	text(tools.Content, ch.Text)
	for _, made := range ch.Calls {
		it := newItem(c, names, &tools.Delta{Kind: tools.Begin, ID: made.ID, Name: made.Name}, len(out.Output))
		it.Status = "completed"
		it.setArguments(made.Arguments)
		out.Output = append(out.Output, it)
	}
	if n := len(out.Output); n > 0 && out.Status == "incomplete" {
		out.Output[n-1].Status = "incomplete"
	}
	out.Usage = usageOf(r.Usage, r.Reasoning)
	out.Proof = proof.Of(c, r)
	return api.Marshal(&out)
}

// engineFields are the names that fields have in errors of the engine, which knows no API.
var engineFields = openai.Paths{"messages": "input", "prompt": "input", "max_tokens": "max_output_tokens"}

// EncodeError returns the body of an error.
func EncodeError(e *api.Error) []byte { return openai.EncodeError(api.AsError(engineFields.Rename(e))) }

// errorEvent is the event of an error in a stream.
type errorEvent struct {
	Type    string  `json:"type"`
	Number  int     `json:"sequence_number"`
	Code    *string `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
}

// EncodeStreamError returns the event of an error in a stream that has no other event.
func EncodeStreamError(e *api.Error) []byte { return encodeErrorEvent(e, 0) }

func encodeErrorEvent(e *api.Error, number int) []byte {
	var d openai.ErrorBody
	if json.Unmarshal(EncodeError(e), &d) != nil {
		d.Error.Message = e.Message
	}
	body, err := api.Marshal(errorEvent{"error", number, d.Error.Code, d.Error.Message, d.Error.Param})
	if err != nil { // strings always marshal
		return []byte(`{"type":"error","sequence_number":0,"code":null,"message":"internal error","param":null}`)
	}
	return body
}

// fail makes a response one that failed.
func (r *Response) fail(e *api.Error) {
	r.Status, r.Error = "failed", &ErrorObject{Code: cmp.Or(e.Reason, "server_error"), Message: e.Message}
}
