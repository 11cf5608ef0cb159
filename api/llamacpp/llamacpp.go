// Package llamacpp encodes the answers of llama.cpp's own paths. Its other paths are OpenAI's. It must not know HTTP or NATS.
package llamacpp

import (
	"encoding/json"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/compute/sample"
)

// Properties is the answer of /props, as llama.cpp has it. The chat template is not in it: it belongs to the tokenizers, which may be other
// processes.
type Properties struct {
	Defaults   defaultSettings `json:"default_generation_settings"`
	TotalSlots int             `json:"total_slots" doc:"1: requests share steps, no request waits for another one's slot"`
	ModelAlias string          `json:"model_alias"`
	ModelPath  string          `json:"model_path" doc:"The name of the model: paths are not shown"`
	Template   string          `json:"chat_template" doc:"Always empty"`
	Modalities modalities      `json:"modalities"`
	BuildInfo  string          `json:"build_info"`
}

type defaultSettings struct {
	Context int            `json:"n_ctx"`
	Params  samplingParams `json:"params"`
}

type samplingParams struct {
	Temperature      float32 `json:"temperature"`
	TopK             int     `json:"top_k"`
	TopP             float32 `json:"top_p"`
	MinP             float32 `json:"min_p"`
	TypicalP         float32 `json:"typ_p"`
	RepeatPenalty    float32 `json:"repeat_penalty"`
	PresencePenalty  float32 `json:"presence_penalty"`
	FrequencyPenalty float32 `json:"frequency_penalty"`
	NumPredict       int     `json:"n_predict" doc:"Always -1: up to the end of the context"`
}

type modalities struct {
	Vision bool `json:"vision"`
	Audio  bool `json:"audio"`
}

// Slot is an entry of the answer of /slots.
type Slot struct {
	ID         int    `json:"id"`
	Context    int    `json:"n_ctx"`
	Processing bool   `json:"is_processing" doc:"Always false: another request may be sent"`
	Model      string `json:"model"`
}

// EncodeProps encodes the answer of /props for the model of a name, or for the first one without a name. version is that of the program.
func EncodeProps(models []api.Model, name, version string) ([]byte, error) {
	m := openai.Served(models, name)
	switch {
	case m == nil && name == "" && len(models) > 0:
		m = &models[0]
	case m == nil:
		return openai.EncodeModel(name, models)
	}
	p := m.Sampling
	if p.TopP == 0 { // the zero value: no recommendation
		p = sample.Default()
	}
	return json.Marshal(Properties{
		Defaults: defaultSettings{m.ContextLength, samplingParams{
			p.Temperature, p.TopK, p.TopP, p.MinP, p.TypicalP, p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty, -1,
		}},
		TotalSlots: 1, ModelAlias: m.ID, ModelPath: m.ID, BuildInfo: "millrace-" + version,
	})
}

// EncodeSlots encodes the answer of /slots: one free slot for each model.
func EncodeSlots(models []api.Model) ([]byte, error) {
	list := []Slot{}
	for i, m := range models {
		list = append(list, Slot{ID: i, Context: m.ContextLength, Model: m.ID})
	}
	return json.Marshal(list)
}
