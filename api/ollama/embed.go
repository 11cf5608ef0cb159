package ollama

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/openai"
)

// DecodeEmbed decodes the body of an /api/embed call. An error is an *api.Error that names the field.
func DecodeEmbed(text []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	var r struct {
		Model      string          `json:"model"`
		Input      json.RawMessage `json:"input"`
		Truncate   *bool           `json:"truncate"` // true by default
		Dimensions json.RawMessage `json:"dimensions"`
		CacheSalt  string          `json:"cache_salt"` // an extension of this server
	}
	if err := jsonbody.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	out := body{"model": served(r.Model)}
	for name, v := range map[string]json.RawMessage{"input": r.Input, "dimensions": r.Dimensions} {
		if len(v) > 0 {
			out[name] = v
		}
	}
	c, err := decodeEmbeddings(out, r.CacheSalt, models, arrival)
	if err != nil {
		return nil, err
	}
	c.Kind, c.Vectors.Normalize = call.OllamaEmbed, true
	for _, one := range c.Requests {
		if one.PromptTokens != nil {
			return nil, api.Invalid("input", "input: found token ids, expected a text or a list of texts")
		}
		one.Truncate = r.Truncate == nil || *r.Truncate
	}
	return c, nil
}

// Embedded is the answer to an /api/embed call. Durations are in nanoseconds.
type Embedded struct {
	Model           string      `json:"model"`
	Embeddings      [][]float32 `json:"embeddings"`
	TotalDuration   int64       `json:"total_duration"`
	LoadDuration    int64       `json:"load_duration"`
	PromptEvalCount int         `json:"prompt_eval_count"`
}

// EncodeEmbed returns the body of the answer to an /api/embed call.
func EncodeEmbed(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	a := Embedded{
		Model: c.Model, TotalDuration: time.Since(c.Created).Nanoseconds(), PromptEvalCount: r.Usage.PromptTokens,
		Embeddings: make([][]float32, len(r.Choices)),
	}
	for i := range r.Choices {
		v, err := c.Vectors.Of(&r.Choices[i])
		if err != nil {
			return nil, err
		}
		a.Embeddings[i] = v
	}
	return json.Marshal(a)
}

// DecodeEmbedding decodes the body of an /api/embeddings call, the earlier form of /api/embed. An error is an *api.Error that names the
// field.
func DecodeEmbedding(text []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	var r struct {
		Model     string  `json:"model"`
		Prompt    *string `json:"prompt"`
		CacheSalt string  `json:"cache_salt"` // an extension of this server
	}
	if err := jsonbody.Unmarshal(text, &r); err != nil {
		return nil, err
	}
	if r.Prompt == nil || *r.Prompt == "" {
		return nil, api.Invalid("prompt", "prompt: found none, expected a text")
	}
	c, err := decodeEmbeddings(body{"model": served(r.Model), "input": *r.Prompt}, r.CacheSalt, models, arrival)
	if err != nil {
		return nil, ofPrompt(err)
	}
	c.Kind = call.OllamaEmbedding
	return c, nil
}

// decodeEmbeddings decodes the body of a call to OpenAI's API with a salt.
func decodeEmbeddings(of body, salt string, models []api.Model, arrival time.Time) (*call.Call, error) {
	if salt != "" {
		of["cache_salt"] = salt
	}
	translated, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	return openai.DecodeEmbeddings(translated, models, arrival)
}

// ofPrompt returns an error with the field that the client sent.
func ofPrompt(err error) error {
	e := *api.AsError(err)
	if rest, found := strings.CutPrefix(e.Message, "input"); found && e.Param == "input" {
		e.Param, e.Message = "prompt", "prompt"+rest
	}
	return &e
}

// OneEmbedded is the answer to an /api/embeddings call.
type OneEmbedded struct {
	Embedding []float32 `json:"embedding" doc:"As the model has it, not of length 1"`
}

// EncodeEmbedding returns the body of the answer to an /api/embeddings call.
func EncodeEmbedding(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	v, err := c.Vectors.Of(&r.Choices[0])
	if err != nil {
		return nil, err
	}
	return json.Marshal(OneEmbedded{v})
}
