package openai

import (
	"reflect"

	"github.com/danielgtaylor/huma/v2"
)

// The types below describe the requests of the other APIs in the OpenAPI document, as schema.go describes OpenAI's. Packages anthropic
// and ollama decode them.

type responsesRequest struct {
	_               struct{}         `json:"-" additionalProperties:"true"`
	Model           string           `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Input           *stringOrBlocks  `json:"input" doc:"Items: messages, reasoning, function_call and function_call_output."`
	Instructions    string           `json:"instructions,omitempty"`
	MaxOutputTokens int              `json:"max_output_tokens,omitempty" minimum:"1" maximum:"16777216"`
	Stream          bool             `json:"stream,omitempty" default:"false" doc:"Answer with server-sent events."`
	Temperature     float64          `json:"temperature,omitempty" minimum:"0" maximum:"2" default:"1"`
	TopP            float64          `json:"top_p,omitempty" minimum:"0" maximum:"1" default:"1"`
	Tools           []map[string]any `json:"tools,omitempty" maxItems:"256" doc:"type: function; name, description, parameters, strict"`
	ToolChoice      *toolChoice      `json:"tool_choice,omitempty"`
	ParallelToolUse bool             `json:"parallel_tool_calls,omitempty" default:"true"`
	Text            map[string]any   `json:"text,omitempty" doc:"format: text, json_object or json_schema"`
	Reasoning       map[string]any   `json:"reasoning,omitempty" doc:"effort"`
	Metadata        map[string]any   `json:"metadata,omitempty"`
	Store           bool             `json:"store,omitempty" doc:"Ignored: nothing is stored."`
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
	Tools         []map[string]any   `json:"tools,omitempty" maxItems:"256" doc:"name, description, input_schema; no tools of the server's own"`
	ToolChoice    map[string]any     `json:"tool_choice,omitempty" doc:"type: auto, any, tool or none; name; disable_parallel_tool_use"`
	Thinking      map[string]any     `json:"thinking,omitempty" doc:"type: enabled, adaptive, between_tools or disabled"`
	OutputConfig  map[string]any     `json:"output_config,omitempty" doc:"effort; format: a JSON schema"`
	Metadata      map[string]any     `json:"metadata,omitempty" doc:"Ignored."`
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
	Role    string          `json:"role" enum:"user,assistant"`
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
	Messages []ollamaMessage `json:"messages" minItems:"1" maxItems:"4096"`
	Tools    []tool          `json:"tools,omitempty" maxItems:"256"`
	Stream   bool            `json:"stream,omitempty" default:"true" doc:"Answer with lines of JSON."`
	Format   any             `json:"format,omitempty" doc:"\"json\" or a JSON schema"`
	Think    any             `json:"think,omitempty" doc:"true, false or an effort"`
	Options  *ollamaOptions  `json:"options,omitempty"`
}

type ollamaMessage struct {
	_         struct{}         `json:"-" additionalProperties:"true"`
	Role      string           `json:"role" enum:"system,user,assistant,tool"`
	Content   string           `json:"content,omitempty"`
	Thinking  string           `json:"thinking,omitempty"`
	ToolName  string           `json:"tool_name,omitempty"`
	ToolCalls []map[string]any `json:"tool_calls,omitempty" doc:"function: name, arguments (an object)"`
}

type ollamaGenerate struct {
	_       struct{}       `json:"-" additionalProperties:"true"`
	Model   string         `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Prompt  string         `json:"prompt,omitempty"`
	System  string         `json:"system,omitempty"`
	Raw     bool           `json:"raw,omitempty" default:"false" doc:"Continue the prompt as it is, without the chat template."`
	Stream  bool           `json:"stream,omitempty" default:"true" doc:"Answer with lines of JSON."`
	Format  any            `json:"format,omitempty" doc:"\"json\" or a JSON schema"`
	Think   any            `json:"think,omitempty" doc:"true, false or an effort"`
	Options *ollamaOptions `json:"options,omitempty"`
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
