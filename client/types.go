package client

import "encoding/json"

// ChatRequest asks for an answer to a conversation. A field left at its zero
// value is not sent, and the server's default holds; pointers are for fields
// whose zero means something.
type ChatRequest struct {
	Model               string            `json:"model,omitempty"`
	Messages            []Message         `json:"messages"`
	Tools               []json.RawMessage `json:"tools,omitempty"`
	ToolChoice          string            `json:"tool_choice,omitempty"`
	MaxCompletionTokens int               `json:"max_completion_tokens,omitempty"`
	Logprobs            bool              `json:"logprobs,omitempty"`
	TopLogprobs         int               `json:"top_logprobs,omitempty"`
	ContinueFinal       bool              `json:"continue_final_message,omitempty"`
	TemplateArgs        map[string]any    `json:"chat_template_kwargs,omitempty"`
	Sampling
}

// CompletionRequest asks to go on with a text. Exactly one of Prompt, Prompts
// and PromptTokens is set.
type CompletionRequest struct {
	Model        string   `json:"model,omitempty"`
	Prompt       string   `json:"-"`
	Prompts      []string `json:"-"`
	PromptTokens []int32  `json:"-"`
	MaxTokens    int      `json:"max_tokens,omitempty"`
	Logprobs     *int     `json:"logprobs,omitempty"` // alternatives per token
	Echo         bool     `json:"echo,omitempty"`
	Sampling
}

// Sampling are the parameters that both kinds of request share.
type Sampling struct {
	N                 int                `json:"n,omitempty"`
	Temperature       *float64           `json:"temperature,omitempty"`
	TopP              *float64           `json:"top_p,omitempty"`
	TopK              int                `json:"top_k,omitempty"`
	MinP              float64            `json:"min_p,omitempty"`
	TypicalP          float64            `json:"typical_p,omitempty"`
	RepetitionPenalty float64            `json:"repetition_penalty,omitempty"`
	PresencePenalty   float64            `json:"presence_penalty,omitempty"`
	FrequencyPenalty  float64            `json:"frequency_penalty,omitempty"`
	LogitBias         map[string]float64 `json:"logit_bias,omitempty"`
	Seed              *int64             `json:"seed,omitempty"`
	Stop              []string           `json:"stop,omitempty"`
	StopTokenIDs      []int32            `json:"stop_token_ids,omitempty"`
	IgnoreEOS         bool               `json:"ignore_eos,omitempty"`
	IncludeStop       bool               `json:"include_stop_str_in_output,omitempty"`
	TokenIDs          bool               `json:"return_token_ids,omitempty"`
	Priority          int                `json:"priority,omitempty"`
	Timeout           float64            `json:"timeout,omitempty"` // seconds

	// RequestID is the caller's part of the answer's id: the same request sent again with it
	// is not run again, it gets the same answer. "": a new one for each stream.
	RequestID string `json:"request_id,omitempty"`

	// UseBeamSearch asks for the N best answers of a search with NumBeams beams.
	UseBeamSearch bool    `json:"use_beam_search,omitempty"`
	NumBeams      int     `json:"num_beams,omitempty"`
	LengthPenalty float64 `json:"length_penalty,omitempty"` // 0: the server's, 1
}

// Message is one turn of a conversation.
type Message struct {
	Role       string            `json:"role"` // system, user, assistant, tool
	Content    string            `json:"content"`
	Name       string            `json:"name,omitempty"`
	ToolCalls  []json.RawMessage `json:"tool_calls,omitempty"`
	ToolCallID string            `json:"tool_call_id,omitempty"`
}

// Response is a whole answer.
type Response struct {
	ID          string   `json:"id"`
	Model       string   `json:"model"`
	Created     int64    `json:"created"` // Unix seconds
	Fingerprint string   `json:"system_fingerprint"`
	Choices     []Choice `json:"choices"`
	Usage       Usage    `json:"usage"`
}

// Choice is one answer of several. Logprobs are as the server sends them.
type Choice struct {
	Index        int             `json:"index"`
	Message      Message         `json:"message"` // of a chat
	Text         string          `json:"text"`    // of a plain completion
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
}

// Content is the choice's text, of either kind.
func (c Choice) Content() string {
	if c.Text != "" {
		return c.Text
	}
	return c.Message.Content
}

// Usage counts tokens.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// Chunk is a piece of a streamed answer.
type Chunk struct {
	ID          string        `json:"id"`
	Model       string        `json:"model"`
	Created     int64         `json:"created"` // Unix seconds
	Fingerprint string        `json:"system_fingerprint"`
	Choices     []ChunkChoice `json:"choices"` // empty on the last, which has the usage
	Usage       *Usage        `json:"usage"`
}

// ChunkChoice is what a chunk adds to a choice.
type ChunkChoice struct {
	Index int `json:"index"`
	Delta struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	} `json:"delta"` // of a chat
	Text         string          `json:"text"` // of a plain completion
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"` // on the choice's last chunk
	TokenIDs     []int32         `json:"token_ids"`
}

// Content is the added text, of either kind.
func (c ChunkChoice) Content() string { return c.Delta.Content + c.Text }

// Model is a served model.
type Model struct {
	ID            string `json:"id"`
	Created       int64  `json:"created"` // Unix seconds
	ContextLength int    `json:"max_model_len"`
}

// TokenizeRequest is text or a conversation to turn into token ids.
type TokenizeRequest struct {
	Model            string    `json:"model,omitempty"`
	Prompt           string    `json:"prompt,omitempty"`
	Messages         []Message `json:"messages,omitempty"`
	AddSpecialTokens *bool     `json:"add_special_tokens,omitempty"` // with Prompt; true by default
}
