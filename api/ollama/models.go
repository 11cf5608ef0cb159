package ollama

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/openai/wire"
	"github.com/millrace/millrace/api/tools"
)

// APIVersion is the version of Ollama whose API this package has. Some clients want a recent one.
const APIVersion = "0.12.0"

// Library is the answer to /api/tags and /api/ps.
type Library struct {
	Models []ModelEntry `json:"models"`
}

// ModelEntry is a served model. Sizes and digests of files are not known here.
type ModelEntry struct {
	Name       string  `json:"name"`
	Model      string  `json:"model"`
	ModifiedAt string  `json:"modified_at,omitempty"`
	ExpiresAt  string  `json:"expires_at,omitempty"`
	Size       int64   `json:"size"`
	Digest     string  `json:"digest"`
	Details    Details `json:"details"`
	Context    int     `json:"context_length,omitempty"`
}

// Details describes the files of a model.
type Details struct {
	Format string `json:"format"`
	Family string `json:"family"`
}

// Card is the answer to /api/show.
type Card struct {
	Details      Details        `json:"details"`
	ModelInfo    map[string]any `json:"model_info"`
	Capabilities []string       `json:"capabilities"`
	ModifiedAt   string         `json:"modified_at"`
}

// VersionAnswer is the answer to /api/version.
type VersionAnswer struct {
	Version string `json:"version"`
}

func entries(ctx context.Context, engine api.Engine, running bool) ([]byte, error) {
	list := Library{Models: []ModelEntry{}}
	for _, m := range api.Visible(ctx, engine.Models()) {
		e := ModelEntry{Name: m.ID, Model: m.ID}
		at := m.Created.UTC().Format(time.RFC3339)
		if running { // a served model stays loaded
			e.ExpiresAt, e.Context = m.Created.AddDate(100, 0, 0).UTC().Format(time.RFC3339), m.ContextLength
		} else {
			e.ModifiedAt = at
		}
		list.Models = append(list.Models, e)
	}
	return json.Marshal(list)
}

// Tags answers an /api/tags call: the served models.
func Tags(ctx context.Context, engine api.Engine, _ []byte) ([]byte, error) {
	return entries(ctx, engine, false)
}

// Running answers an /api/ps call: the models that are loaded, which are the served ones.
func Running(ctx context.Context, engine api.Engine, _ []byte) ([]byte, error) {
	return entries(ctx, engine, true)
}

// Version answers an /api/version call.
func Version(context.Context, api.Engine, []byte) ([]byte, error) {
	return json.Marshal(VersionAnswer{APIVersion})
}

// Show answers an /api/show call.
func Show(ctx context.Context, engine api.Engine, body []byte) ([]byte, error) {
	var r struct {
		Model string `json:"model"`
		Name  string `json:"name"` // its earlier name
	}
	if err := wire.Unmarshal(body, &r); err != nil {
		return nil, err
	}
	if r.Model == "" {
		r.Model = r.Name
	}
	r.Model = served(r.Model)
	models := api.Visible(ctx, engine.Models())
	i := slices.IndexFunc(models, func(m api.Model) bool { return m.ID == r.Model })
	if i < 0 {
		return nil, &api.Error{Code: api.CodeNotFound, Param: "model", Reason: "model_not_found", Message: fmt.Sprintf("model %q not found", r.Model)}
	}
	m := &models[i]
	c := Card{ModelInfo: map[string]any{"general.architecture": "", "general.context_length": m.ContextLength}, Capabilities: []string{"completion"},
		ModifiedAt: m.Created.UTC().Format(time.RFC3339)}
	if m.Infill != nil {
		c.Capabilities = append(c.Capabilities, "insert")
	}
	if m.Embedding.Named && m.Embedding.Width > 0 && m.Embedding.Problem == "" {
		c.Capabilities = append(c.Capabilities, "embedding")
	}
	if f, err := tools.Lookup(m.Format); err == nil {
		if f.Calls() {
			c.Capabilities = append(c.Capabilities, "tools")
		}
		if f.Thinks() {
			c.Capabilities = append(c.Capabilities, "thinking")
		}
	}
	return json.Marshal(c)
}
