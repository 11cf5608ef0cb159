package document

import (
	"math"
	"reflect"

	"github.com/danielgtaylor/huma/v2"

	"github.com/millrace/millrace/api/proof"
	"github.com/millrace/millrace/compute/sample"
)

// The types below describe requests in the OpenAPI document. Package openai decodes them, with errors
// that name the field. A test compares both, field by field and bound by bound.

// Sampled are the fields that chat and plain completions share, but for the numbers of package sample.
type Sampled struct {
	Model          string             `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	N              int                `json:"n,omitempty" minimum:"1" maximum:"128" default:"1" doc:"Choices; with several prompts at most 128 over all."`
	DRYMultiplier  float64            `json:"dry_multiplier,omitempty" minimum:"0" maximum:"100" default:"0" doc:"Lowers the logits of tokens that would continue a repetition, by dry_multiplier * dry_base^(its length - dry_allowed_length). (llama.cpp)"`
	DRYBase        float64            `json:"dry_base,omitempty" minimum:"1" maximum:"100" default:"1.75" doc:"(llama.cpp)"`
	DRYAllowed     int                `json:"dry_allowed_length,omitempty" minimum:"0" maximum:"16777216" default:"2" doc:"(llama.cpp)"`
	DRYLast        int                `json:"dry_penalty_last_n,omitempty" minimum:"-1" maximum:"2147483647" default:"-1" doc:"Tokens in which repetitions are found; -1: all, 0: none. (llama.cpp)"`
	DRYBreakers    []string           `json:"dry_sequence_breakers,omitempty" maxItems:"16" doc:"Texts that no repetition crosses, of at most 64 bytes; a line feed, colon, quotation mark and asterisk when left out. (llama.cpp)"`
	XTCProbability float64            `json:"xtc_probability,omitempty" minimum:"0" maximum:"1" default:"0" doc:"How often the tokens that reach xtc_threshold, but the least likely of them, are left out. (llama.cpp)"`
	XTCThreshold   float64            `json:"xtc_threshold,omitempty" minimum:"0" maximum:"1" default:"0.1" doc:"Over 0.5: off. (llama.cpp)"`
	BadWords       []string           `json:"bad_words,omitempty" maxItems:"256" doc:"Texts of at most 256 bytes whose tokens the answer does not have. (vLLM)"`
	LogitBias      map[string]float64 `json:"logit_bias,omitempty" doc:"Token id to a bias from -100 to 100."`
	Seed           int64              `json:"seed,omitempty" doc:"The same seed and request give the same tokens. Random when left out."`
	Stop           *stringOrStrings   `json:"stop,omitempty" doc:"At most 16 strings of at most 1024 bytes."`
	StopTokenIDs   []int32            `json:"stop_token_ids,omitempty" maxItems:"256" doc:"(vLLM)"`
	IncludeStop    bool               `json:"include_stop_str_in_output,omitempty" default:"false" doc:"(vLLM)"`
	PromptLogprobs int                `json:"prompt_logprobs,omitempty" minimum:"0" maximum:"20" doc:"Log probabilities of the prompt's tokens, with this many alternatives. Not with stream. (vLLM)"`
	IgnoreEOS      bool               `json:"ignore_eos,omitempty" default:"false" doc:"Continue to the token limit. (vLLM)"`
	SkipSpecial    bool               `json:"skip_special_tokens,omitempty" default:"true" doc:"Leave special tokens out of the text. (vLLM)"`
	ReturnTokenIDs bool               `json:"return_token_ids,omitempty" default:"false" doc:"Token ids beside the text. (vLLM)"`
	Proof          *boolOrProof       `json:"proof,omitempty" doc:"true: the answer has its proof, and token ids. The proof of an earlier answer: that answer, from workers of the same digests."`
	Stream         bool               `json:"stream,omitempty" default:"false" doc:"Answer with server-sent events."`
	StreamOptions  *streamOptions     `json:"stream_options,omitempty" doc:"Only with stream."`
	StreamResume   *boolOrAuto        `json:"stream_resume,omitempty" doc:"Keep the answer, so that a client that lost its connection can resume it with GET /v1/streams/{id} at any gateway; auto: if the server can."`
	RequestID      string             `json:"request_id,omitempty" maxLength:"64" doc:"Only with stream_resume: the call's id is made of it, and sending the same request again does not run it again."`
	Priority       int32              `json:"priority,omitempty" default:"0" doc:"Lower runs first. (vLLM)"`
	CacheSalt      string             `json:"cache_salt,omitempty" maxLength:"256" doc:"Shares prefixes in the cache only with requests of the same tenant and salt. At most 256 bytes. (vLLM)"`
	Timeout        float64            `json:"timeout,omitempty" exclusiveMinimum:"0" maximum:"86400" doc:"Seconds after which the request ends with an error."`
	BestOf         int                `json:"best_of,omitempty" minimum:"1" maximum:"128" doc:"Only equal to n, or the number of beams. (vLLM)"`
	UseBeamSearch  bool               `json:"use_beam_search,omitempty" default:"false" doc:"The n best answers of a beam search, in place of sampling; the text comes at the end. Not with temperature over 0, penalties, logit_bias, stop or logprobs. (vLLM)"`
	NumBeams       int                `json:"num_beams,omitempty" minimum:"2" maximum:"64" doc:"Only with use_beam_search: beams, best_of or n when left out."`
	LengthPenalty  float64            `json:"length_penalty,omitempty" minimum:"-10" maximum:"10" default:"1" doc:"Only with use_beam_search: an answer's score is its log probability / length^length_penalty. (vLLM)"`
	EarlyStopping  *boolOrNever       `json:"early_stopping,omitempty" doc:"Only with use_beam_search, as in transformers. (vLLM)"`
	ResponseFormat *responseFormat    `json:"response_format,omitempty" doc:"What the text of the answer may be. At most one of this and the next five fields. Not with use_beam_search."`
	Structured     *structuredOutputs `json:"structured_outputs,omitempty" doc:"(vLLM)"`
	GuidedJSON     *schemaOrText      `json:"guided_json,omitempty" doc:"A JSON schema, or a string that holds one. (vLLM)"`
	GuidedRegex    string             `json:"guided_regex,omitempty" minLength:"1" maxLength:"262144" doc:"A regular expression that the whole answer matches. (vLLM)"`
	GuidedChoice   []string           `json:"guided_choice,omitempty" minItems:"1" maxItems:"4096" doc:"The answer is one of these strings. (vLLM)"`
	GuidedGrammar  string             `json:"guided_grammar,omitempty" minLength:"1" maxLength:"262144" doc:"A grammar in Lark or EBNF (root ::= ...). (vLLM)"`
	User           string             `json:"user,omitempty" doc:"Ignored."`
	ServiceTier    string             `json:"service_tier,omitempty" doc:"Ignored."`
	Store          bool               `json:"store,omitempty" doc:"Ignored."`
	Metadata       map[string]any     `json:"metadata,omitempty" doc:"Ignored."`
}

// TransformSchema adds the parameters that are one number, as the decoder does.
func (Sampled) TransformSchema(_ huma.Registry, s *huma.Schema) *huma.Schema {
	for _, n := range sample.Numbers() {
		field := &huma.Schema{Type: huma.TypeNumber, Format: "double", Description: n.Doc, Default: n.Default}
		if _, ok := n.In(new(sample.Params)).(*int); ok {
			field.Type, field.Format = huma.TypeInteger, "int64"
		}
		if n.Open {
			field.ExclusiveMinimum = &n.Min
		} else {
			field.Minimum = &n.Min
		}
		if n.Max != math.MaxInt32 {
			field.Maximum = &n.Max
		}
		s.Properties[n.Name] = field
	}
	return s
}

type streamOptions struct {
	IncludeUsage bool `json:"include_usage,omitempty" default:"false" doc:"A last chunk with the usage and no choices."`
}

type responseFormat struct {
	Type       string       `json:"type" enum:"text,json_object,json_schema"`
	JSONSchema *namedSchema `json:"json_schema,omitempty" doc:"Only with the type json_schema."`
}

type namedSchema struct {
	Name        string         `json:"name,omitempty"`
	Description string         `json:"description,omitempty"`
	Schema      map[string]any `json:"schema" doc:"A JSON schema of at most 256 KiB. It holds with and without strict."`
	Strict      bool           `json:"strict,omitempty"`
}

// structuredOutputs has exactly one of its fields.
type structuredOutputs struct {
	JSON       *schemaOrText `json:"json,omitempty" doc:"As guided_json."`
	Regex      string        `json:"regex,omitempty" minLength:"1" maxLength:"262144" doc:"As guided_regex."`
	Choice     []string      `json:"choice,omitempty" minItems:"1" maxItems:"4096" doc:"As guided_choice."`
	Grammar    string        `json:"grammar,omitempty" minLength:"1" maxLength:"262144" doc:"As guided_grammar."`
	JSONObject bool          `json:"json_object,omitempty" doc:"true: any JSON object."`
}

// Template are the fields of a conversation. (Exported, as Sampled is: huma walks no other embedded fields.)
type Template struct {
	Messages        []message      `json:"messages" minItems:"1" maxItems:"4096"`
	Tools           []tool         `json:"tools,omitempty" maxItems:"256" doc:"Functions that the model may call, with different names. The chat template shows them."`
	AddGeneration   bool           `json:"add_generation_prompt,omitempty" default:"true" doc:"(vLLM)"`
	ContinueFinal   bool           `json:"continue_final_message,omitempty" default:"false" doc:"Continue the last message, the assistant's. (vLLM)"`
	TemplateKwargs  map[string]any `json:"chat_template_kwargs,omitempty" doc:"More variables for the template. (vLLM)"`
	ToolChoice      *toolChoice    `json:"tool_choice,omitempty" doc:"auto when left out. none: the template does not show the tools."`
	ParallelToolUse bool           `json:"parallel_tool_calls,omitempty" default:"true" doc:"false: at most one call."`
}

// namedTool is a form of "tool_choice", as allowedTools is.
type namedTool struct {
	Type     string    `json:"type" enum:"function"`
	Function namedOnly `json:"function"`
}

type namedOnly struct {
	Name string `json:"name"`
}

type allowedTools struct {
	Type    string     `json:"type" enum:"allowed_tools"`
	Allowed toolSubset `json:"allowed_tools"`
}

type toolSubset struct {
	Mode  string      `json:"mode" enum:"auto,required"`
	Tools []namedTool `json:"tools" minItems:"1" maxItems:"256"`
}

type message struct {
	Role       string         `json:"role" enum:"system,developer,user,assistant,tool" doc:"developer is given to the template as system."`
	Content    *stringOrParts `json:"content,omitempty" doc:"Parts are joined by newlines. May be left out beside tool_calls."`
	Reasoning  string         `json:"reasoning_content,omitempty" doc:"Reasoning of an assistant's earlier turn, for templates that show it; also as reasoning."`
	Name       string         `json:"name,omitempty"`
	ToolCalls  []toolCall     `json:"tool_calls,omitempty"`
	ToolCallID string         `json:"tool_call_id,omitempty"`
}

type textPart struct {
	Type string `json:"type" enum:"text"`
	Text string `json:"text"`
}

type tool struct {
	_        struct{}     `json:"-" additionalProperties:"true"`
	Type     string       `json:"type,omitempty" enum:"function"`
	Function toolFunction `json:"function"`
}

type toolFunction struct {
	_           struct{}       `json:"-" additionalProperties:"true"`
	Name        string         `json:"name" minLength:"1" maxLength:"128" pattern:"^[a-zA-Z0-9_./-]+$"`
	Description string         `json:"description,omitempty"`
	Parameters  map[string]any `json:"parameters,omitempty" doc:"The JSON schema of the arguments, an object."`
	Strict      bool           `json:"strict,omitempty" default:"false" doc:"Arguments match the schema with tool_choice auto, too."`
}

type toolCall struct {
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty" enum:"function"`
	Function calledByName `json:"function"`
}

type calledByName struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments" doc:"A JSON object, as a string."`
}

type chatRequest struct {
	_ struct{} `json:"-" additionalProperties:"true"`
	Sampled
	Template
	MaxTokens           int    `json:"max_tokens,omitempty" minimum:"1" maximum:"16777216" doc:"Up to the context length when left out."`
	MaxCompletionTokens int    `json:"max_completion_tokens,omitempty" minimum:"1" maximum:"16777216" doc:"Goes before max_tokens."`
	Logprobs            bool   `json:"logprobs,omitempty" default:"false"`
	TopLogprobs         int    `json:"top_logprobs,omitempty" minimum:"0" maximum:"20" doc:"Only with logprobs."`
	ReasoningEffort     string `json:"reasoning_effort,omitempty" enum:"none,minimal,low,medium,high,xhigh" doc:"Given to the chat template as reasoning_effort, enable_thinking and thinking."`
	ThinkingBudget      int    `json:"thinking_token_budget,omitempty" minimum:"0" maximum:"16777216" doc:"Tokens of reasoning at most: its end is forced then. (vLLM)"`
}

type completionRequest struct {
	_ struct{} `json:"-" additionalProperties:"true"`
	Sampled
	Prompt    prompts `json:"prompt" doc:"One prompt or several (at most 128), as text or token ids. None may be empty."`
	Suffix    string  `json:"suffix,omitempty" doc:"The text after the gap that the answer fills, for a model with tokens for that."`
	MaxTokens int     `json:"max_tokens,omitempty" minimum:"0" maximum:"16777216" default:"16"`
	Logprobs  int     `json:"logprobs,omitempty" minimum:"0" maximum:"20" doc:"Alternatives per token; with echo of the prompt's tokens, too."`
	Echo      bool    `json:"echo,omitempty" default:"false" doc:"The prompt's text comes first."`
}

type decisionRequest struct {
	_         struct{}           `json:"-" additionalProperties:"true"`
	Model     string             `json:"model,omitempty" doc:"A served model. May be left out where one is served."`
	Input     *decisionInput     `json:"input" doc:"What the questions are about: a text, or messages of a user."`
	Questions []decisionQuestion `json:"questions" minItems:"1" maxItems:"200" doc:"At most 2048 options in all of them."`
	Proof     *boolOrDecisions   `json:"proof,omitempty" doc:"true: the answer has its proof. The proof of an earlier answer: that answer, from workers of the same digests."`
	Priority  int32              `json:"priority,omitempty" default:"0" doc:"Lower runs first. (vLLM)"`
	CacheSalt string             `json:"cache_salt,omitempty" maxLength:"256" doc:"As in a chat. (vLLM)"`
	Timeout   float64            `json:"timeout,omitempty" exclusiveMinimum:"0" maximum:"86400" doc:"Seconds after which the request ends with an error."`
	Safety    string             `json:"safety_identifier,omitempty" doc:"Ignored."`
}

type decisionQuestion struct {
	_            struct{}         `json:"-" additionalProperties:"true"`
	Type         string           `json:"type" enum:"predicate,choice,score" doc:"predicate: yes or no. choice: one of choices. score: one of levels."`
	Name         string           `json:"name,omitempty" doc:"Repeated in the answer."`
	Instructions string           `json:"instructions" minLength:"1" doc:"The question."`
	Choices      []decisionChoice `json:"choices,omitempty" minItems:"2" maxItems:"255" doc:"Only of a choice, with different texts."`
	Levels       []decisionLevel  `json:"levels,omitempty" minItems:"2" maxItems:"10" doc:"Only of a score, from the lowest to the highest."`
}

type decisionChoice struct {
	_           struct{}      `json:"-" additionalProperties:"true"`
	Value       *boolOrString `json:"value" doc:"The model answers with its text."`
	Description string        `json:"description,omitempty" doc:"Shown to the model."`
}

type decisionLevel struct {
	_           struct{} `json:"-" additionalProperties:"true"`
	Label       string   `json:"label" minLength:"1"`
	Description string   `json:"description,omitempty" doc:"Shown to the model."`
}

type decisionMessage struct {
	_       struct{}       `json:"-" additionalProperties:"true"`
	Type    string         `json:"type,omitempty" enum:"message"`
	Role    string         `json:"role" enum:"user"`
	Content *stringOrInput `json:"content"`
}

type inputPart struct {
	Type string `json:"type" enum:"input_text"`
	Text string `json:"text"`
}

type tokenizeRequest struct {
	_          struct{} `json:"-" additionalProperties:"true"`
	Model      string   `json:"model,omitempty"`
	Prompt     string   `json:"prompt,omitempty" doc:"Either this or messages, with the template's fields of a chat."`
	AddSpecial bool     `json:"add_special_tokens,omitempty" default:"true" doc:"Only with prompt."`
	Messages   any      `json:"messages,omitempty"`
}

type detokenizeRequest struct {
	_      struct{} `json:"-" additionalProperties:"true"`
	Model  string   `json:"model,omitempty"`
	Tokens []int32  `json:"tokens"`
}

// status is the answer of the health paths.
type status struct {
	Status string `json:"status"`
}

// The fields below have more than one form.
type (
	stringOrStrings struct{}
	boolOrNever     struct{}
	boolOrAuto      struct{}
	boolOrProof     struct{}
	boolOrDecisions struct{}
	boolOrString    struct{}
	decisionInput   struct{}
	stringOrInput   struct{}
	stringOrParts   struct{}
	toolChoice      struct{}
	prompts         struct{}
	schemaOrText    struct{}
)

func oneOf(r huma.Registry, types ...reflect.Type) *huma.Schema {
	s := &huma.Schema{}
	for _, t := range types {
		s.OneOf = append(s.OneOf, huma.SchemaFromType(r, t))
	}
	return s
}

func (stringOrStrings) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]string]())
}

func (boolOrNever) Schema(r huma.Registry) *huma.Schema {
	s := oneOf(r, reflect.TypeFor[bool](), reflect.TypeFor[string]())
	s.OneOf[1].Enum = []any{"never"}
	return s
}

func (boolOrAuto) Schema(r huma.Registry) *huma.Schema {
	s := oneOf(r, reflect.TypeFor[bool](), reflect.TypeFor[string]())
	s.OneOf[1].Enum = []any{"auto"}
	return s
}

func (boolOrProof) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[bool](), reflect.TypeFor[proof.Proof]())
}

func (boolOrDecisions) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[bool](), reflect.TypeFor[proof.Decisions]())
}

func (boolOrString) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[bool](), reflect.TypeFor[string]())
}

func (decisionInput) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]decisionMessage]())
}

func (stringOrInput) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]inputPart]())
}

func (stringOrParts) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]textPart]())
}

func (schemaOrText) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[map[string]any](), reflect.TypeFor[bool](), reflect.TypeFor[string]())
}

func (toolChoice) Schema(r huma.Registry) *huma.Schema {
	s := oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[namedTool](), reflect.TypeFor[allowedTools]())
	s.OneOf[0].Enum = []any{"none", "auto", "required"}
	return s
}

func (prompts) Schema(r huma.Registry) *huma.Schema {
	return oneOf(r, reflect.TypeFor[string](), reflect.TypeFor[[]string](), reflect.TypeFor[[]int32](), reflect.TypeFor[[][]int32]())
}
