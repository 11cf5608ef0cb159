// Package lmstudio has the parts of LM Studio's REST API that differ from OpenAI's. These are the list of models of /api/v0 and
// /api/v1, and a limit of tokens that may be -1, for all that the context leaves. It must not know HTTP or NATS.
package lmstudio

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/ollama"
)

// publisher is the publisher of a model whose name has none.
const publisher = "millrace"

// ModelsV0 is the answer to /api/v0/models.
type ModelsV0 struct {
	Object string    `json:"object"`
	Data   []ModelV0 `json:"data"`
}

// ModelV0 is a served model in /api/v0. What a worker of an earlier version does not say is "".
type ModelV0 struct {
	ID            string   `json:"id"`
	Object        string   `json:"object"`
	Type          string   `json:"type" enum:"llm,embeddings"`
	Publisher     string   `json:"publisher" doc:"The name's part before the slash; millrace without one"`
	Arch          string   `json:"arch"`
	Compatibility string   `json:"compatibility_type" doc:"The format of the files: gguf, safetensors or pytorch"`
	Quantization  string   `json:"quantization" doc:"What the weights are kept as, such as BF16"`
	State         string   `json:"state" enum:"loaded"`
	MaxContext    int      `json:"max_context_length"`
	LoadedContext int      `json:"loaded_context_length"`
	Capabilities  []string `json:"capabilities" doc:"tool_use, or nothing"`
}

// ModelsV1 is the answer to /api/v1/models.
type ModelsV1 struct {
	Models []ModelV1 `json:"models"`
}

// ModelV1 is a served model in /api/v1.
type ModelV1 struct {
	Type         string        `json:"type" enum:"llm,embedding"`
	Publisher    string        `json:"publisher" doc:"The name's part before the slash; millrace without one"`
	Key          string        `json:"key"`
	DisplayName  string        `json:"display_name"`
	Architecture *string       `json:"architecture,omitempty"`
	Quantization *Quantization `json:"quantization"`
	Size         int64         `json:"size_bytes" doc:"Bytes of the weights in memory"`
	Parameters   *string       `json:"params_string"`
	Loaded       []Instance    `json:"loaded_instances"`
	MaxContext   int           `json:"max_context_length"`
	Format       *string       `json:"format" doc:"gguf, or null for other formats"`
	Capabilities *Capabilities `json:"capabilities,omitempty"`
	Description  *string       `json:"description" doc:"Always null"`
}

// Quantization is what the weights of a ModelV1 are kept as.
type Quantization struct {
	Name string   `json:"name"`
	Bits *float64 `json:"bits_per_weight"`
}

// Instance is a ModelV1 in memory. A served model has one.
type Instance struct {
	ID     string         `json:"id"`
	Config InstanceConfig `json:"config"`
}

// InstanceConfig is the configuration of an Instance.
type InstanceConfig struct {
	Context int `json:"context_length"`
}

// Capabilities are those of a ModelV1 that answers.
type Capabilities struct {
	Vision bool `json:"vision" doc:"Always false"`
	Tools  bool `json:"trained_for_tool_use"`
}

// Decode returns the decoder of OpenAI's call of the same name for a body of /api/v0, whose max_tokens is -1 for all that the context
// leaves.
func Decode(openai func([]byte, []api.Model, time.Time) (*call.Call, error)) func([]byte, []api.Model, time.Time) (*call.Call, error) {
	return func(text []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
		if !bytes.Contains(text, []byte(`"max_tokens"`)) {
			return openai(text, models, arrival)
		}
		var r struct {
			MaxTokens json.RawMessage `json:"max_tokens"`
		}
		if jsonbody.Unmarshal(text, &r) != nil || string(r.MaxTokens) != "-1" {
			return openai(text, models, arrival) // which says what is wrong
		}
		var fields map[string]json.RawMessage
		if err := jsonbody.Unmarshal(text, &fields); err != nil {
			return nil, err
		}
		delete(fields, "max_tokens")
		text, err := json.Marshal(fields)
		if err != nil {
			return nil, err
		}
		return openai(text, models, arrival)
	}
}

// EncodeModels returns the body of the answer to /api/v0/models.
func EncodeModels(models []api.Model) ([]byte, error) {
	list := ModelsV0{Object: "list", Data: []ModelV0{}}
	for i := range models {
		list.Data = append(list.Data, entry(&models[i]))
	}
	return json.Marshal(list)
}

// EncodeModel returns the body of the answer to /api/v0/models/MODEL.
func EncodeModel(m *api.Model) ([]byte, error) { return json.Marshal(entry(m)) }

// EncodeModelsV1 returns the body of the answer to /api/v1/models.
func EncodeModelsV1(models []api.Model) ([]byte, error) {
	list := ModelsV1{Models: []ModelV1{}}
	for i := range models {
		list.Models = append(list.Models, model(&models[i]))
	}
	return json.Marshal(list)
}

func entry(m *api.Model) ModelV0 {
	owner, _ := names(m)
	e := ModelV0{
		ID: m.ID, Object: "model", Type: "llm", Publisher: owner, Arch: m.Description.Architecture, Compatibility: m.Description.Format,
		Quantization: ollama.DetailsOf(m).Quantization, State: "loaded", MaxContext: m.ContextLength, LoadedContext: m.ContextLength,
		Capabilities: []string{},
	}
	if embeds(m) {
		e.Type = "embeddings"
	}
	if calls(m) {
		e.Capabilities = append(e.Capabilities, "tool_use")
	}
	return e
}

func model(m *api.Model) ModelV1 {
	d, details := &m.Description, ollama.DetailsOf(m)
	owner, name := names(m)
	out := ModelV1{
		Type: "llm", Publisher: owner, Key: m.ID, DisplayName: name, Architecture: text(d.Architecture), Size: d.Bytes,
		Parameters: text(details.ParameterSize),
		Loaded:     []Instance{{m.ID, InstanceConfig{m.ContextLength}}}, MaxContext: m.ContextLength,
	}
	if d.Format == "gguf" { // the other value that clients know is mlx
		out.Format = &d.Format
	}
	if details.Quantization != "" {
		out.Quantization = &Quantization{details.Quantization, bits(details.Quantization)}
	}
	if embeds(m) {
		out.Type = "embedding"
	} else {
		out.Capabilities = &Capabilities{Tools: calls(m)}
	}
	return out
}

// names returns the publisher of a model and its name without it.
func names(m *api.Model) (owner, name string) {
	if owner, name, found := strings.Cut(m.ID, "/"); found {
		return owner, name
	}
	return publisher, m.ID
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// bits returns the bits of a weight; nil: not known.
func bits(weights string) *float64 {
	for name, n := range map[string]float64{"F32": 32, "FP32": 32, "F16": 16, "BF16": 16, "FP8": 8, "INT8": 8, "INT4": 4, "NF4": 4} {
		if weights == name {
			return &n
		}
	}
	return nil
}

func embeds(m *api.Model) bool { return slices.Contains(ollama.Capabilities(m), "embedding") }

func calls(m *api.Model) bool { return slices.Contains(ollama.Capabilities(m), "tools") }
