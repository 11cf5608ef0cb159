// Package document describes the paths of all APIs over HTTP, and the bodies of their requests and answers: as the OpenAPI document, and
// as JSON schemas for each path, which the endpoints over NATS have too. It must not know how a request is served.
package document

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/millrace/millrace/api/anthropic"
	"github.com/millrace/millrace/api/batches"
	"github.com/millrace/millrace/api/llamacpp"
	"github.com/millrace/millrace/api/lmstudio"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai"
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
		reflect.TypeFor[chatRequest](), reflect.TypeFor[openai.ChatCompletion](), true},
	{"renderChatCompletion", http.MethodPost, "/v1/chat/completions/render", "The prompt of a conversation, as text and token ids (vLLM)",
		reflect.TypeFor[chatRequest](), reflect.TypeFor[openai.RenderAnswer](), false},
	{"createCompletion", http.MethodPost, "/v1/completions", "Continue a text",
		reflect.TypeFor[completionRequest](), reflect.TypeFor[openai.TextCompletion](), true},
	{"createEmbedding", http.MethodPost, "/v1/embeddings", "Turn texts into vectors",
		reflect.TypeFor[embeddingRequest](), reflect.TypeFor[openai.EmbeddingList](), false},
	{"rerank", http.MethodPost, "/v1/rerank", "Order documents by their relevance to a query (Jina, Cohere, vLLM)",
		reflect.TypeFor[rerankRequest](), reflect.TypeFor[openai.RerankAnswer](), false},
	{"score", http.MethodPost, "/v1/score", "Score pairs of texts (vLLM)", reflect.TypeFor[scoreRequest](),
		reflect.TypeFor[openai.ScoreList](), false},
	{"classify", http.MethodPost, "/v1/classify", "The classes of texts (vLLM)", reflect.TypeFor[classifyRequest](),
		reflect.TypeFor[openai.ClassList](), false},
	{"createDecision", http.MethodPost, "/v1/decisions", "The probabilities of the answers to questions",
		reflect.TypeFor[decisionRequest](), reflect.TypeFor[openai.Decision](), false},
	{"createResponse", http.MethodPost, "/v1/responses", "Answer a conversation (Responses API)",
		reflect.TypeFor[responsesRequest](), reflect.TypeFor[responses.Response](), true},
	{"createMessage", http.MethodPost, "/v1/messages", "Answer a conversation (Anthropic)",
		reflect.TypeFor[messagesRequest](), reflect.TypeFor[anthropic.MessageAnswer](), true},
	{"countTokens", http.MethodPost, "/v1/messages/count_tokens", "Count the tokens of a conversation (Anthropic)",
		reflect.TypeFor[countRequest](), reflect.TypeFor[countAnswer](), false},
	{"ollamaChat", http.MethodPost, "/api/chat", "Answer a conversation (Ollama)", reflect.TypeFor[ollamaChat](),
		reflect.TypeFor[ollama.Part](), true},
	{"ollamaGenerate", http.MethodPost, "/api/generate", "Answer a prompt (Ollama)",
		reflect.TypeFor[ollamaGenerate](), reflect.TypeFor[ollama.Part](), true},
	{"ollamaEmbed", http.MethodPost, "/api/embed", "Turn texts into vectors (Ollama)",
		reflect.TypeFor[ollamaEmbed](), reflect.TypeFor[ollama.Embedded](), false},
	{"ollamaEmbeddings", http.MethodPost, "/api/embeddings", "Turn a text into a vector (Ollama's earlier form)",
		reflect.TypeFor[ollamaEmbedding](), reflect.TypeFor[ollama.OneEmbedded](), false},
	{"lmstudioChat", http.MethodPost, "/api/v0/chat/completions", "Answer a conversation (LM Studio)",
		reflect.TypeFor[chatRequest](), reflect.TypeFor[openai.ChatCompletion](), true},
	{"lmstudioCompletion", http.MethodPost, "/api/v0/completions", "Continue a text (LM Studio)",
		reflect.TypeFor[completionRequest](), reflect.TypeFor[openai.TextCompletion](), true},
	{"lmstudioEmbeddings", http.MethodPost, "/api/v0/embeddings", "Turn texts into vectors (LM Studio)",
		reflect.TypeFor[embeddingRequest](), reflect.TypeFor[openai.EmbeddingList](), false},
	{"lmstudioModels", http.MethodGet, "/api/v0/models", "The served models (LM Studio)", nil, reflect.TypeFor[lmstudio.ModelsV0](), false},
	{"lmstudioModel", http.MethodGet, "/api/v0/models/{id}", "One served model (LM Studio)", nil, reflect.TypeFor[lmstudio.ModelV0](),
		false},
	{"lmstudioLibrary", http.MethodGet, "/api/v1/models", "The served models (LM Studio 0.4)", nil, reflect.TypeFor[lmstudio.ModelsV1](),
		false},
	{"ollamaTags", http.MethodGet, "/api/tags", "The served models (Ollama)", nil, reflect.TypeFor[ollama.Library](), false},
	{"ollamaPs", http.MethodGet, "/api/ps", "The loaded models (Ollama)", nil, reflect.TypeFor[ollama.Library](), false},
	{"ollamaShow", http.MethodPost, "/api/show", "One served model (Ollama)", reflect.TypeFor[showRequest](),
		reflect.TypeFor[ollama.Card](), false},
	{"ollamaVersion", http.MethodGet, "/api/version", "The version of Ollama's interface", nil, reflect.TypeFor[ollama.VersionAnswer](),
		false},
	{"resumeStream", http.MethodGet, "/v1/streams/{id}", "Resume an answer after the event that the header Last-Event-ID names",
		nil, reflect.TypeFor[openai.ChatCompletion](), true},
	{"cancelStream", http.MethodDelete, "/v1/streams/{id}", "End a resumable call", nil, nil, false},
	{"listModels", http.MethodGet, "/v1/models", "The served models", nil, reflect.TypeFor[openai.ModelList](), false},
	{"getModel", http.MethodGet, "/v1/models/{id}", "One served model", nil, reflect.TypeFor[openai.ModelCard](), false},
	{"tokenize", http.MethodPost, "/tokenize", "Turn text or a conversation into token ids",
		reflect.TypeFor[tokenizeRequest](), reflect.TypeFor[openai.TokenizeAnswer](), false},
	{"detokenize", http.MethodPost, "/detokenize", "Turn token ids into text",
		reflect.TypeFor[detokenizeRequest](), reflect.TypeFor[openai.DetokenizeAnswer](), false},
	{"health", http.MethodGet, "/health", "The model is loaded and steps make progress; 503 otherwise (vLLM, llama.cpp)",
		nil, reflect.TypeFor[status](), false},
	{"version", http.MethodGet, "/version", "The version of the server (vLLM)", nil, reflect.TypeFor[openai.ProgramVersion](), false},
	{"props", http.MethodGet, "/props", "The defaults of a model (llama.cpp)", nil, reflect.TypeFor[llamacpp.Properties](), false},
	{"slots", http.MethodGet, "/slots", "One free slot for each model while the server takes requests (llama.cpp)", nil,
		reflect.TypeFor[[]llamacpp.Slot](), false},
	{"live", http.MethodGet, "/health/live", "The process runs", nil, reflect.TypeFor[status](), false},
	{"ready", http.MethodGet, "/health/ready", "The model is loaded and steps make progress; 503 otherwise",
		nil, reflect.TypeFor[status](), false},
	{"getResponse", http.MethodGet, "/v1/responses/{id}",
		"A stored response; with stream, the events of one in the background after starting_after",
		nil, reflect.TypeFor[responses.Response](), true},
	{"deleteResponse", http.MethodDelete, "/v1/responses/{id}", "Remove a stored response", nil,
		reflect.TypeFor[responses.DeletedResponse](), false},
	{"listInputItems", http.MethodGet, "/v1/responses/{id}/input_items", "The input of a stored response", nil,
		reflect.TypeFor[responses.ItemList](), false},
	{"cancelResponse", http.MethodPost, "/v1/responses/{id}/cancel", "End a response in the background", nil,
		reflect.TypeFor[responses.Response](), false},
	{"createFile", http.MethodPost, "/v1/files",
		"Store a file: multipart/form-data with purpose (batch), file, expires_after[anchor], expires_after[seconds]",
		nil, reflect.TypeFor[batches.File](), false},
	{"listFiles", http.MethodGet, "/v1/files", "The stored files, by after, limit, order and purpose", nil,
		reflect.TypeFor[batches.FileList](), false},
	{"getFile", http.MethodGet, "/v1/files/{id}", "One stored file", nil, reflect.TypeFor[batches.File](), false},
	{"deleteFile", http.MethodDelete, "/v1/files/{id}", "Remove a file", nil, reflect.TypeFor[batches.Deleted](), false},
	{"downloadFile", http.MethodGet, "/v1/files/{id}/content", "The content of a file", nil, nil, false},
	{"createBatch", http.MethodPost, "/v1/batches", "Run the lines of a file", reflect.TypeFor[batches.NewBatch](),
		reflect.TypeFor[batches.Batch](), false},
	{"listBatches", http.MethodGet, "/v1/batches", "The batches, by after and limit", nil, reflect.TypeFor[batches.BatchList](), false},
	{"getBatch", http.MethodGet, "/v1/batches/{id}", "One batch", nil, reflect.TypeFor[batches.Batch](), false},
	{"cancelBatch", http.MethodPost, "/v1/batches/{id}/cancel", "End a batch", nil, reflect.TypeFor[batches.Batch](), false},
	{"metrics", http.MethodGet, "/metrics", "Prometheus' text form", nil, nil, false},
}

// OpenAPI returns the OpenAPI 3.1 document as JSON. version is that of the program, and metrics says whether /metrics is served.
func OpenAPI(version string, metrics bool) ([]byte, error) {
	schemas := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	doc := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{Title: "Millrace", Version: version,
			Description: "OpenAI's interface, with vLLM's extensions. null is the same as leaving a field out; " +
				"fields that are not listed are ignored, or refused where they would change the answer."},
		Components: &huma.Components{Schemas: schemas},
	}
	for _, op := range operations {
		if op.id != "metrics" || metrics {
			doc.AddOperation(op.describe(schemas))
		}
	}
	for _, schema := range schemas.Map() {
		if schema.AdditionalProperties == true { // of a request
			allowNull(schema)
		}
	}
	return json.Marshal(doc)
}

// allowNull documents that null is the same as leaving an optional field out.
func allowNull(request *huma.Schema) {
	null := &huma.Schema{Type: "null"}
	isNullable := func(s *huma.Schema) bool { return s.Nullable }
	for name, field := range request.Properties {
		switch {
		case slices.Contains(request.Required, name):
		case field.Ref != "":
			request.Properties[name] = &huma.Schema{AnyOf: []*huma.Schema{{Ref: field.Ref}, null}, Description: field.Description}
		case len(field.OneOf) > 0 && !slices.ContainsFunc(field.OneOf, isNullable): // exactly one may match null
			field.OneOf = append(slices.Clip(field.OneOf), null)
		case field.Type != "":
			field.Nullable = true
			if len(field.Enum) > 0 {
				field.Enum = append(slices.Clip(field.Enum), nil)
			}
		}
	}
}

// streamEvent is one server-sent event of a stream.
type streamEvent struct {
	Event string `json:"event,omitempty" doc:"The type of the chunk, in the Responses and the Messages API."`
	ID    string `json:"id,omitempty" doc:"The number of the last event of the answer so far."`
	Data  string `json:"data" doc:"With stream: a chunk, as JSON. [DONE] is the last one, but not in the Responses and the Messages API. An error after the first chunk ends the stream without [DONE]."`
}

func (op operation) describe(schemas huma.Registry) *huma.Operation {
	content := map[string]*huma.MediaType{}
	if op.answer != nil {
		content["application/json"] = &huma.MediaType{Schema: schemas.Schema(op.answer, true, "")}
	} else {
		content["text/plain"] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
	}
	errorBody := reflect.TypeFor[openai.ErrorBody]()
	switch {
	case strings.HasPrefix(op.path, "/api/"):
		errorBody = reflect.TypeFor[ollamaError]()
	case strings.HasPrefix(op.path, "/v1/messages"):
		errorBody = reflect.TypeFor[anthropic.ErrorAnswer]()
	}
	switch { // OpenAPI 3.1 has no types of sequences: the schema is that of one line or of one event
	case op.streams && strings.HasPrefix(op.path, "/api/"):
		content["application/x-ndjson"] = &huma.MediaType{Schema: &huma.Schema{
			AnyOf:       []*huma.Schema{schemas.Schema(op.answer, true, ""), schemas.Schema(errorBody, true, "")},
			Description: "Unless stream is false: a line of JSON for each part. This is the schema of a line."}}
	case op.streams:
		content["text/event-stream"] = &huma.MediaType{Schema: schemas.Schema(reflect.TypeFor[streamEvent](), true, "")}
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
	if strings.Contains(op.path, "/{id}") {
		d.Parameters = []*huma.Param{{Name: "id", In: "path", Required: true, Schema: &huma.Schema{Type: huma.TypeString}}}
	}
	return d
}
