package openai

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// judgeSystem and judgeInstruction are the texts that Qwen3-Reranker was trained with (its model card). The chat template adds the rest
// of the prompt.
const (
	judgeSystem = `Judge whether the Document meets the requirements based on the Query and the Instruct provided. ` +
		`Note that the answer can only be "yes" or "no".`
	judgeInstruction = "Given a web search query, retrieve relevant passages that answer the query"
)

// DecodeRerank decodes the body of a rerank call in the form of Jina's, Cohere's and vLLM's. An error is an *api.Error that names the
// field.
func DecodeRerank(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	s := o.scorer("rerank-", call.Rerank, models, arrival)
	query := s.queryPrompt + o.nonempty("query")
	documents, repeat := o.texts("documents"), true
	o.boolean("return_documents", &repeat)
	o.int("top_n", 0, maxTexts, &s.call.Vectors.Most)
	for i := range documents {
		s.pair(query, s.documentPrompt+documents[i].text)
		if repeat {
			s.call.Vectors.Documents = append(s.call.Vectors.Documents, documents[i].shown)
		}
	}
	return s.call, o.result()
}

// DecodeScore decodes the body of a score call in vLLM's form: one text with each of several, or the texts of two lists of equal length
// in pairs. An error is an *api.Error that names the field.
func DecodeScore(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	s := o.scorer("score-", call.Score, models, arrival)
	first, second := o.texts(o.either("text_1", "queries")), o.texts(o.either("text_2", "documents"))
	if len(first) != 1 && len(first) != len(second) {
		o.fail("text_1", "expected one text, or %d as text_2 has, found %d", len(second), len(first))
		return s.call, o.result()
	}
	for i := range second {
		s.pair(s.prompt+first[min(i, len(first)-1)].text, s.prompt+second[i].text)
	}
	return s.call, o.result()
}

// either returns the name of the field that is there, the first one if both are or none is.
func (o *object) either(name, other string) string {
	_, first := o.get(name)
	if _, ok := o.get(other); ok && !first {
		return other
	}
	return name
}

// document is a text to score, and how an answer repeats it.
type document struct {
	text  string
	shown json.RawMessage
}

// nonempty reads a string with at least one character.
func (o *object) nonempty(name string) (text string) {
	if o.str(name, &text); text == "" {
		o.fail(name, "expected a string with at least one character")
	}
	return text
}

// texts reads a string or a list of strings or objects with a text.
func (o *object) texts(name string) (list []document) {
	const expected = `a string, or a list of strings or {"text": ...}`
	raw, ok := o.get(name)
	if !ok {
		o.fail(name, "expected %s", expected)
		return nil
	}
	items := []json.RawMessage{raw}
	if raw[0] == '[' {
		if items, ok = o.list(name, maxTexts); !ok {
			return nil
		}
	}
	if len(items) == 0 {
		o.fail(name, "expected at least one text")
	}
	for i, raw := range items {
		at := fmt.Sprintf("%s[%d]", name, i)
		d := document{shown: raw}
		switch raw[0] {
		case '"':
			decodeString(raw, &d.text) // true: it is one
			d.shown = append(append(json.RawMessage(`{"text":`), raw...), '}')
		case '{':
			if one := o.open(at, raw); one != nil {
				one.str("text", &d.text)
				o.adopt(one)
			}
		default:
			o.expected(at, expected, raw)
		}
		if d.text == "" {
			o.fail(at, "expected at least one character")
		}
		list = append(list, d)
	}
	return list
}

// scorer makes the requests of a call with scores. A model whose files name a pooling compares vectors of texts. Another one that knows
// the words judges each pair by the logits of "yes" and "no". A cross-encoder has a class for pairs that belong together.
type scorer struct {
	o           *object
	call        *call.Call
	one         api.Request
	judges      bool
	crosses     bool // the model is a cross-encoder
	instruction string
	places      map[string]int // of a text, among the requests

	// Before the texts whose vectors are compared: those of the model's files for queries, documents, and all texts.
	queryPrompt, documentPrompt, prompt string
}

func (o *object) scorer(prefix string, kind call.Kind, models []api.Model, arrival time.Time) *scorer {
	c, m, one := o.vectors(prefix, kind, models, arrival)
	s := &scorer{o: o, call: c, one: one, instruction: judgeInstruction, places: make(map[string]int)}
	o.str("instruction", &s.instruction)
	if labels := m.Embedding.Labels; len(labels) > 0 {
		if len(labels) != 1 {
			o.fail("model", "%q scores no pairs: it has %d classes, expected one", m.ID, len(labels))
		}
		s.crosses, c.Vectors.Scored = true, m.Embedding.Score
		s.one.Pool = &api.Pool{Pooling: api.PoolClasses}
		return s
	}
	if s.judges = !m.Embedding.Named && len(m.Judge) == 2; s.judges {
		s.one.Pool = &api.Pool{Pooling: api.PoolLogits, Tokens: m.Judge}
		c.Vectors.Judged = true
		s.one.TemplateArgs = map[string]any{"enable_thinking": false, "thinking": false}
		return s
	}
	o.embedding(c, m, &s.one)
	s.prompts(&m.Embedding)
	return s
}

// prompts takes the prompts of sentence-transformers, by the names that its encode_query and encode_document look for.
func (s *scorer) prompts(e *api.Embedding) {
	s.prompt = e.Prompts[e.Default]
	s.queryPrompt, s.documentPrompt = s.prompt, s.prompt
	if text, ok := e.Prompts["query"]; ok {
		s.queryPrompt = text
	}
	for _, name := range []string{"corpus", "passage", "document"} {
		if text, ok := e.Prompts[name]; ok {
			s.documentPrompt = text
		}
	}
}

func (s *scorer) pair(query, text string) {
	if s.crosses {
		r := s.one
		r.Prompt, r.Second = query, text
		at := s.o.addRequest(s.call, r)
		s.call.Vectors.Pairs = append(s.call.Vectors.Pairs, [2]int{at, at})
		return
	}
	if !s.judges {
		s.call.Vectors.Pairs = append(s.call.Vectors.Pairs, [2]int{s.place(query), s.place(text)})
		return
	}
	r := s.one
	r.Messages = []api.Message{
		{Role: "system", Content: judgeSystem},
		{Role: "user", Content: fmt.Sprintf("<Instruct>: %s\n<Query>: %s\n<Document>: %s", s.instruction, query, text)},
	}
	at := s.o.addRequest(s.call, r)
	s.call.Vectors.Pairs = append(s.call.Vectors.Pairs, [2]int{at, at})
}

// place returns the request of a text, which each text has once.
func (s *scorer) place(text string) int {
	at, ok := s.places[text]
	if !ok {
		r := s.one
		r.Prompt = text
		at = s.o.addRequest(s.call, r)
		s.places[text] = at
	}
	return at
}

// RerankAnswer is the answer to a rerank call.
type RerankAnswer struct {
	ID      string         `json:"id"`
	Model   string         `json:"model"`
	Usage   InputUsage     `json:"usage"`
	Results []RerankResult `json:"results" doc:"The most relevant document first"`
}

// RerankResult is the relevance of one document.
type RerankResult struct {
	Index    int             `json:"index" doc:"Place of the document in the request"`
	Document json.RawMessage `json:"document,omitempty" doc:"Unless return_documents is false"`
	Score    float64         `json:"relevance_score" doc:"0 to 1 by the logits of yes and no, or by a cross-encoder; -1 to 1 by the cosine of embeddings"`
}

// EncodeRerank returns the body of the answer to a rerank call.
func EncodeRerank(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	scores, err := c.Vectors.Scores(r.Choices)
	if err != nil {
		return nil, err
	}
	a := RerankAnswer{ID: c.ID, Model: c.Model, Usage: inputUsage(r.Usage), Results: make([]RerankResult, len(scores))}
	for i, score := range scores {
		a.Results[i] = RerankResult{Index: i, Score: score}
		if c.Vectors.Documents != nil {
			a.Results[i].Document = c.Vectors.Documents[i]
		}
	}
	slices.SortStableFunc(a.Results, func(x, y RerankResult) int {
		switch {
		case x.Score > y.Score:
			return -1
		case x.Score < y.Score:
			return 1
		}
		return 0
	})
	if n := c.Vectors.Most; n > 0 && n < len(a.Results) {
		a.Results = a.Results[:n]
	}
	return api.Marshal(a)
}

// ScoreList is the answer to a score call.
type ScoreList struct {
	ID      string       `json:"id"`
	Object  string       `json:"object" doc:"Always \"list\""`
	Created int64        `json:"created" doc:"Unix seconds"`
	Model   string       `json:"model"`
	Data    []ScoreEntry `json:"data"`
	Usage   InputUsage   `json:"usage"`
}

// ScoreEntry is the score of one pair.
type ScoreEntry struct {
	Index  int     `json:"index"`
	Object string  `json:"object" doc:"Always \"score\""`
	Score  float64 `json:"score"`
}

// EncodeScore returns the body of the answer to a score call.
func EncodeScore(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	scores, err := c.Vectors.Scores(r.Choices)
	if err != nil {
		return nil, err
	}
	a := ScoreList{ID: c.ID, Object: "list", Created: c.Created.Unix(), Model: c.Model, Usage: inputUsage(r.Usage),
		Data: make([]ScoreEntry, len(scores))}
	for i, score := range scores {
		a.Data[i] = ScoreEntry{Index: i, Object: "score", Score: score}
	}
	return api.Marshal(a)
}
