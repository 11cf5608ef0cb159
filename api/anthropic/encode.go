package anthropic

import (
	"encoding/json"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/api/tools"
)

// MessageAnswer is the whole answer to a messages call.
type MessageAnswer struct {
	ID           string     `json:"id"`
	Type         string     `json:"type" doc:"Always \"message\""`
	Role         string     `json:"role" doc:"Always \"assistant\""`
	Model        string     `json:"model"`
	Content      []Block    `json:"content"`
	StopReason   *string    `json:"stop_reason" doc:"end_turn, max_tokens, stop_sequence or tool_use"`
	StopSequence *string    `json:"stop_sequence"`
	StopDetails  *string    `json:"stop_details" doc:"Always null: this server refuses no topics"`
	Container    *string    `json:"container" doc:"Always null: no code runs on this server"`
	Usage        TokenUsage `json:"usage"`

	Proof *proof.Proof `json:"proof,omitempty" doc:"With proof. In a stream, message_delta has it"`
}

// Block is one part of an answer. Its type says which fields it has.
type Block struct {
	Type      string          `json:"type" doc:"text, thinking or tool_use"`
	Text      *string         `json:"text,omitempty"`
	Thinking  *string         `json:"thinking,omitempty"`
	Signature *string         `json:"signature,omitempty" doc:"Always empty: this server does not sign its reasoning"`
	ID        string          `json:"id,omitempty"`
	Name      string          `json:"name,omitempty"`
	Input     json.RawMessage `json:"input,omitempty"`
	Caller    *Caller         `json:"caller,omitempty" doc:"Only a tool_use has it"`
	Citations json.RawMessage `json:"citations,omitempty" doc:"Only a text has it. Always null"`
}

// Caller is who calls a tool.
type Caller struct {
	Type string `json:"type" doc:"Always \"direct\": the model"`
}

// TokenUsage counts tokens. InputTokens leaves out the tokens that were in the prefix cache.
type TokenUsage struct {
	InputTokens              int             `json:"input_tokens"`
	CacheCreationInputTokens int             `json:"cache_creation_input_tokens"`
	CacheReadInputTokens     int             `json:"cache_read_input_tokens"`
	OutputTokens             int             `json:"output_tokens"`
	OutputDetails            ThinkingDetails `json:"output_tokens_details"`
	CacheCreation            *string         `json:"cache_creation" doc:"Always null: prefixes are cached in any case"`
	ServerTools              *string         `json:"server_tool_use" doc:"Always null: no tools run on this server"`
	InferenceGeo             *string         `json:"inference_geo" doc:"Always null"`
	ServiceTier              string          `json:"service_tier" doc:"Always \"standard\""`
}

// ThinkingDetails counts the tokens of reasoning.
type ThinkingDetails struct {
	Thinking int `json:"thinking_tokens"`
}

// usageOf counts the tokens of an answer. thinking of them are reasoning.
func usageOf(u api.Usage, thinking int) TokenUsage {
	out := TokenUsage{InputTokens: u.PromptTokens - u.CachedTokens, CacheReadInputTokens: u.CachedTokens, OutputTokens: u.CompletionTokens,
		ServiceTier: "standard"}
	out.OutputDetails.Thinking = thinking
	return out
}

// messageID returns the ID of a call in Anthropic's form.
func messageID(c *call.Call) string { return "msg_" + strings.TrimPrefix(c.ID, "chatcmpl-") }

// newBlock returns the start of a block for a delta.
func newBlock(d tools.Delta) Block {
	empty := ""
	switch d.Kind {
	case tools.Reasoning:
		return Block{Type: "thinking", Thinking: &empty, Signature: &empty}
	case tools.Begin:
		return Block{Type: "tool_use", ID: d.ID, Name: d.Name, Input: json.RawMessage("{}"), Caller: &Caller{"direct"}}
	default:
		return Block{Type: "text", Text: &empty, Citations: json.RawMessage("null")}
	}
}

// blocks returns the blocks of a whole answer. A call that was cut has no arguments that are JSON: its input is empty.
func blocks(ch *call.Choice) []Block {
	list := []Block{}
	if ch.Reasoning != "" {
		b := newBlock(tools.Delta{Kind: tools.Reasoning})
		b.Thinking = &ch.Reasoning
		list = append(list, b)
	}
	if ch.Text != "" {
		b := newBlock(tools.Delta{Kind: tools.Content})
		b.Text = &ch.Text
		list = append(list, b)
	}
	for _, c := range ch.Calls {
		b := newBlock(tools.Delta{Kind: tools.Begin, ID: c.ID, Name: c.Name})
		if json.Valid([]byte(c.Arguments)) {
			b.Input = call.Arguments(c.Arguments)
		}
		list = append(list, b)
	}
	return list
}

// blockType returns the type of the block that a delta belongs to.
func blockType(k tools.Kind) string {
	switch k {
	case tools.Content:
		return "text"
	case tools.Reasoning:
		return "thinking"
	case tools.Begin, tools.Arguments, tools.End:
	}
	return "tool_use"
}

// stopReason returns why an answer ended, and the stop sequence that ended it.
func stopReason(f api.Finish, stop string) (reason string, sequence *string) {
	switch {
	case f == api.FinishLength:
		return "max_tokens", nil
	case f == api.FinishToolCalls:
		return "tool_use", nil
	case stop != "":
		return "stop_sequence", &stop
	}
	return "end_turn", nil
}

// Encode returns the body of a whole answer.
func Encode(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	ch := &r.Choices[0]
	reason, sequence := stopReason(ch.Finish, ch.Stop)
	return api.Marshal(MessageAnswer{ID: messageID(c), Type: "message", Role: "assistant", Model: c.Model, Content: blocks(ch),
		StopReason:   &reason,
		StopSequence: sequence, Usage: usageOf(r.Usage, r.Reasoning), Proof: proof.Of(c, r)})
}

// ErrorAnswer is an error in Anthropic's shape.
type ErrorAnswer struct {
	Type  string       `json:"type" doc:"Always \"error\""`
	Error TypedMessage `json:"error"`
}

// TypedMessage is the class and the text of an error.
type TypedMessage struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

// EncodeError returns the body of an error.
func EncodeError(e *api.Error) []byte {
	out := ErrorAnswer{Type: "error"}
	out.Error.Type, out.Error.Message = errorType(e.Code), e.Message
	body, err := api.Marshal(out)
	if err != nil { // strings always marshal
		return []byte(`{"type":"error","error":{"type":"api_error","message":"internal error"}}`)
	}
	return body
}

func errorType(code api.Code) string {
	switch code {
	case api.CodeUnauthorized:
		return "authentication_error"
	case api.CodeNotFound:
		return "not_found_error"
	case api.CodeTooLarge:
		return "request_too_large"
	case api.CodeOverloaded:
		return "rate_limit_error"
	case api.CodeUnavailable:
		return "overloaded_error"
	case api.CodeTimeout, api.CodeInternal:
		return "api_error"
	case api.CodeInvalid:
	}
	if code >= 400 && code < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

// EncodeCount returns the body of the answer to a count_tokens call.
func EncodeCount(_ *api.TokenizeRequest, tokens []int32, _ []api.Model) ([]byte, error) {
	return api.Marshal(struct {
		InputTokens int `json:"input_tokens"`
	}{len(tokens)})
}
