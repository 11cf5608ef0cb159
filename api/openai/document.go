package openai

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/millrace/millrace/api/anthropic"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai/wire"
	"github.com/millrace/millrace/api/responses"
)

// operation is one path of the document.
type operation struct {
	id, method, path, summary string
	request, answer           reflect.Type
	streams                   bool
}

var operations = []operation{
	{"createChatCompletion", http.MethodPost, "/v1/chat/completions", "Answer a conversation",
		reflect.TypeFor[chatRequest](), reflect.TypeFor[wire.ChatCompletion](), true},
	{"createCompletion", http.MethodPost, "/v1/completions", "Continue a text",
		reflect.TypeFor[completionRequest](), reflect.TypeFor[wire.TextCompletion](), true},
	{"createResponse", http.MethodPost, "/v1/responses", "Answer a conversation (Responses API); nothing is stored",
		reflect.TypeFor[responsesRequest](), reflect.TypeFor[responses.Response](), true},
	{"createMessage", http.MethodPost, "/v1/messages", "Answer a conversation (Anthropic)",
		reflect.TypeFor[messagesRequest](), reflect.TypeFor[anthropic.MessageAnswer](), true},
	{"countTokens", http.MethodPost, "/v1/messages/count_tokens", "Count the tokens of a conversation (Anthropic)",
		reflect.TypeFor[countRequest](), reflect.TypeFor[countAnswer](), false},
	{"ollamaChat", http.MethodPost, "/api/chat", "Answer a conversation (Ollama)", reflect.TypeFor[ollamaChat](), reflect.TypeFor[ollama.Part](), true},
	{"ollamaGenerate", http.MethodPost, "/api/generate", "Answer a prompt (Ollama)",
		reflect.TypeFor[ollamaGenerate](), reflect.TypeFor[ollama.Part](), true},
	{"ollamaTags", http.MethodGet, "/api/tags", "The served models (Ollama)", nil, reflect.TypeFor[ollama.Library](), false},
	{"ollamaPs", http.MethodGet, "/api/ps", "The loaded models (Ollama)", nil, reflect.TypeFor[ollama.Library](), false},
	{"ollamaShow", http.MethodPost, "/api/show", "One served model (Ollama)", reflect.TypeFor[showRequest](), reflect.TypeFor[ollama.Card](), false},
	{"ollamaVersion", http.MethodGet, "/api/version", "The version of Ollama's interface", nil, reflect.TypeFor[ollama.VersionAnswer](), false},
	{"resumeStream", http.MethodGet, "/v1/streams/{id}", "Resume an answer after the event that the header Last-Event-ID names",
		nil, reflect.TypeFor[wire.ChatCompletion](), true},
	{"cancelStream", http.MethodDelete, "/v1/streams/{id}", "End a resumable call", nil, nil, false},
	{"listModels", http.MethodGet, "/v1/models", "The served models", nil, reflect.TypeFor[wire.ModelList](), false},
	{"getModel", http.MethodGet, "/v1/models/{id}", "One served model", nil, reflect.TypeFor[wire.ModelCard](), false},
	{"tokenize", http.MethodPost, "/tokenize", "Turn text or a conversation into token ids",
		reflect.TypeFor[tokenizeRequest](), reflect.TypeFor[wire.TokenizeAnswer](), false},
	{"detokenize", http.MethodPost, "/detokenize", "Turn token ids into text",
		reflect.TypeFor[detokenizeRequest](), reflect.TypeFor[wire.DetokenizeAnswer](), false},
	{"live", http.MethodGet, "/health/live", "The process runs", nil, reflect.TypeFor[status](), false},
	{"ready", http.MethodGet, "/health/ready", "The model is loaded and steps make progress; 503 otherwise",
		nil, reflect.TypeFor[status](), false},
	{"metrics", http.MethodGet, "/metrics", "Prometheus' text form", nil, nil, false},
}

// document returns the OpenAPI 3.1 document as JSON.
func (s *server) document() ([]byte, error) {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "Millrace", Version: s.opts.Version,
			Description: "OpenAI's interface, with vLLM's extensions. null is the same as leaving a field out; " +
				"fields that are not listed are ignored, or refused where they would change the answer."},
		Components: &huma.Components{Schemas: schemas},
	}
	for _, op := range operations {
		if op.id != "metrics" || s.opts.Metrics != nil {
			doc.AddOperation(op.describe(schemas))
		}
	}
	return json.Marshal(doc)
}

func (op operation) describe(schemas huma.Registry) *huma.Operation {
	content := map[string]*huma.MediaType{}
	if op.answer != nil {
		content["application/json"] = &huma.MediaType{Schema: schemas.Schema(op.answer, true, "")}
	} else {
		content["text/plain"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	errorBody := reflect.TypeFor[wire.ErrorBody]()
	switch {
	case strings.HasPrefix(op.path, "/api/"):
		errorBody = reflect.TypeFor[ollamaError]()
	case strings.HasPrefix(op.path, "/v1/messages"):
		errorBody = reflect.TypeFor[anthropic.ErrorAnswer]()
	}
	switch {
	case op.streams && strings.HasPrefix(op.path, "/api/"):
		content["application/x-ndjson"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Description: "Unless stream is false: a line of JSON for each part."}}
	case op.streams:
		content["text/event-stream"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString,
			Description: "With stream: a chunk per message, id: the number of the last event in it, then [DONE]. " +
				"An error after the first chunk comes as a message with \"error\", without [DONE]."}}
	}
	d := &huma.Operation{OperationID: op.id, Method: op.method, Path: op.path, Summary: op.summary,
		Responses: map[string]*huma.Response{
			"200": {Description: "OK", Content: content},
			"default": {Description: "An error in the shape of the interface. 429 and 503 have Retry-After.",
				Content: map[string]*huma.MediaType{"application/json": {
					Schema: schemas.Schema(errorBody, true, "")}}},
		}}
	if op.request != nil {
		d.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			"application/json": {Schema: schemas.Schema(op.request, true, "")}}}
	}
	if strings.HasSuffix(op.path, "/{id}") {
		d.Parameters = []*huma.Param{{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}}
	}
	return d
}
