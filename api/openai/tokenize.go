package openai

import (
	"cmp"
	"encoding/json"
	"math"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// DecodeTokenize decodes {"model", "prompt", "add_special_tokens"}, or {"model", "messages", ...} with
// the template's fields of a chat call.
func DecodeTokenize(body []byte, models []api.Model) (*api.TokenizeRequest, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	r := &api.TokenizeRequest{Model: o.model(models), AddSpecialTokens: true}
	_, text := o.get("prompt")
	_, chat := o.get("messages")
	if text == chat {
		o.fail("prompt", "expected either prompt or messages")
	}
	if chat {
		v := o.conversation()
		r.Messages, r.Tools, r.TemplateArgs = v.messages, v.tools, v.args
		r.ContinueFinal, r.NoGenerationPrompt = v.continueFinal, v.noPrompt
		o.refuseUnsupported("add_special_tokens", "false")
		r.AddSpecialTokens = false
	} else {
		o.str("prompt", &r.Prompt)
		o.boolean("add_special_tokens", &r.AddSpecialTokens)
	}
	return r, o.result()
}

// DecodeDetokenize decodes {"model", "tokens"}.
func DecodeDetokenize(body []byte, models []api.Model) (*call.DetokenizeRequest, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	r := &call.DetokenizeRequest{Model: o.model(models)}
	tokens, ok := o.tokens("tokens", math.MaxInt32)
	if !ok {
		o.fail("tokens", "expected a list of token ids")
	}
	r.Tokens = tokens
	return r, o.result()
}

// TokenizeAnswer is the answer to a tokenize call.
type TokenizeAnswer struct {
	Count       int     `json:"count" doc:"Number of tokens"`
	MaxModelLen int     `json:"max_model_len" doc:"The model's context length"`
	Tokens      []int32 `json:"tokens"`
}

// EncodeTokenize returns the body of the answer to a tokenize call.
func EncodeTokenize(r *api.TokenizeRequest, tokens []int32, models []api.Model) ([]byte, error) {
	a := TokenizeAnswer{Count: len(tokens), Tokens: append([]int32{}, tokens...)}
	if m := Served(models, r.Model); m != nil {
		a.MaxModelLen = m.ContextLength
	}
	return json.Marshal(a)
}

// DetokenizeAnswer is the answer to a detokenize call.
type DetokenizeAnswer struct {
	Prompt string `json:"prompt"`
}

// EncodeDetokenize returns the body of the answer to a detokenize call.
func EncodeDetokenize(_ *call.DetokenizeRequest, text string, _ []api.Model) ([]byte, error) {
	return api.Marshal(DetokenizeAnswer{Prompt: text})
}

// ModelCard describes one served model.
type ModelCard struct {
	ID          string `json:"id"`
	Object      string `json:"object" doc:"Always \"model\""`
	Created     int64  `json:"created" doc:"Unix seconds"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len" doc:"The model's context length, in tokens"`

	Sampling ModelSampling `json:"default_sampling" doc:"The parameters of a request that has none"`
}

// ModelSampling is the parameters of sampling that a model recommends.
type ModelSampling struct {
	Temperature       float32 `json:"temperature"`
	TopP              float32 `json:"top_p"`
	TopK              int     `json:"top_k" doc:"0: off"`
	MinP              float32 `json:"min_p"`
	RepetitionPenalty float32 `json:"repetition_penalty"`
}

// ModelList is the answer to a models call.
type ModelList struct {
	Object string      `json:"object" doc:"Always \"list\""`
	Data   []ModelCard `json:"data"`
}

// EncodeModels returns the body of the answer to a models call.
func EncodeModels(models []api.Model) ([]byte, error) {
	list := ModelList{Object: "list", Data: []ModelCard{}}
	for _, m := range models {
		list.Data = append(list.Data, card(m))
	}
	return json.Marshal(list)
}

// EncodeModel returns the body of the answer about one model, or an *api.Error if it is not served.
func EncodeModel(id string, models []api.Model) ([]byte, error) {
	m, err := Find(id, models)
	if err != nil {
		return nil, err
	}
	return json.Marshal(card(*m))
}

// Find returns the model with a name, or an *api.Error if it is not served.
func Find(id string, models []api.Model) (*api.Model, error) {
	if m := Served(models, id); m != nil {
		return m, nil
	}
	return nil, modelNotFound(id, models)
}

func card(m api.Model) ModelCard {
	return ModelCard{ID: m.ID, Object: "model", Created: m.Created.Unix(), OwnedBy: "millrace", MaxModelLen: m.ContextLength,
		Sampling: ModelSampling{
			Temperature: m.Sampling.Temperature, TopP: m.Sampling.TopP, TopK: max(m.Sampling.TopK, 0), MinP: m.Sampling.MinP,
			RepetitionPenalty: cmp.Or(m.Sampling.RepetitionPenalty, 1),
		}}
}
