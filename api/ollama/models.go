package ollama

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/jsonbody"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/sample"
)

// APIVersion is the version of Ollama whose API this package has. Some clients want a recent one.
const APIVersion = "0.12.0"

// Library is the answer to /api/tags and /api/ps.
type Library struct {
	Models []ModelEntry `json:"models"`
}

// ModelEntry is a served model. What a worker of an earlier version does not say is "" or 0.
type ModelEntry struct {
	Name       string  `json:"name"`
	Model      string  `json:"model"`
	ModifiedAt string  `json:"modified_at,omitempty"`
	ExpiresAt  string  `json:"expires_at,omitempty"`
	Size       int64   `json:"size" doc:"Bytes of the weights in memory"`
	SizeVRAM   *int64  `json:"size_vram,omitempty" doc:"The same where they are in the memory of a GPU, else 0"`
	Digest     string  `json:"digest" doc:"SHA-256 of the model, in hexadecimal"`
	Details    Details `json:"details"`
	Context    int     `json:"context_length,omitempty"`
}

// Details describes the files of a model.
type Details struct {
	ParentModel   string   `json:"parent_model"`
	Format        string   `json:"format"`
	Family        string   `json:"family"`
	Families      []string `json:"families"`
	ParameterSize string   `json:"parameter_size" doc:"Such as 8.0B"`
	Quantization  string   `json:"quantization_level" doc:"What the weights are kept as, such as BF16"`
}

// Card is the answer to /api/show.
type Card struct {
	Modelfile    string         `json:"modelfile"`
	Parameters   string         `json:"parameters" doc:"Defaults of sampling, a line each"`
	Template     string         `json:"template" doc:"The place of the texts: the model's own template is Jinja"`
	Details      Details        `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	ModifiedAt   string         `json:"modified_at"`
}

// VersionAnswer is the answer to /api/version.
type VersionAnswer struct {
	Version string `json:"version"`
}

func entries(models []api.Model, running bool) ([]byte, error) {
	list := Library{Models: []ModelEntry{}}
	for _, m := range models {
		d := &m.Description
		e := ModelEntry{Name: m.ID, Model: m.ID, Size: d.Bytes, Digest: digest(&m), Details: DetailsOf(&m)}
		if running { // a served model stays loaded
			e.ExpiresAt, e.Context, e.SizeVRAM = m.Created.AddDate(100, 0, 0).UTC().Format(time.RFC3339), m.ContextLength, new(int64)
			if d.GPU {
				*e.SizeVRAM = d.Bytes
			}
		} else {
			e.ModifiedAt = m.Created.UTC().Format(time.RFC3339)
		}
		list.Models = append(list.Models, e)
	}
	return json.Marshal(list)
}

// digest returns the digest of a model. Clients cut it to its first 12 characters and use it as a key, so that there is one also of a model
// that nothing describes: of its name.
func digest(m *api.Model) string {
	if m.Description.Digest != "" {
		return m.Description.Digest
	}
	sum := sha256.Sum256([]byte(m.ID))
	return hex.EncodeToString(sum[:])
}

// DetailsOf describes the files of a model.
func DetailsOf(m *api.Model) Details {
	d := &m.Description
	weights, _, _ := strings.Cut(d.Weights, "+")
	out := Details{Format: d.Format, Family: d.Architecture, Families: []string{}, ParameterSize: amount(d.Parameters),
		Quantization: strings.ToUpper(weights)}
	if d.Architecture != "" {
		out.Families = append(out.Families, d.Architecture)
	}
	return out
}

// amount writes a number of parameters as Ollama does: 8.0B, 494.03M.
func amount(n int64) string {
	const thousand, million, billion = 1e3, 1e6, 1e9
	switch f := float64(n); {
	case n == 0:
		return ""
	case f >= billion:
		return fmt.Sprintf("%.1fB", f/billion)
	case f >= million:
		return fmt.Sprintf("%.2fM", f/million)
	case f >= thousand:
		return fmt.Sprintf("%.2fK", f/thousand)
	}
	return strconv.FormatInt(n, 10)
}

// Tags answers an /api/tags call: the served models.
func Tags(_ []byte, models []api.Model) ([]byte, error) {
	return entries(models, false)
}

// Running answers an /api/ps call: the models that are loaded, which are the served ones.
func Running(_ []byte, models []api.Model) ([]byte, error) {
	return entries(models, true)
}

// Version answers an /api/version call.
func Version([]byte, []api.Model) ([]byte, error) {
	return json.Marshal(VersionAnswer{APIVersion})
}

// Show answers an /api/show call.
func Show(body []byte, models []api.Model) ([]byte, error) {
	var r struct {
		Model string `json:"model"`
		Name  string `json:"name"` // its earlier name
	}
	if err := jsonbody.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if r.Model == "" {
		r.Model = r.Name
	}
	if r.Model == "" {
		return nil, api.Invalid("model", "model: found none, expected the name of a model")
	}
	r.Model = served(r.Model)
	m := api.Find(models, r.Model)
	if m == nil {
		return nil, &api.Error{Code: api.CodeNotFound, Param: "model", Reason: "model_not_found",
			Message: fmt.Sprintf("model %s not found", api.Quote(r.Model))}
	}
	return json.Marshal(Card{
		Modelfile: "FROM " + m.ID + "\n", Parameters: parameters(m), Template: template(m), Details: DetailsOf(m), ModelInfo: modelInfo(m),
		Capabilities: Capabilities(m), ModifiedAt: m.Created.UTC().Format(time.RFC3339),
	})
}

// parameters returns the defaults of a request, as a Modelfile has them.
func parameters(m *api.Model) string {
	p := m.Sampling
	if p.TopP == 0 { // the zero value: no recommendation
		p = sample.Default()
	}
	var b strings.Builder
	for _, one := range []struct {
		name  string
		value any
	}{
		{"num_ctx", m.ContextLength}, {"temperature", p.Temperature}, {"top_k", p.TopK}, {"top_p", p.TopP}, {"min_p", p.MinP},
		{"repeat_penalty", p.RepetitionPenalty},
	} {
		fmt.Fprintf(&b, "%-30s %v\n", one.name, one.value)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// template returns where the texts of a call go, in the form of Ollama's templates. Clients search it for the name of what they want to
// send. The model's own template is of another language.
func template(m *api.Model) string {
	chat := "{{ .System }}"
	if f, err := tools.Lookup(m.Format); err == nil && f.Calls() {
		chat += "{{ .Tools }}"
	}
	chat += "{{ .Prompt }}"
	if m.Infill != nil {
		return "{{ if .Suffix }}" + m.Infill[0] + "{{ .Prompt }}" + m.Infill[1] + "{{ .Suffix }}" + m.Infill[2] + "{{ else }}" + chat +
			"{{ end }}"
	}
	return chat
}

// modelInfo returns what Ollama takes from the metadata of a GGUF file, with its names.
func modelInfo(m *api.Model) map[string]any {
	d := &m.Description
	arch := d.Architecture
	if arch == "" { // clients look up ARCH.context_length
		arch = "unknown"
	}
	_, base, found := strings.Cut(m.ID, "/")
	if !found {
		base = m.ID
	}
	info := map[string]any{"general.architecture": arch, "general.basename": base, "general.context_length": m.ContextLength,
		arch + ".context_length": m.ContextLength}
	for name, n := range map[string]int64{
		"general.parameter_count": d.Parameters, arch + ".block_count": int64(d.Layers), arch + ".embedding_length": int64(d.Hidden),
		arch + ".attention.head_count": int64(d.Heads), arch + ".attention.head_count_kv": int64(d.KVHeads),
		arch + ".feed_forward_length": int64(d.FeedForward),
		arch + ".vocab_size":          int64(d.Vocab),
	} {
		if n > 0 {
			info[name] = n
		}
	}
	return info
}

// Capabilities returns what a model can do, as Ollama names it.
func Capabilities(m *api.Model) []string {
	list := []string{"completion"}
	if m.Infill != nil {
		list = append(list, "insert")
	}
	if m.Embedding.Named && m.Embedding.Width > 0 && m.Embedding.Problem == "" {
		list = append(list, "embedding")
	}
	if f, err := tools.Lookup(m.Format); err == nil {
		if f.Calls() {
			list = append(list, "tools")
		}
		if f.Thinks() {
			list = append(list, "thinking")
		}
	}
	return list
}
