package client

import "encoding/json"

// ChatRequest is a request for the answer to a conversation. A field at its zero value is not sent,
// and the server's default applies. Fields for which zero is a value of its own are pointers.
type ChatRequest struct {
	Model    string            `json:"model,omitempty"`
	Messages []Message         `json:"messages"`
	Tools    []json.RawMessage `json:"tools,omitempty"`
	// "none", "auto", "required" or an object that names a tool
	ToolChoice          any            `json:"tool_choice,omitempty"`
	ParallelToolCalls   *bool          `json:"parallel_tool_calls,omitempty"` // false: at most one call
	ReasoningEffort     string         `json:"reasoning_effort,omitempty"`
	MaxCompletionTokens int            `json:"max_completion_tokens,omitempty"`
	Logprobs            bool           `json:"logprobs,omitempty"`
	TopLogprobs         int            `json:"top_logprobs,omitempty"`
	ContinueFinal       bool           `json:"continue_final_message,omitempty"`
	TemplateArgs        map[string]any `json:"chat_template_kwargs,omitempty"`
	Sampling
}

// CompletionRequest is a request for the continuation of a text. Exactly one of Prompt, Prompts
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

// Sampling holds the parameters that both kinds of request share.
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
	DRYMultiplier     float64            `json:"dry_multiplier,omitempty"`
	DRYBase           float64            `json:"dry_base,omitempty"`
	DRYAllowedLength  *int               `json:"dry_allowed_length,omitempty"`
	DRYPenaltyLastN   *int               `json:"dry_penalty_last_n,omitempty"`
	DRYBreakers       []string           `json:"dry_sequence_breakers,omitempty"`
	XTCProbability    float64            `json:"xtc_probability,omitempty"`
	XTCThreshold      *float64           `json:"xtc_threshold,omitempty"`
	TopNSigma         float64            `json:"top_n_sigma,omitempty"`
	BadWords          []string           `json:"bad_words,omitempty"`
	LogitBias         map[string]float64 `json:"logit_bias,omitempty"`
	Seed              *int64             `json:"seed,omitempty"`
	Stop              []string           `json:"stop,omitempty"`
	StopTokenIDs      []int32            `json:"stop_token_ids,omitempty"`
	IgnoreEOS         bool               `json:"ignore_eos,omitempty"`
	IncludeStop       bool               `json:"include_stop_str_in_output,omitempty"`
	TokenIDs          bool               `json:"return_token_ids,omitempty"`
	Proof             bool               `json:"proof,omitempty"` // the answer has its proof, and token ids
	Priority          int                `json:"priority,omitempty"`
	CacheSalt         string             `json:"cache_salt,omitempty"` // only requests of an equal salt share cached prefixes
	Timeout           float64            `json:"timeout,omitempty"`    // seconds

	// ResponseFormat and StructuredOutputs say what the text may be, in the server's JSON: OpenAI's response_format and vLLM's
	// structured_outputs. At most one of them is set.
	ResponseFormat    json.RawMessage `json:"response_format,omitempty"`
	StructuredOutputs json.RawMessage `json:"structured_outputs,omitempty"`

	// RequestID is the caller's part of the answer's id. The same request sent again with the same
	// RequestID does not run again: it gets the same answer. "" makes a new one for each stream.
	RequestID string `json:"request_id,omitempty"`

	// UseBeamSearch requests the N best answers of a search with NumBeams beams.
	UseBeamSearch bool    `json:"use_beam_search,omitempty"`
	NumBeams      int     `json:"num_beams,omitempty"`
	LengthPenalty float64 `json:"length_penalty,omitempty"` // 0: the server's default, 1
}

// Message is one turn of a conversation.
type Message struct {
	Role       string     `json:"role"` // system, user, assistant, tool
	Content    string     `json:"content"`
	Reasoning  string     `json:"reasoning_content,omitempty"` // of the assistant
	Name       string     `json:"name,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// ToolCall is a call of a tool by the assistant.
type ToolCall struct {
	Index    int          `json:"index,omitempty"` // in a Chunk: number of the call that the part belongs to
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"` // "function"
	Function FunctionCall `json:"function"`
}

// FunctionCall is the function that a ToolCall calls.
type FunctionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"` // a JSON object; in a Chunk a part of it
}

// Response is an answer in one piece.
type Response struct {
	ID          string   `json:"id"`
	Model       string   `json:"model"`
	Created     int64    `json:"created"` // Unix seconds
	Fingerprint string   `json:"system_fingerprint"`
	Choices     []Choice `json:"choices"`
	Usage       Usage    `json:"usage"`

	Proof json.RawMessage `json:"proof"` // the server's JSON; nil without Sampling.Proof
}

// Choice is one of the answers to a request. Logprobs is the server's JSON.
type Choice struct {
	Index        int             `json:"index"`
	Message      Message         `json:"message"` // answer to a chat
	Text         string          `json:"text"`    // continuation of a text
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"`
	TokenIDs     []int32         `json:"token_ids"`
}

// Content returns the text of the choice, of a chat or of a completion.
func (c Choice) Content() string {
	if c.Text != "" {
		return c.Text
	}
	return c.Message.Content
}

// Usage is the number of tokens of a request.
type Usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`

	CompletionDetails *CompletionDetails `json:"completion_tokens_details,omitempty"` // nil for a model that does not reason
}

// CompletionDetails is a part of the tokens of an answer.
type CompletionDetails struct {
	ReasoningTokens int `json:"reasoning_tokens"`
}

// Chunk is a piece of a streamed answer.
type Chunk struct {
	ID          string        `json:"id"`
	Model       string        `json:"model"`
	Created     int64         `json:"created"` // Unix seconds
	Fingerprint string        `json:"system_fingerprint"`
	Choices     []ChunkChoice `json:"choices"` // empty in the last chunk, which has the usage
	Usage       *Usage        `json:"usage"`   // nil before the last chunk

	Proof json.RawMessage `json:"proof"` // in the last chunk, with Sampling.Proof
}

// ChunkChoice is the part of a choice that a chunk adds.
type ChunkChoice struct {
	Index int `json:"index"`
	Delta struct {
		Role      string     `json:"role"`
		Content   string     `json:"content"`
		Reasoning string     `json:"reasoning_content"`
		ToolCalls []ToolCall `json:"tool_calls"`
	} `json:"delta"` // answer to a chat
	Text         string          `json:"text"` // continuation of a text
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason string          `json:"finish_reason"` // "" before the choice's last chunk
	TokenIDs     []int32         `json:"token_ids"`
}

// Content returns the added text, of a chat or of a completion.
func (c ChunkChoice) Content() string { return c.Delta.Content + c.Text }

// Model is a served model.
type Model struct {
	ID            string `json:"id"`
	Created       int64  `json:"created"` // Unix seconds
	ContextLength int    `json:"max_model_len"`

	Sampling ModelSampling `json:"default_sampling"` // of a request without parameters
}

// ModelSampling is the parameters of sampling that a model recommends.
type ModelSampling struct {
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"top_p"`
	TopK              int     `json:"top_k"` // 0: off
	MinP              float64 `json:"min_p"`
	RepetitionPenalty float64 `json:"repetition_penalty"` // 1: off; 0: the server does not say
}

// EmbeddingRequest is texts whose vectors are requested.
type EmbeddingRequest struct {
	Model      string   `json:"model,omitempty"` // "": the only one that is served
	Input      []string `json:"input"`
	Dimensions int      `json:"dimensions,omitempty"` // of a vector that are kept, the first ones; 0: all
}

// DecisionRequest is questions about a text. Their answers are probabilities, and nothing is generated.
type DecisionRequest struct {
	Model     string     `json:"model,omitempty"` // "": the only one that is served
	Input     string     `json:"input"`
	Questions []Question `json:"questions"`
	Proof     bool       `json:"proof,omitempty"`      // the answer has its proof
	CacheSalt string     `json:"cache_salt,omitempty"` // as in Sampling, as are the next two
	Priority  int        `json:"priority,omitempty"`
	Timeout   float64    `json:"timeout,omitempty"`
}

// Question is a question of a DecisionRequest.
type Question struct {
	Type         string   `json:"type"` // "predicate" (yes or no), "choice" or "score"
	Name         string   `json:"name,omitempty"`
	Instructions string   `json:"instructions"`
	Choices      []Option `json:"choices,omitempty"` // of a choice
	Levels       []Level  `json:"levels,omitempty"`  // of a score, in their order
}

// Option is one of the answers to a choice.
type Option struct {
	Value       any    `json:"value"` // a string or a bool
	Description string `json:"description,omitempty"`
}

// Level is one of the answers to a score.
type Level struct {
	Label       string `json:"label"`
	Description string `json:"description,omitempty"`
}

// Decision is the answers to a DecisionRequest, one for each question.
type Decision struct {
	ID      string           `json:"id"`
	Model   string           `json:"model"`
	Answers []DecisionAnswer `json:"answers"`
	Usage   struct {
		InputTokens  int `json:"input_tokens"`
		InputDetails struct {
			Cached int `json:"cached_tokens"`
		} `json:"input_tokens_details"`
	} `json:"usage"`
	Proof json.RawMessage `json:"proof"` // the server's JSON; nil without DecisionRequest.Proof
}

// DecisionAnswer is the answer to a question.
type DecisionAnswer struct {
	Type          string              `json:"type"`
	Name          string              `json:"name"`
	Probability   float64             `json:"probability"`   // of a predicate: that the answer is yes
	Choice        any                 `json:"choice"`        // of a choice: the most probable value
	Score         float64             `json:"score"`         // of a score: the mean of the levels' numbers, from 0 on
	Probabilities []OptionProbability `json:"probabilities"` // of a choice or a score, by option
	Confidence    float64             `json:"confidence"`    // of a choice or a score: probability of the best option among all texts
	Mass          float64             `json:"mass"`          // probability of all options among all texts
}

// OptionProbability is the probability of one option.
type OptionProbability struct {
	Value       any     `json:"value"` // of a choice; of a score the level's number
	Label       string  `json:"label"` // of a level
	Probability float64 `json:"probability"`
}

// TokenizeRequest is a text or a conversation whose token ids are requested.
type TokenizeRequest struct {
	Model            string    `json:"model,omitempty"`
	Prompt           string    `json:"prompt,omitempty"`
	Messages         []Message `json:"messages,omitempty"`
	AddSpecialTokens *bool     `json:"add_special_tokens,omitempty"` // with Prompt; nil: true
}
