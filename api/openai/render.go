package openai

import (
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// DecodeRender decodes the body of a chat completion call whose prompt is to be shown.
func DecodeRender(body []byte, models []api.Model) (*call.Call, error) {
	return DecodeChat(body, models, time.Now())
}

// RenderAnswer is the prompt of a chat completion call. vLLM's has these fields but for the text.
type RenderAnswer struct {
	RequestID   string         `json:"request_id"`
	Model       string         `json:"model"`
	Prompt      string         `json:"prompt" doc:"The text of the tokens"`
	TokenIDs    []int32        `json:"token_ids"`
	Sampling    RenderSampling `json:"sampling_params"`
	Stream      bool           `json:"stream"`
	CacheSalt   string         `json:"cache_salt,omitempty"`
	Priority    int            `json:"priority"`
	MaxModelLen int            `json:"max_model_len" doc:"The model's context length"`
}

// RenderSampling are the sampling parameters of a call, with the model's defaults.
type RenderSampling struct {
	N                 int      `json:"n"`
	MaxTokens         int      `json:"max_tokens" doc:"0: up to the context length"`
	MinTokens         int      `json:"min_tokens"`
	Temperature       float32  `json:"temperature"`
	TopP              float32  `json:"top_p"`
	TopK              int      `json:"top_k"`
	MinP              float32  `json:"min_p"`
	RepetitionPenalty float32  `json:"repetition_penalty"`
	PresencePenalty   float32  `json:"presence_penalty"`
	FrequencyPenalty  float32  `json:"frequency_penalty"`
	Stop              []string `json:"stop"`
	StopTokenIDs      []int32  `json:"stop_token_ids"`
	IgnoreEOS         bool     `json:"ignore_eos"`
}

// EncodeRender returns the body of the answer to a render call.
func EncodeRender(c *call.Call, p *call.Rendered, models []api.Model) ([]byte, error) {
	r, s := c.Requests[0], &c.Requests[0].Sampling
	a := RenderAnswer{
		RequestID: c.ID, Model: c.Model, Prompt: p.Text, TokenIDs: append([]int32{}, p.Tokens...), Stream: c.Stream, CacheSalt: r.CacheSalt,
		Priority: r.Priority,
		Sampling: RenderSampling{
			N: r.N, MaxTokens: r.MaxTokens, MinTokens: s.MinTokens, Temperature: s.Temperature, TopP: s.TopP, TopK: s.TopK, MinP: s.MinP,
			RepetitionPenalty: s.RepetitionPenalty, PresencePenalty: s.PresencePenalty, FrequencyPenalty: s.FrequencyPenalty,
			Stop: append([]string{}, r.Stop...), StopTokenIDs: append([]int32{}, r.StopTokens...), IgnoreEOS: r.IgnoreEOS,
		},
	}
	if m := Served(models, c.Model); m != nil {
		a.MaxModelLen = m.ContextLength
	}
	return api.Marshal(a)
}
