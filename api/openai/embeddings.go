package openai

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

const (
	maxTexts = 2048 // of a call, as OpenAI's
	// textsAtOnce is the number of texts of a call that run at once. It fills steps, and a call leaves places for others.
	textsAtOnce = 32
)

// DecodeEmbeddings decodes the body of an embeddings call into a request for each text. An error is an *api.Error that names the
// field.
func DecodeEmbeddings(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, m, one := o.vectors("embd-", call.Embeddings, models, arrival)
	o.embedding(c, m, &one)
	format := "float"
	if o.str("encoding_format", &format); format != "float" && format != "base64" {
		o.fail("encoding_format", `expected "float" or "base64", found %s`, api.Quote(format))
	}
	c.Vectors.Base64 = format == "base64"
	texts := o.promptsOf("input", maxTexts)
	o.promptTexts(m, texts)
	o.addTexts(c, &one, texts)
	return c, o.result()
}

// promptTexts puts the prompt of the call, or the one that the model's files have for all texts, before each text.
func (o *object) promptTexts(m api.Model, texts []prompt) {
	name := m.Embedding.Default
	if _, named := o.get("prompt_name"); named {
		o.str("prompt_name", &name)
		if _, known := m.Embedding.Prompts[name]; !known {
			o.fail("prompt_name", "found %s, expected one of the prompts of the model's files: %s", api.Quote(name),
				promptNames(m.Embedding.Prompts))
		}
	}
	for i := range texts {
		if texts[i].tokens == nil {
			texts[i].text = m.Embedding.Prompts[name] + texts[i].text
		}
	}
}

func promptNames(prompts map[string]string) string {
	if len(prompts) == 0 {
		return "there is none"
	}
	return strings.Join(slices.Sorted(maps.Keys(prompts)), ", ")
}

// vectors reads the fields of all calls whose answers are made of vectors: the call without requests, its model, and what its
// requests have in common.
func (o *object) vectors(prefix string, kind call.Kind, models []api.Model, arrival time.Time) (*call.Call, api.Model, api.Request) {
	c := &call.Call{
		ID: prefix + strings.ReplaceAll(uuid.NewString(), "-", ""), Kind: kind, Created: arrival, N: 1, Resume: call.ResumeNo,
		Window: textsAtOnce, Vectors: &call.Vectors{},
	}
	c.Model = o.model(models)
	one := api.Request{ID: c.ID, Model: c.Model, Arrival: arrival, TopLogprobs: -1, N: 1, MaxTokens: 1, IgnoreEOS: true}
	o.int("priority", math.MinInt32, math.MaxInt32, &one.Priority)
	o.timeout(&one)
	o.cacheSalt(&one)
	o.refuseUnsupported("truncate_prompt_tokens")
	o.ignored()
	if m := Served(models, c.Model); m != nil {
		return c, *m, one
	}
	return c, api.Model{}, one
}

// embedding makes a request one for the vector of a text, as the model's files say.
func (o *object) embedding(c *call.Call, m api.Model, one *api.Request) {
	e := m.Embedding
	switch {
	case len(e.Labels) > 0:
		o.fail("model",
			"%q makes no embeddings: it has a head for classes, expected a call of /v1/classify, or of /v1/rerank or /v1/score for a model with one class", m.ID)
	case e.Problem != "":
		o.fail("model",
			"%q makes no embeddings here: its files ask for %s, expected a pooling by the mean or the last token, or by the first one of an encoder", m.ID, e.Problem)
	}
	one.Pool = &api.Pool{Pooling: e.Pooling}
	c.Vectors.Normalize = e.Normalize
	o.int("dimensions", 1, int64(max(e.Width, 1)), &c.Vectors.Dimensions)
}

// addTexts adds a request for each text to a call.
func (o *object) addTexts(c *call.Call, one *api.Request, texts []prompt) {
	for _, p := range texts {
		r := *one
		r.Prompt, r.PromptTokens = p.text, p.tokens
		o.addRequest(c, r)
	}
}

// addRequest adds a request to a call, and returns its place.
func (o *object) addRequest(c *call.Call, r api.Request) int {
	if n := len(c.Requests); n > 0 {
		r.ID = fmt.Sprintf("%s-%d", r.ID, n)
	}
	c.Requests = append(c.Requests, &r)
	return len(c.Requests) - 1
}

// EmbeddingList is the answer to an embeddings call.
type EmbeddingList struct {
	Object string           `json:"object" doc:"Always \"list\""`
	Data   []EmbeddingEntry `json:"data" doc:"One for each text, in their order"`
	Model  string           `json:"model"`
	Usage  InputUsage       `json:"usage"`
}

// EmbeddingEntry is the vector of one text.
type EmbeddingEntry struct {
	Object    string `json:"object" doc:"Always \"embedding\""`
	Index     int    `json:"index"`
	Embedding any    `json:"embedding" doc:"A list of numbers, or with encoding_format base64 its little-endian float32 in base64"`
}

// InputUsage counts the tokens of a call without generated ones.
type InputUsage struct {
	PromptTokens        int                 `json:"prompt_tokens"`
	TotalTokens         int                 `json:"total_tokens"`
	PromptTokensDetails PromptTokensDetails `json:"prompt_tokens_details"`
}

func inputUsage(u api.Usage) InputUsage {
	return InputUsage{u.PromptTokens, u.PromptTokens, PromptTokensDetails{u.CachedTokens}}
}

// EncodeEmbeddings returns the body of the answer to an embeddings call.
func EncodeEmbeddings(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	a := EmbeddingList{Object: "list", Model: c.Model, Usage: inputUsage(r.Usage), Data: make([]EmbeddingEntry, len(r.Choices))}
	for i := range r.Choices {
		v, err := c.Vectors.Of(&r.Choices[i])
		if err != nil {
			return nil, err
		}
		a.Data[i] = EmbeddingEntry{Object: "embedding", Index: i, Embedding: v}
		if c.Vectors.Base64 {
			a.Data[i].Embedding = inBase64(v)
		}
	}
	return json.Marshal(a)
}

func inBase64(v []float32) string {
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(raw)
}
