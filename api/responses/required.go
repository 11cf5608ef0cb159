package responses

import "github.com/millrace/millrace/api/call"

// Required are fields that each response must have in the Open Responses specification, beside those of Response: the penalties of the
// request, when the answer ended, and what this server does not have.
type Required struct {
	CompletedAt      *int64  `json:"completed_at" doc:"Unix seconds. null unless status is completed"`
	PresencePenalty  float32 `json:"presence_penalty"`
	FrequencyPenalty float32 `json:"frequency_penalty"`
	TopLogprobs      int     `json:"top_logprobs"`
	MaxToolCalls     *int    `json:"max_tool_calls" doc:"Always null: no limit"`
	ServiceTier      string  `json:"service_tier" doc:"Always \"default\""`
	SafetyIdentifier *string `json:"safety_identifier" doc:"Always null"`
	PromptCacheKey   *string `json:"prompt_cache_key" doc:"Always null: cache_salt separates prefixes"`
}

func requiredOf(c *call.Call) Required {
	s := &c.Requests[0].Sampling
	return Required{TopLogprobs: max(c.Requests[0].TopLogprobs, 0), PresencePenalty: s.PresencePenalty,
		FrequencyPenalty: s.FrequencyPenalty,
		ServiceTier:      "default"}
}
