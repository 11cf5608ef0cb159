package httpapi_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/lmstudio"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai"
)

// TestClientsOfLMStudioFindTheModels: editors choose a model by its state, its context and whether it calls tools.
func TestClientsOfLMStudioFindTheModels(t *testing.T) {
	e := apitest.New(nil)
	e.Served = []api.Model{
		{ID: "acme/chat-8b", WeightFacts: api.WeightFacts{ContextLength: 4096,
			Description: api.Description{Architecture: "llama", Format: "gguf", Weights: "int8", Parameters: 8_000_000_000,
				Bytes: 9 << 30}}, TextFacts: api.TextFacts{Format: "hermes"}},
		{ID: "vectors", WeightFacts: api.WeightFacts{ContextLength: 512,
			Embedding:   api.Embedding{Width: 2, Pooling: api.PoolMean, Named: true},
			Description: api.Description{Format: "safetensors", Weights: "bf16"}}},
		{ID: "old"},
	}
	srv := serve(t, e, httpapi.Options{})
	code, _, body := get(t, srv.URL+"/api/v0/models")
	require.Equal(t, 200, code)
	var v0 lmstudio.ModelsV0
	strict(t, body, &v0)
	chat := lmstudio.ModelV0{
		ID: "acme/chat-8b", Object: "model", Type: "llm", Publisher: "acme", Arch: "llama", Compatibility: "gguf", Quantization: "INT8",
		State: "loaded", MaxContext: 4096, LoadedContext: 4096, Capabilities: []string{"tool_use"},
	}
	require.Equal(t, lmstudio.ModelsV0{Object: "list", Data: []lmstudio.ModelV0{
		chat,
		{ID: "vectors", Object: "model", Type: "embeddings", Publisher: "millrace", Compatibility: "safetensors", Quantization: "BF16",
			State: "loaded", MaxContext: 512, LoadedContext: 512, Capabilities: []string{}},
		{ID: "old", Object: "model", Type: "llm", Publisher: "millrace", State: "loaded", Capabilities: []string{}},
	}}, v0)

	code, _, body = get(t, srv.URL+"/api/v0/models/acme/chat-8b")
	require.Equal(t, 200, code)
	var one lmstudio.ModelV0
	strict(t, body, &one)
	require.Equal(t, chat, one)
	code, _, body = get(t, srv.URL+"/api/v0/models/nobody/else")
	require.Equal(t, 404, code)
	require.Contains(t, body, `"code":"model_not_found"`)

	code, _, body = get(t, srv.URL+"/api/v1/models")
	require.Equal(t, 200, code)
	require.JSONEq(t, `{"models":[
		{"type":"llm","publisher":"acme","key":"acme/chat-8b","display_name":"chat-8b","architecture":"llama","quantization":{"name":"INT8","bits_per_weight":8},
			"size_bytes":9663676416,"params_string":"8.0B","loaded_instances":[{"id":"acme/chat-8b","config":{"context_length":4096}}],"max_context_length":4096,
			"format":"gguf","capabilities":{"vision":false,"trained_for_tool_use":true},"description":null},
		{"type":"embedding","publisher":"millrace","key":"vectors","display_name":"vectors","quantization":{"name":"BF16","bits_per_weight":16},
			"size_bytes":0,"params_string":null,"loaded_instances":[{"id":"vectors","config":{"context_length":512}}],"max_context_length":512,"format":null,"description":null},
		{"type":"llm","publisher":"millrace","key":"old","display_name":"old","quantization":null,"size_bytes":0,"params_string":null,
			"loaded_instances":[{"id":"old","config":{"context_length":0}}],"max_context_length":0,"format":null,"capabilities":{"vision":false,"trained_for_tool_use":false},"description":null}
	]}`, body)
}

func TestLMStudiosCallsAreOpenAIs(t *testing.T) {
	e := apitest.New(apitest.Say("Hi"))
	srv := serve(t, e, httpapi.Options{})
	for _, limit := range []string{"", `,"max_tokens":-1`, `,"max_tokens": 7`} {
		resp := post(t, srv, "/api/v0/chat/completions", hello+limit+`}`)
		require.Equal(t, 200, resp.StatusCode, limit)
		var a openai.ChatCompletion
		strict(t, read(t, resp), &a)
		require.Equal(t, "Hi", *a.Choices[0].Message.Content)
		resp = post(t, srv, "/api/v0/completions", `{"prompt":"x"`+limit+`}`)
		require.Equal(t, 200, resp.StatusCode, limit)
		require.Contains(t, read(t, resp), `"object":"text_completion"`)
	}
	require.Contains(t, read(t, post(t, srv, "/api/v0/chat/completions", hello+`,"stream":true,"max_tokens":-1}`)), "data: [DONE]")
	resp := post(t, srv, "/api/v0/chat/completions", hello+`,"max_tokens":-2}`)
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, read(t, resp), `"param":"max_tokens"`)
	resp = post(t, srv, "/v1/chat/completions", hello+`,"max_tokens":-1}`)
	require.Equal(t, 400, resp.StatusCode, "OpenAI has no such value")

	srv = serve(t, embed(), httpapi.Options{})
	var list openai.EmbeddingList
	strict(t, read(t, post(t, srv, "/api/v0/embeddings", `{"input":"abc"}`)), &list)
	require.Equal(t, []any{3.0, float64('a')}, list.Data[0].Embedding)
}

func TestOllamasEarlierEmbeddings(t *testing.T) {
	srv := serve(t, embed(), httpapi.Options{})
	resp := post(t, srv, "/api/embeddings", `{"model":"tiny-chat:latest","prompt":"abc","options":{"num_ctx":5},"keep_alive":"5m"}`)
	require.Equal(t, 200, resp.StatusCode)
	var one ollama.OneEmbedded
	strict(t, read(t, resp), &one)
	require.Equal(t, []float32{3, 'a'}, one.Embedding, "as the model has it")
	for body, want := range map[string]string{
		`{"prompt":""}`: "prompt: found none, expected a text", `{}`: "prompt: found none, expected a text",
		`{"prompt":["a"]}`: "prompt: found a list, expected a string",
	} {
		resp := post(t, srv, "/api/embeddings", body)
		require.Equal(t, 400, resp.StatusCode, body)
		var e struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(read(t, resp)), &e))
		require.Equal(t, want, e.Error)
	}
}
