// Package codec lists the generation calls of all APIs: their paths, subjects and wire formats. The interfaces over HTTP and NATS
// serve this list. It must not know HTTP, NATS or an engine.
package codec

import (
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/anthropic"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/lmstudio"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai"
	"github.com/millrace/millrace/api/responses"
)

// Endpoint is where one kind of call is served.
type Endpoint struct {
	Kind    call.Kind
	Path    string // over HTTP, by POST
	Subject string // over NATS, after the prefix of all subjects; "": not served over NATS
	call.Codec
}

// Endpoints returns the endpoints of all kinds.
func Endpoints() []Endpoint {
	base := call.Codec{Encode: openai.EncodeAnswer, Stream: openai.NewEncoder, Error: openai.EncodeError}
	chat, completion := base, base
	chat.Decode, completion.Decode = openai.DecodeChat, openai.DecodeCompletion
	embeddings := call.Codec{Decode: openai.DecodeEmbeddings, Encode: openai.EncodeEmbeddings, Error: openai.EncodeError}
	return []Endpoint{
		{call.Chat, "/v1/chat/completions", "chat.completions", chat},
		{call.Completion, "/v1/completions", "completions", completion},
		{call.Messages, "/v1/messages", "messages", call.Codec{
			Decode: anthropic.Decode, Encode: anthropic.Encode, Stream: anthropic.NewStream, Error: anthropic.EncodeError,
			Frames: call.NamedEvents,
		}},
		{call.Responses, "/v1/responses", "responses", call.Codec{
			Decode: responses.Decode, Encode: responses.Encode, Stream: responses.NewStream, Error: responses.EncodeError,
			StreamError: responses.EncodeStreamError, Frames: call.NamedEvents,
		}},
		{call.OllamaChat, "/api/chat", "ollama.chat", ollamaCodec(ollama.DecodeChat)},
		{call.OllamaGenerate, "/api/generate", "ollama.generate", ollamaCodec(ollama.DecodeGenerate)},
		{call.Embeddings, "/v1/embeddings", "embeddings", embeddings},
		{call.Rerank, "/v1/rerank", "rerank", call.Codec{Decode: openai.DecodeRerank, Encode: openai.EncodeRerank,
			Error: openai.EncodeError}},
		{call.Score, "/v1/score", "score", call.Codec{Decode: openai.DecodeScore, Encode: openai.EncodeScore, Error: openai.EncodeError}},
		{call.Classify, "/v1/classify", "classify", call.Codec{Decode: openai.DecodeClassify, Encode: openai.EncodeClassify,
			Error: openai.EncodeError}},
		{call.Decisions, "/v1/decisions", "decisions", call.Codec{Decode: openai.DecodeDecisions, Encode: openai.EncodeDecisions,
			Error: openai.EncodeError}},
		{call.OllamaEmbedding, "/api/embeddings", "ollama.embeddings",
			call.Codec{Decode: ollama.DecodeEmbedding, Encode: ollama.EncodeEmbedding, Error: ollama.EncodeError}},
		{call.Chat, "/api/v0/chat/completions", "", ofLMStudio(chat)},
		{call.Completion, "/api/v0/completions", "", ofLMStudio(completion)},
		{call.Embeddings, "/api/v0/embeddings", "", embeddings},
		{call.OllamaEmbed, "/api/embed", "ollama.embed", call.Codec{Decode: ollama.DecodeEmbed, Encode: ollama.EncodeEmbed,
			Error: ollama.EncodeError}},
	}
}

func ollamaCodec(decode func([]byte, []api.Model, time.Time) (*call.Call, error)) call.Codec {
	return call.Codec{Decode: decode, Encode: ollama.Encode, Stream: ollama.NewStream, Error: ollama.EncodeError, Frames: call.Lines}
}

// ofLMStudio returns the codec of LM Studio's form of a call of OpenAI's API.
func ofLMStudio(c call.Codec) call.Codec {
	c.Decode = lmstudio.Decode(c.Decode)
	return c
}

// Unary is a call that has one answer and no events.
type Unary struct {
	Method, Path string
	Subject      string // as of Endpoint
	Run          call.Unary
	Error        func(e *api.Error) []byte
}

// Unaries returns the calls without events.
func Unaries() []Unary {
	return []Unary{
		{"POST", "/tokenize", "tokenize", call.NewUnary(openai.DecodeTokenize, api.Engine.Tokenize, openai.EncodeTokenize),
			openai.EncodeError},
		{"POST", "/detokenize", "detokenize", call.NewUnary(openai.DecodeDetokenize, call.Detokenize, openai.EncodeDetokenize),
			openai.EncodeError},
		{"POST", "/v1/chat/completions/render", "chat.completions.render",
			call.NewUnary(openai.DecodeRender, call.Render, openai.EncodeRender), openai.EncodeError},
		{"POST", "/v1/messages/count_tokens", "messages.count_tokens",
			call.NewUnary(anthropic.DecodeCount, api.Engine.Tokenize, anthropic.EncodeCount), anthropic.EncodeError},
		{"GET", "/api/tags", "", call.OfModels(ollama.Tags), ollama.EncodeError},
		{"GET", "/api/ps", "", call.OfModels(ollama.Running), ollama.EncodeError},
		{"GET", "/api/version", "", call.OfModels(ollama.Version), ollama.EncodeError},
		{"POST", "/api/show", "", call.OfModels(ollama.Show), ollama.EncodeError},
	}
}

// ErrorOf returns what encodes the errors at a path, also at one that is not served: each API has a form of its own.
func ErrorOf(path string) func(*api.Error) []byte {
	switch {
	case strings.HasPrefix(path, "/api/v0/"), strings.HasPrefix(path, "/api/v1/"): // LM Studio's
	case path == "/api" || strings.HasPrefix(path, "/api/"):
		return ollama.EncodeError
	case path == "/v1/messages" || strings.HasPrefix(path, "/v1/messages/"):
		return anthropic.EncodeError
	}
	return openai.EncodeError
}

// Of returns the codec of a kind.
func Of(k call.Kind) call.Codec {
	for _, e := range Endpoints() {
		if e.Kind == k {
			return e.Codec
		}
	}
	return call.Codec{}
}
