package httpapi

import (
	"encoding/json"
	"net/http"

	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/compute/sample"
)

// properties is the answer of /props, as llama.cpp has it. The chat template is not in it: it belongs to the tokenizers, which may be other processes.
type properties struct {
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

// slot is an entry of the answer of /slots.
type slot struct {
	ID         int    `json:"id"`
	Context    int    `json:"n_ctx"`
	Processing bool   `json:"is_processing" doc:"Always false: another request may be sent"`
	Model      string `json:"model"`
}

// props answers as llama.cpp does. The query may name a model; the first one is the default.
func (s *server) props(w http.ResponseWriter, r *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	models, name := s.visible(r), r.URL.Query().Get("model")
	m := openai.Served(models, name)
	switch {
	case m == nil && name == "" && len(models) > 0:
		m = &models[0]
	case m == nil:
		_, err := openai.EncodeModel(name, models)
		return err
	}
	p := m.Sampling
	if p.TopP == 0 { // the zero value: no recommendation
		p = sample.Default()
	}
	body, err := json.Marshal(properties{
		Defaults: defaultSettings{m.ContextLength, samplingParams{
			p.Temperature, p.TopK, p.TopP, p.MinP, p.TypicalP, p.RepetitionPenalty, p.PresencePenalty, p.FrequencyPenalty, -1,
		}},
		TotalSlots: 1, ModelAlias: m.ID, ModelPath: m.ID, BuildInfo: "millrace-" + s.opts.Version,
	})
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}

// slots answers as llama.cpp does: one free slot for each model while the server takes requests.
func (s *server) slots(w http.ResponseWriter, r *http.Request) error {
	if err := s.notReady(); err != nil {
		return err
	}
	list := []slot{}
	for i, m := range s.visible(r) {
		list = append(list, slot{ID: i, Context: m.ContextLength, Model: m.ID})
	}
	body, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return writeJSON(w, body)
}
