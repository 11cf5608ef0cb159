package document

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// The types below describe the requests of the other APIs in the OpenAPI document, as schema.go describes OpenAI's. Packages anthropic
// and ollama decode them.

type responsesRequest struct {
	_               struct{}          `json:"-" additionalProperties:"true"`
	Model           string            `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Input           *stringOrBlocks   `json:"input" doc:"Items: messages, reasoning, function_call and function_call_output."`
	Instructions    string            `json:"instructions,omitempty"`
	MaxOutputTokens int               `json:"max_output_tokens,omitempty" minimum:"1" maximum:"16777216"`
	Stream          bool              `json:"stream,omitempty" default:"false" doc:"Answer with server-sent events."`
	Temperature     float64           `json:"temperature,omitempty" minimum:"0" maximum:"2" default:"1"`
	TopP            float64           `json:"top_p,omitempty" minimum:"0" maximum:"1" default:"1"`
	Presence        float64           `json:"presence_penalty,omitempty" minimum:"-2" maximum:"2" default:"0"`
	Frequency       float64           `json:"frequency_penalty,omitempty" minimum:"-2" maximum:"2" default:"0"`
	DRYMultiplier   float64           `json:"dry_multiplier,omitempty" minimum:"0" maximum:"100" default:"0" doc:"As in a chat, as are the next ones. (llama.cpp)"`
	DRYBase         float64           `json:"dry_base,omitempty" minimum:"1" maximum:"100" default:"1.75"`
	DRYAllowed      int               `json:"dry_allowed_length,omitempty" minimum:"0" maximum:"16777216" default:"2"`
	DRYLast         int               `json:"dry_penalty_last_n,omitempty" minimum:"-1" maximum:"2147483647" default:"-1"`
	DRYBreakers     []string          `json:"dry_sequence_breakers,omitempty" maxItems:"16"`
	XTCProbability  float64           `json:"xtc_probability,omitempty" minimum:"0" maximum:"1" default:"0"`
	XTCThreshold    float64           `json:"xtc_threshold,omitempty" minimum:"0" maximum:"1" default:"0.1"`
	TopNSigma       float64           `json:"top_n_sigma,omitempty" minimum:"-1" maximum:"100" default:"-1"`
	BadWords        []string          `json:"bad_words,omitempty" maxItems:"256"`
	Tools           []map[string]any  `json:"tools,omitempty" maxItems:"256" doc:"type: function (name, description, parameters, strict), custom (name, description, format) or namespace (name, tools). Others have no effect"`
	ToolChoice      *toolChoice       `json:"tool_choice,omitempty"`
	Include         []string          `json:"include,omitempty" doc:"message.output_text.logprobs: log probabilities. Others have no effect"`
	TopLogprobs     int               `json:"top_logprobs,omitempty" minimum:"0" maximum:"20"`
	ParallelToolUse bool              `json:"parallel_tool_calls,omitempty" default:"true"`
	Text            map[string]any    `json:"text,omitempty" doc:"format: text, json_object or json_schema"`
	Reasoning       map[string]any    `json:"reasoning,omitempty" doc:"effort"`
	Metadata        map[string]string `json:"metadata,omitempty" doc:"Up to 16 texts of at most 512 characters, with keys of at most 64."`
	Store           bool              `json:"store,omitempty" default:"true" doc:"Keep the response for 24 h."`
	Previous        string            `json:"previous_response_id,omitempty" doc:"A stored response whose conversation continues."`
	Background      bool              `json:"background,omitempty" default:"false" doc:"Answer at once, and run on without the client. Only with store."`
	Proof           *boolOrProof      `json:"proof,omitempty" doc:"As in a chat; without token ids"`
}

type messagesRequest struct {
	_             struct{}           `json:"-" additionalProperties:"true"`
	Model         string             `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	MaxTokens     int                `json:"max_tokens" minimum:"1" maximum:"16777216"`
	Messages      []anthropicMessage `json:"messages" minItems:"1" maxItems:"4096"`
	System        *stringOrBlocks    `json:"system,omitempty"`
	StopSequences []string           `json:"stop_sequences,omitempty" maxItems:"16"`
	Stream        bool               `json:"stream,omitempty" default:"false" doc:"Answer with server-sent events."`
	Temperature   float64            `json:"temperature,omitempty" minimum:"0" maximum:"2" default:"1"`
	TopP          float64            `json:"top_p,omitempty" minimum:"0" maximum:"1" default:"1"`
	TopK          int                `json:"top_k,omitempty" minimum:"-1" default:"0"`
	Tools         []map[string]any   `json:"tools,omitempty" maxItems:"256" doc:"name, description, input_schema. Tools of the server's own have no effect"`
	ToolChoice    map[string]any     `json:"tool_choice,omitempty" doc:"type: auto, any, tool or none; name; disable_parallel_tool_use"`
	Thinking      map[string]any     `json:"thinking,omitempty" doc:"type: enabled, adaptive, between_tools or disabled"`
	OutputConfig  map[string]any     `json:"output_config,omitempty" doc:"effort; format: a JSON schema"`
	Metadata      map[string]any     `json:"metadata,omitempty" doc:"Ignored."`
	Proof         *boolOrProof       `json:"proof,omitempty" doc:"As in a chat; without token ids"`
}

type countRequest struct {
	_        struct{}           `json:"-" additionalProperties:"true"`
	Model    string             `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Messages []anthropicMessage `json:"messages" minItems:"1" maxItems:"4096"`
	System   *stringOrBlocks    `json:"system,omitempty"`
	Tools    []map[string]any   `json:"tools,omitempty" maxItems:"256"`
}

type countAnswer struct {
	InputTokens int `json:"input_tokens"`
}

type anthropicMessage struct {
	_       struct{}        `json:"-" additionalProperties:"true"`
	Role    string          `json:"role" enum:"user,assistant,system"`
	Content *stringOrBlocks `json:"content" doc:"Blocks: text, thinking, tool_use and tool_result."`
}

type ollamaOptions struct {
	_                struct{}         `json:"-" additionalProperties:"true"`
	NumPredict       int              `json:"num_predict,omitempty" doc:"Below 0: up to the context length." default:"-1"`
	Temperature      float64          `json:"temperature,omitempty" minimum:"0" maximum:"2"`
	TopP             float64          `json:"top_p,omitempty" minimum:"0" maximum:"1"`
	TopK             int              `json:"top_k,omitempty" minimum:"-1"`
	MinP             float64          `json:"min_p,omitempty" minimum:"0" maximum:"1"`
	RepeatPenalty    float64          `json:"repeat_penalty,omitempty" exclusiveMinimum:"0" maximum:"10"`
	PresencePenalty  float64          `json:"presence_penalty,omitempty" minimum:"-2" maximum:"2"`
	FrequencyPenalty float64          `json:"frequency_penalty,omitempty" minimum:"-2" maximum:"2"`
	Seed             int64            `json:"seed,omitempty"`
	Stop             *stringOrStrings `json:"stop,omitempty"`
}

type ollamaChat struct {
	_        struct{}        `json:"-" additionalProperties:"true"`
	Model    string          `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Messages []ollamaMessage `json:"messages,omitempty" maxItems:"4096" doc:"None: nothing is generated, and done_reason is load."`
	Tools    []tool          `json:"tools,omitempty" maxItems:"256"`
	Stream   bool            `json:"stream,omitempty" default:"true" doc:"Answer with lines of JSON."`
	Format   any             `json:"format,omitempty" doc:"\"json\" or a JSON schema"`
	Think    any             `json:"think,omitempty" doc:"true, false or an effort"`
	Logprobs bool            `json:"logprobs,omitempty" default:"false"`
	Top      int             `json:"top_logprobs,omitempty" minimum:"0" maximum:"20" doc:"Alternatives of each token, with logprobs"`
	Options  *ollamaOptions  `json:"options,omitempty"`
}

type ollamaMessage struct {
	_          struct{}         `json:"-" additionalProperties:"true"`
	Role       string           `json:"role" enum:"system,user,assistant,tool"`
	Content    string           `json:"content,omitempty"`
	Thinking   string           `json:"thinking,omitempty"`
	ToolName   string           `json:"tool_name,omitempty"`
	ToolCallID string           `json:"tool_call_id,omitempty" doc:"The id of a call. Without ids, results follow their calls in order."`
	ToolCalls  []map[string]any `json:"tool_calls,omitempty" doc:"id; function: name, arguments (an object)"`
}

type ollamaGenerate struct {
	_        struct{}       `json:"-" additionalProperties:"true"`
	Model    string         `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Prompt   string         `json:"prompt,omitempty" doc:"None, and no suffix: nothing is generated, and done_reason is load."`
	System   string         `json:"system,omitempty"`
	Raw      bool           `json:"raw,omitempty" default:"false" doc:"Continue the prompt as it is, without the chat template."`
	Stream   bool           `json:"stream,omitempty" default:"true" doc:"Answer with lines of JSON."`
	Format   any            `json:"format,omitempty" doc:"\"json\" or a JSON schema"`
	Think    any            `json:"think,omitempty" doc:"true, false or an effort"`
	Logprobs bool           `json:"logprobs,omitempty" default:"false"`
	Top      int            `json:"top_logprobs,omitempty" minimum:"0" maximum:"20" doc:"Alternatives of each token, with logprobs"`
	Options  *ollamaOptions `json:"options,omitempty"`
}

type ollamaEmbed struct {
	_          struct{}         `json:"-" additionalProperties:"true"`
	Model      string           `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Input      *stringOrStrings `json:"input"`
	Truncate   bool             `json:"truncate,omitempty" default:"true" doc:"Keep the beginning of a text that is longer than the context; false refuses it."`
	Dimensions int              `json:"dimensions,omitempty" minimum:"1"`
}

type ollamaEmbedding struct {
	_      struct{} `json:"-" additionalProperties:"true"`
	Model  string   `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Prompt string   `json:"prompt" minLength:"1"`
}

// The types of calls whose answers are vectors or scores.

type embeddingRequest struct {
	_          struct{} `json:"-" additionalProperties:"true"`
	Model      string   `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Input      prompts  `json:"input" doc:"Up to 2048 texts, as text or token ids. None may be empty."`
	Dimensions int      `json:"dimensions,omitempty" minimum:"1" doc:"Keep the first ones of the vector."`
	Encoding   string   `json:"encoding_format,omitempty" enum:"float,base64" default:"float"`
	PromptName string   `json:"prompt_name,omitempty" doc:"One of the prompts of the model's files, which comes before each text. Absent: the files' default, if there is one."`
	Priority   int      `json:"priority,omitempty" doc:"Lower runs first."`
	Timeout    float64  `json:"timeout,omitempty" doc:"Seconds until the call ends with an error 504"`
	User       string   `json:"user,omitempty" doc:"Ignored."`
}

type classifyRequest struct {
	_        struct{} `json:"-" additionalProperties:"true"`
	Model    string   `json:"model,omitempty" doc:"A served model with a head for classes. May be left out where one is served."`
	Input    prompts  `json:"input" doc:"Up to 2048 texts, as text or token ids. None may be empty."`
	Priority int      `json:"priority,omitempty" doc:"Lower runs first."`
	Timeout  float64  `json:"timeout,omitempty" doc:"Seconds until the call ends with an error 504"`
}

type rerankRequest struct {
	_               struct{} `json:"-" additionalProperties:"true"`
	Model           string   `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Query           string   `json:"query"`
	Documents       []any    `json:"documents" minItems:"1" maxItems:"2048" doc:"Strings, or objects with a text"`
	Most            int      `json:"top_n,omitempty" minimum:"0" doc:"Results; 0: all"`
	ReturnDocuments bool     `json:"return_documents,omitempty" default:"true"`
	Instruction     string   `json:"instruction,omitempty" doc:"What makes a document relevant, for a model that judges by yes and no"`
}

type scoreRequest struct {
	_           struct{}         `json:"-" additionalProperties:"true"`
	Model       string           `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	First       *stringOrStrings `json:"text_1" doc:"One text, or as many as text_2 has; also as queries"`
	Second      *stringOrStrings `json:"text_2" doc:"Also as documents"`
	Instruction string           `json:"instruction,omitempty" doc:"As in a rerank call"`
}

type showRequest struct {
	_     struct{} `json:"-" additionalProperties:"true"`
	Model string   `json:"model"`
}

type ollamaError struct {
	Error string `json:"error"`
}

// stringOrBlocks is content in Anthropic's form.
type stringOrBlocks struct{}

// Schema implements huma.SchemaProvider.
func (stringOrBlocks) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]map[string]any]())
}
