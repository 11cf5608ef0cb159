package openai

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// embedder is a model with vectors of three numbers, as its files say; judge one that only generates.
var (
	embedder = []api.Model{{ID: "e", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 3, Pooling: api.PoolMean, Normalize: true,
		Named: true}}, TextFacts: api.TextFacts{Judge: []int32{7, 8}}}}
	judge = []api.Model{{ID: "j", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 3, Pooling: api.PoolLast,
		Normalize: true}}, TextFacts: api.TextFacts{Judge: []int32{7, 8}}}}
)

func embeddings(t *testing.T, body string) *call.Call {
	t.Helper()
	c, err := DecodeEmbeddings([]byte(body), embedder, time.Unix(5, 0))
	require.NoError(t, err, body)
	return c
}

func TestEveryFormOfInputBecomesARequestForEachText(t *testing.T) {
	for body, want := range map[string][]api.Request{
		`{"input":"a"}`:                      {{Prompt: "a"}},
		`{"input":["a","b"],"model":"e"}`:    {{Prompt: "a"}, {Prompt: "b"}},
		`{"input":[1,2]}`:                    {{PromptTokens: []int32{1, 2}}},
		`{"input":[[1,2],[3]],"user":"u"}`:   {{PromptTokens: []int32{1, 2}}, {PromptTokens: []int32{3}}},
		`{"input":["a"],"cache_salt":"s"}`:   {{Prompt: "a", CacheSalt: "s"}},
		`{"input":"a","timeout":2}`:          {{Prompt: "a", Deadline: time.Unix(7, 0)}},
		`{"input":"a","priority":-1}`:        {{Prompt: "a", Priority: -1}},
		`{"input":"a","dimensions":null}`:    {{Prompt: "a"}},
		`{"input":"a","encoding_format":""}`: nil,
	} {
		c, err := DecodeEmbeddings([]byte(body), embedder, time.Unix(5, 0))
		if want == nil {
			require.Error(t, err, body)
			continue
		}
		require.NoError(t, err, body)
		require.Len(t, c.Requests, len(want), body)
		require.Equal(t, len(want), c.Choices())
		require.False(t, c.Stream)
		require.Equal(t, call.ResumeNo, c.Resume, "no log keeps vectors")
		for i, r := range c.Requests {
			id := c.ID
			if i > 0 {
				id += fmt.Sprint("-", i)
			}
			w := want[i]
			w.ID, w.Model, w.N, w.MaxTokens, w.IgnoreEOS, w.TopLogprobs, w.Arrival = id, "e", 1, 1, true, -1, time.Unix(5, 0)
			w.Pool = &api.Pool{Pooling: api.PoolMean}
			require.Equal(t, w, *r, body)
		}
	}
}

func TestBadEmbeddingsCallsNameTheField(t *testing.T) {
	many, err := json.Marshal(strings.Split(strings.Repeat("a,", 2048)+"a", ","))
	require.NoError(t, err)
	for body, want := range map[string]string{
		`{}`:                                       "input: expected a string",
		`{"input":""}`:                             "input: expected at least one character",
		`{"input":[]}`:                             "input: expected a string",
		`{"input":["a",""]}`:                       "input[1]: expected at least one character",
		`{"input":["a",[1]]}`:                      "input: expected a string",
		`{"input":[[]]}`:                           "input[0]: expected at least one",
		`{"input":[1,-2]}`:                         "input[1]: expected a token id",
		`{"input":` + string(many) + `}`:           "input: expected at most 2048 prompts, found 2049",
		`{"input":"a","model":"other"}`:            `model "other" is not served`,
		`{"input":"a","dimensions":4}`:             "dimensions: expected an integer from 1 to 3, found 4",
		`{"input":"a","dimensions":0}`:             "dimensions: expected an integer from 1 to 3, found 0",
		`{"input":"a","encoding_format":"x"}`:      `encoding_format: expected "float" or "base64", found "x"`,
		`{"input":"a","truncate_prompt_tokens":5}`: "truncate_prompt_tokens: not supported yet",
	} {
		_, err := DecodeEmbeddings([]byte(body), embedder, time.Unix(5, 0))
		require.ErrorContains(t, err, want, body)
	}
	problem := []api.Model{{ID: "p", WeightFacts: api.WeightFacts{Embedding: api.Embedding{Width: 3, Pooling: api.PoolLast,
		Problem: "the pooling cls_token of 1_Pooling"}}}}
	_, err = DecodeEmbeddings([]byte(`{"input":"a"}`), problem, time.Unix(5, 0))
	require.ErrorContains(t, err, "its files ask for the pooling cls_token of 1_Pooling")
}

func TestVectorsAreWrittenAsTheCallWantsThem(t *testing.T) {
	result := &call.Result{
		Choices: []call.Choice{{Vector: []float32{3, 4, 12}}, {Vector: []float32{0, 0, 0}}},
		Usage:   api.Usage{PromptTokens: 5, CachedTokens: 2},
	}
	answer := func(c *call.Call) string {
		body, err := EncodeEmbeddings(c, result, "")
		require.NoError(t, err)
		return string(body)
	}
	c := embeddings(t, `{"input":["a","b"]}`)
	require.JSONEq(t, `{"object":"list","model":"e","usage":{"prompt_tokens":5,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":2}},"data":[
		{"object":"embedding","index":0,"embedding":[0.23076923,0.30769232,0.9230769]},{"object":"embedding","index":1,"embedding":[0,0,0]}]}`, answer(c))
	c = embeddings(t, `{"input":["a","b"],"dimensions":2}`)
	require.Contains(t, answer(c), `[0.6,0.8]`, "of length 1 after the cut")
	c.Vectors.Normalize = false
	require.Contains(t, answer(c), `[3,4]`)

	c = embeddings(t, `{"input":["a","b"],"encoding_format":"base64"}`)
	var list struct {
		Data []struct{ Embedding string }
	}
	require.NoError(t, json.Unmarshal([]byte(answer(c)), &list))
	raw, err := base64.StdEncoding.DecodeString(list.Data[0].Embedding)
	require.NoError(t, err)
	require.Len(t, raw, 12)
	require.InDelta(t, 12.0/13, math.Float32frombits(uint32(raw[8])|uint32(raw[9])<<8|uint32(raw[10])<<16|uint32(raw[11])<<24), 1e-7)

	_, err = EncodeEmbeddings(c, &call.Result{Choices: make([]call.Choice, 2)}, "")
	require.ErrorContains(t, err, "no vector")
}

func TestAModelThatNamesAPoolingScoresByCosines(t *testing.T) {
	c, err := DecodeRerank([]byte(`{"query":"q","documents":["a",{"text":"b","id":9},"a","q"],"top_n":3}`), embedder, time.Unix(5, 0))
	require.NoError(t, err)
	require.Len(t, c.Requests, 3, "a text is computed once")
	require.Equal(t, [][2]int{{0, 1}, {0, 2}, {0, 1}, {0, 0}}, c.Vectors.Pairs)
	require.Equal(t, "q", c.Requests[0].Prompt)
	require.Equal(t, api.PoolMean, c.Requests[1].Pool.Pooling)
	result := &call.Result{Usage: api.Usage{PromptTokens: 4}, Choices: []call.Choice{
		{Vector: []float32{1, 0, 0}}, {Vector: []float32{0, 2, 0}}, {Vector: []float32{3, 4, 0}},
	}}
	body, err := EncodeRerank(c, result, "")
	require.NoError(t, err)
	require.JSONEq(t, fmt.Sprintf(`{"id":%q,"model":"e","usage":{"prompt_tokens":4,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":0}},"results":[
		{"index":3,"document":{"text":"q"},"relevance_score":1},{"index":1,"document":{"text":"b","id":9},"relevance_score":0.6},
		{"index":0,"document":{"text":"a"},"relevance_score":0}]}`, c.ID), string(body))
}

func TestAModelWithoutAPoolingJudgesByYesAndNo(t *testing.T) {
	c, err := DecodeRerank([]byte(`{"query":"q","documents":["a","b"],"return_documents":false,"instruction":"find"}`), judge,
		time.Unix(5, 0))
	require.NoError(t, err)
	require.Len(t, c.Requests, 2)
	for i, text := range []string{"a", "b"} {
		r := c.Requests[i]
		require.Equal(t, &api.Pool{Pooling: api.PoolLogits, Tokens: []int32{7, 8}}, r.Pool)
		require.Equal(t, "<Instruct>: find\n<Query>: q\n<Document>: "+text, r.Messages[1].Content)
		require.Equal(t, false, r.TemplateArgs["enable_thinking"])
	}
	body, err := EncodeRerank(c, &call.Result{Choices: []call.Choice{{Vector: []float32{2, 1}}, {Vector: []float32{-1, 1}}}}, "")
	require.NoError(t, err)
	var a RerankAnswer
	require.NoError(t, json.Unmarshal(body, &a))
	require.Equal(t, 1, a.Results[0].Index)
	require.InDelta(t, 1/(1+math.Exp(-2)), a.Results[0].Score, 1e-9, "softmax of the two logits")
	require.InDelta(t, 1/(1+math.Exp(1)), a.Results[1].Score, 1e-9)
	require.NotContains(t, string(body), "document\"")
}

func TestScoresAreOfPairs(t *testing.T) {
	decode := func(body string) (*call.Call, error) { return DecodeScore([]byte(body), embedder, time.Unix(5, 0)) }
	c, err := decode(`{"text_1":"a","text_2":["b","c"]}`)
	require.NoError(t, err)
	require.Equal(t, [][2]int{{0, 1}, {0, 2}}, c.Vectors.Pairs)
	c, err = decode(`{"queries":["a","b"],"documents":["c","d"]}`)
	require.NoError(t, err)
	require.Equal(t, [][2]int{{0, 1}, {2, 3}}, c.Vectors.Pairs)
	body, err := EncodeScore(c, &call.Result{Choices: []call.Choice{
		{Vector: []float32{1, 0}}, {Vector: []float32{0, 1}}, {Vector: []float32{2, 0}}, {Vector: []float32{-5, 0}},
	}}, "")
	require.NoError(t, err)
	var a ScoreList
	require.NoError(t, json.Unmarshal(body, &a))
	require.Equal(t, []ScoreEntry{{0, "score", 0}, {1, "score", -1}}, a.Data)

	for body, want := range map[string]string{
		`{"text_1":["a","b"],"text_2":["c"]}`:  "text_1: expected one text, or 1 as text_2 has, found 2",
		`{"text_2":["c"]}`:                     "text_1: expected a string",
		`{"text_1":"a","text_2":[]}`:           "text_2: expected at least one text",
		`{"text_1":"a","text_2":[1]}`:          "text_2[0]: expected a string",
		`{"text_1":"a","text_2":[{"x":1}]}`:    "text_2[0]: expected at least one character",
		`{"text_1":"a","text_2":[{"text":1}]}`: "text_2[0].text: expected a string",
	} {
		_, err := decode(body)
		require.ErrorContains(t, err, want, body)
	}
	_, err = DecodeRerank([]byte(`{"documents":["a"]}`), judge, time.Unix(5, 0))
	require.ErrorContains(t, err, "query: expected a string with at least one character")
}
