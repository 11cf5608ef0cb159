package httpapi_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	httpapi "github.com/millrace/millrace/api/http"
	"github.com/millrace/millrace/api/ollama"
	"github.com/millrace/millrace/api/openai"
)

// embed is an engine whose vector of a text is its length and its first byte, as a model with a pooling of its own.
func embed() *apitest.Engine {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		s.Send(api.Event{Extra: &api.Extra{Vector: []float32{float32(len(r.Prompt)), float32(r.Prompt[0])}}, Finish: api.FinishStop,
			Done: true, Usage: &api.Usage{PromptTokens: len(r.Prompt)}})
	})
	e.Served[0].Embedding = api.Embedding{Width: 2, Pooling: api.PoolMean, Named: true}
	return e
}

func TestEmbeddingsOfManyTextsComeInTheirOrder(t *testing.T) {
	srv := serve(t, embed(), httpapi.Options{})
	var texts []string
	for i := range 300 { // more than run at once
		texts = append(texts, strings.Repeat("x", i+1))
	}
	body, err := json.Marshal(map[string]any{"input": texts})
	require.NoError(t, err)
	resp := post(t, srv, "/v1/embeddings", string(body))
	require.Equal(t, 200, resp.StatusCode)
	var a openai.EmbeddingList
	strict(t, read(t, resp), &a)
	require.Len(t, a.Data, len(texts))
	for i, d := range a.Data {
		require.Equal(t, i, d.Index)
		require.Equal(t, []any{float64(i + 1), float64('x')}, d.Embedding)
	}
	require.Equal(t, 300*301/2, a.Usage.TotalTokens)
}

func TestFewTextsOfACallRunAtOnce(t *testing.T) {
	var mu sync.Mutex
	running, most := 0, 0
	var once sync.Once
	release := make(chan struct{})
	e := embed()
	e.Script = func(_ *api.Request, s *apitest.Stream) {
		mu.Lock()
		running++
		most = max(most, running)
		if running == 32 {
			once.Do(func() { close(release) })
		}
		mu.Unlock()
		<-release
		mu.Lock()
		running--
		mu.Unlock()
		s.Send(api.Event{Extra: &api.Extra{Vector: []float32{1, 1}}, Finish: api.FinishStop, Done: true, Usage: &api.Usage{}})
	}
	srv := serve(t, e, httpapi.Options{})
	resp := post(t, srv, "/v1/embeddings", `{"input":["a"`+strings.Repeat(`,"b"`, 99)+`]}`)
	require.Equal(t, 200, resp.StatusCode, read(t, resp))
	require.Equal(t, 32, most)
	require.Len(t, e.Requests(), 100)
}

func TestARefusalInTheMiddleOfACallIsItsAnswer(t *testing.T) {
	e := embed()
	e.Refuse = func(r *api.Request) error {
		if r.Prompt == "last" {
			return &api.Error{Code: api.CodeOverloaded, Message: "full"}
		}
		return nil
	}
	srv := serve(t, e, httpapi.Options{})
	resp := post(t, srv, "/v1/embeddings", `{"input":["a"`+strings.Repeat(`,"b"`, 40)+`,"last"]}`)
	require.Equal(t, 429, resp.StatusCode)
	require.Contains(t, read(t, resp), "full")
}

func TestRerankScoreAndOllamaHaveTheirOwnForms(t *testing.T) {
	srv := serve(t, embed(), httpapi.Options{})
	var ranked openai.RerankAnswer
	strict(t, read(t, post(t, srv, "/v1/rerank", `{"query":"aa","documents":["z","aa"]}`)), &ranked)
	require.Equal(t, 1, ranked.Results[0].Index)
	require.InDelta(t, 1, ranked.Results[0].Score, 1e-9)

	var scored openai.ScoreList
	strict(t, read(t, post(t, srv, "/v1/score", `{"text_1":"aa","text_2":"aa"}`)), &scored)
	require.InDelta(t, 1, scored.Data[0].Score, 1e-9)

	var embedded ollama.Embedded
	strict(t, read(t, post(t, srv, "/api/embed", `{"model":"tiny-chat:latest","input":["a","bb"]}`)), &embedded)
	require.Len(t, embedded.Embeddings, 2)
	require.InDelta(t, 1, embedded.Embeddings[0][0]*embedded.Embeddings[0][0]+embedded.Embeddings[0][1]*embedded.Embeddings[0][1], 1e-6)
	require.Equal(t, 3, embedded.PromptEvalCount)

	resp := post(t, srv, "/api/embed", `{"input":1}`)
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, read(t, resp), `{"error":"input: expected`)
	for _, path := range []string{"/v1/rerank", "/v1/score", "/v1/embeddings"} {
		resp := post(t, srv, path, `{"x":1}`)
		require.Equal(t, 400, resp.StatusCode, path)
		require.Contains(t, read(t, resp), `"error":{`, path)
	}
}

func TestOllamaCutsLongTextsUnlessToldNotTo(t *testing.T) {
	e := embed()
	srv := serve(t, e, httpapi.Options{})
	for i, body := range []string{`{"input":"a"}`, `{"input":"a","truncate":true}`, `{"input":"a","truncate":false}`} {
		require.Equal(t, 200, post(t, srv, "/api/embed", body).StatusCode)
		require.Equal(t, i < 2, e.Requests()[i].Truncate, fmt.Sprint(body))
	}
}

// classes is an engine whose logits of a text are its length and that of the second text.
func classes(labels ...string) *apitest.Engine {
	e := apitest.New(func(r *api.Request, s *apitest.Stream) {
		vector := []float32{float32(len(r.Prompt)), float32(len(r.Second)), 0}[:len(labels)]
		if len(labels) == 1 {
			vector[0] -= float32(len(r.Second))
		}
		s.Send(api.Event{Extra: &api.Extra{Vector: vector}, Finish: api.FinishStop, Done: true, Usage: &api.Usage{PromptTokens: 1}})
	})
	e.Served[0].Embedding = api.Embedding{Width: 2, Encoder: true,
		Classes: api.Classes{Labels: labels, Classify: "softmax", Score: "sigmoid"}}
	return e
}

func TestClassesHaveLabelsAndProbabilities(t *testing.T) {
	e := classes("a", "b", "c")
	srv := serve(t, e, httpapi.Options{})
	var a openai.ClassList
	strict(t, read(t, post(t, srv, "/v1/classify", `{"input":["xx","x"]}`)), &a)
	require.Len(t, a.Data, 2)
	require.Equal(t, "list", a.Object)
	for i, d := range a.Data {
		require.Equal(t, i, d.Index)
		require.Equal(t, "a", d.Label)
		require.Equal(t, 3, d.Classes)
		require.InDelta(t, 1, d.Probs[0]+d.Probs[1]+d.Probs[2], 1e-12)
	}
	require.InDelta(t, 1/(1+2*math.Exp(-2)), a.Data[0].Probs[0], 1e-9)
	require.Equal(t, 2, a.Usage.TotalTokens)
	require.Equal(t, api.PoolClasses, e.Requests()[0].Pool.Pooling)

	e.Served[0].Embedding.Classify = "sigmoid"
	strict(t, read(t, post(t, srv, "/v1/classify", `{"input":"x"}`)), &a)
	require.InDelta(t, 1/(1+math.Exp(-1)), a.Data[0].Probs[0], 1e-9)
	require.InDelta(t, 0.5, a.Data[0].Probs[1], 1e-9)

	for path, body := range map[string]string{"/v1/embeddings": `{"input":"a"}`, "/v1/score": `{"text_1":"a","text_2":"b"}`} {
		resp := post(t, srv, path, body)
		require.Equal(t, 400, resp.StatusCode, path)
		require.Contains(t, read(t, resp), "classes", path)
	}
	resp := post(t, serve(t, embed(), httpapi.Options{}), "/v1/classify", `{"input":"a"}`)
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, read(t, resp), "no head for classes")
}

func TestACrossEncoderComputesEachPair(t *testing.T) {
	e := classes("relevant")
	srv := serve(t, e, httpapi.Options{})
	var ranked openai.RerankAnswer
	strict(t, read(t, post(t, srv, "/v1/rerank", `{"query":"aaa","documents":["xxxx","x"]}`)), &ranked)
	require.Equal(t, 1, ranked.Results[0].Index)
	require.InDelta(t, 1/(1+math.Exp(-2)), ranked.Results[0].Score, 1e-9)
	require.InDelta(t, 1/(1+math.Exp(1)), ranked.Results[1].Score, 1e-9)

	e.Served[0].Embedding.Score = "identity"
	var scored openai.ScoreList
	strict(t, read(t, post(t, srv, "/v1/score", `{"text_1":"aaa","text_2":"x"}`)), &scored)
	require.InDelta(t, 2, scored.Data[0].Score, 1e-9)
}

func TestPromptsComeBeforeTexts(t *testing.T) {
	e := embed()
	e.Served[0].Embedding.Prompts = map[string]string{"query": "q: ", "passage": "p: "}
	srv := serve(t, e, httpapi.Options{})
	require.Equal(t, 200, post(t, srv, "/v1/embeddings", `{"input":["a","b"],"prompt_name":"query"}`).StatusCode)
	require.Equal(t, 200, post(t, srv, "/v1/embeddings", `{"input":"c"}`).StatusCode)
	require.Equal(t, 200, post(t, srv, "/v1/rerank", `{"query":"d","documents":["e"]}`).StatusCode)
	e.Served[0].Embedding.Default = "passage"
	require.Equal(t, 200, post(t, srv, "/v1/embeddings", `{"input":"f"}`).StatusCode)
	prompts := map[string]bool{}
	for _, r := range e.Requests() {
		prompts[r.Prompt] = true
	}
	require.Equal(t, map[string]bool{"q: a": true, "q: b": true, "c": true, "q: d": true, "p: e": true, "p: f": true}, prompts)
	resp := post(t, srv, "/v1/embeddings", `{"input":"a","prompt_name":"other"}`)
	require.Equal(t, 400, resp.StatusCode)
	require.Contains(t, read(t, resp), "passage, query")
}
