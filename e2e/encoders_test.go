package e2e_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/e2e/natstest"
)

// encoderText is a text of testdata/encoders, with what transformers makes of it.
type encoderText struct {
	Text   string
	Pair   *string
	IDs    []int32
	Vector []float64
}

func encoderTexts(t *testing.T, name string) (dir string, texts []encoderText) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("../testdata/encoders", name))
	require.NoError(t, err)
	raw, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &texts))
	return dir, texts
}

func inJSON(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// checkEmbeddings compares the vectors of the single texts with transformers'.
func checkEmbeddings(t *testing.T, s *server, texts []encoderText) {
	t.Helper()
	var input []string
	var want [][]float64
	for _, x := range texts {
		if x.Pair == nil {
			input, want = append(input, x.Text), append(want, x.Vector)
		}
	}
	code, _, body := s.post(t, "/v1/embeddings", fmt.Sprintf(`{"input":%s}`, inJSON(t, input)))
	require.Equal(t, http.StatusOK, code, body)
	var a struct {
		Data []struct{ Embedding []float64 }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &a))
	require.Len(t, a.Data, len(want))
	for i, d := range a.Data {
		var xy, xx, yy float64
		for k, x := range d.Embedding {
			xy, xx, yy = xy+x*want[i][k], xx+x*x, yy+want[i][k]*want[i][k]
		}
		require.InDelta(t, 1, xy/math.Sqrt(xx*yy), 1e-3, "text %d", i)
		require.InDelta(t, 1, xx, 1e-5, "its length is 1")
	}
}

// checkReranker compares the scores of the pairs with the sigmoids of transformers' logits.
func checkReranker(t *testing.T, s *server, texts []encoderText) {
	t.Helper()
	for _, x := range texts {
		if x.Pair == nil || x.Text == "" {
			continue
		}
		pair := fmt.Sprintf(`{"text_1":%s,"text_2":%s}`, inJSON(t, x.Text), inJSON(t, *x.Pair))
		code, _, body := s.post(t, "/v1/score", pair)
		require.Equal(t, http.StatusOK, code, body)
		var scored struct {
			Data  []struct{ Score float64 }
			Usage struct {
				PromptTokens int `json:"prompt_tokens"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &scored))
		require.InDelta(t, sigmoid(x.Vector[0]), scored.Data[0].Score, 5e-3)
		require.Equal(t, len(x.IDs), scored.Usage.PromptTokens)

		code, _, body = s.post(t, "/v1/rerank", fmt.Sprintf(`{"query":%s,"documents":["日本",%s]}`, inJSON(t, x.Text), inJSON(t, *x.Pair)))
		require.Equal(t, http.StatusOK, code, body)
		var ranked struct {
			Results []struct {
				Index int
				Score float64 `json:"relevance_score"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &ranked))
		require.Len(t, ranked.Results, 2)
		for _, r := range ranked.Results {
			if r.Index == 1 {
				require.InDelta(t, scored.Data[0].Score, r.Score, 0, "the same bits in any batch")
			}
		}
	}
}

// TestEncodersServeVectors: over HTTP, as transformers has them; what does not fit is a 400 with its reason.
func TestEncodersServeVectors(t *testing.T) {
	dir, texts := encoderTexts(t, "bert")
	s := startServer(t, "--model", dir, "--served-model-name", "enc", "--max-batch-tokens", "150", "--max-batch-size", "8")
	checkEmbeddings(t, s, texts)

	for _, c := range []struct {
		path, body string
		want       []string
	}{
		{"/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}]}`, []string{"enc", "is an encoder", "/v1/embeddings"}},
		{"/v1/completions", `{"prompt":"a"}`, []string{"is an encoder"}},
		{"/v1/messages", `{"messages":[{"role":"user","content":"a"}],"max_tokens":4}`, []string{"is an encoder"}},
		{"/v1/classify", `{"input":"a"}`, []string{"no head for classes"}},
		{"/v1/embeddings", `{"input":"a","prompt_name":"other"}`, []string{"prompt_name", "other", "query"}},
		{"/v1/embeddings", fmt.Sprintf(`{"input":%q}`, strings.Repeat("fox ", 170)),
			[]string{"172 tokens", "at most 150", "one step", "200 tokens"}},
	} {
		code, _, body := s.post(t, c.path, c.body)
		require.Equal(t, http.StatusBadRequest, code, "%s: %s", c.path, body)
		for _, want := range c.want {
			require.Contains(t, body, want, c.path)
		}
	}

	embed := func(body string) (v []float64) {
		code, _, answer := s.post(t, "/v1/embeddings", body)
		require.Equal(t, http.StatusOK, code, answer)
		var a struct {
			Data []struct{ Embedding []float64 }
		}
		require.NoError(t, json.Unmarshal([]byte(answer), &a))
		return a.Data[0].Embedding
	}
	require.Equal(t, embed(`{"input":"the query: fox"}`), embed(`{"input":"fox","prompt_name":"query"}`), "the prompt of the files")
	require.NotEqual(t, embed(`{"input":"fox"}`), embed(`{"input":"fox","prompt_name":"query"}`))
	code, _, body := s.post(t, "/api/embed", fmt.Sprintf(`{"model":"enc","input":%q}`, strings.Repeat("fox ", 170)))
	require.Equal(t, http.StatusOK, code, "Ollama's cuts: %s", body)

	nc := s.connect(t)
	reply, err := nc.Request("millrace.v1.embeddings", []byte(`{"input":"fox"}`), patience)
	require.NoError(t, err)
	var a struct {
		Data []struct{ Embedding []float64 }
	}
	require.NoError(t, json.Unmarshal(reply.Data, &a), "%s", reply.Data)
	require.Equal(t, embed(`{"input":"fox"}`), a.Data[0].Embedding, "over NATS")
}

// TestEncodersServeClassesAndScores, in one process.
func TestEncodersServeClassesAndScores(t *testing.T) {
	dir, texts := encoderTexts(t, "bert-classes")
	s := startServer(t, "--model", dir, "--backend", "ref")
	labels := []string{"sad", "calm", "glad"}
	for _, x := range texts {
		if x.Pair != nil {
			continue
		}
		code, _, body := s.post(t, "/v1/classify", fmt.Sprintf(`{"input":[%s]}`, inJSON(t, x.Text)))
		require.Equal(t, http.StatusOK, code, body)
		var a struct {
			Object string
			Data   []struct {
				Label   string
				Probs   []float64
				Classes int `json:"num_classes"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(body), &a))
		sum, best := 0.0, 0
		for i, logit := range x.Vector {
			sum += math.Exp(logit)
			if logit > x.Vector[best] {
				best = i
			}
		}
		require.Equal(t, 3, a.Data[0].Classes)
		require.Equal(t, labels[best], a.Data[0].Label)
		for i, p := range a.Data[0].Probs {
			require.InDelta(t, math.Exp(x.Vector[i])/sum, p, 1e-3)
		}
	}
	for _, path := range []string{"/v1/embeddings", "/v1/score"} {
		code, _, body := s.post(t, path, `{"input":"a","text_1":"a","text_2":"b"}`)
		require.Equal(t, http.StatusBadRequest, code, body)
		require.Contains(t, body, "classes", path)
	}

	for _, name := range []string{"xlm-roberta-reranker", "qwen2-reranker"} { // the second one over a decoder
		dir, texts = encoderTexts(t, name)
		checkReranker(t, startServer(t, "--model", dir, "--backend", "ref"), texts)
	}
}

// TestEncodersServeAcrossProcesses: pairs and types reach a tokenizer and a worker of other processes.
func TestEncodersServeAcrossProcesses(t *testing.T) {
	hub := natstest.Start(t, nil)
	dir, texts := encoderTexts(t, "bert")
	model := []string{"--model", dir, "--served-model-name", "enc"}
	startRole(t, hub.ClientURL(), "tokenize,detok", model...)
	startRole(t, hub.ClientURL(), "compute", model...)
	gateway := startRole(t, hub.ClientURL(), "gateway")
	require.Eventually(t, func() bool {
		code, _, _ := gateway.post(t, "/v1/embeddings", `{"input":"fox"}`)
		return code == http.StatusOK
	}, patience, 50*time.Millisecond)
	checkEmbeddings(t, gateway, texts)

	other := natstest.Start(t, nil)
	dir, texts = encoderTexts(t, "xlm-roberta-reranker")
	model = []string{"--model", dir, "--served-model-name", "enc"}
	startRole(t, other.ClientURL(), "tokenize,detok", model...)
	startRole(t, other.ClientURL(), "compute", append(model, "--backend", "ref")...)
	checkReranker(t, startRole(t, other.ClientURL(), "gateway"), texts)
}
