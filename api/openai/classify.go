package openai

import (
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// DecodeClassify decodes the body of a classify call in vLLM's form into a request for each text. An error is an *api.Error that names
// the field.
func DecodeClassify(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, m, one := o.vectors("classify-", call.Classify, models, arrival)
	if c.Vectors.Classes = m.Embedding.Classes; len(c.Vectors.Classes.Labels) == 0 {
		o.fail("model", "%q has no head for classes, expected a model whose architecture ends in ForSequenceClassification", c.Model)
	}
	one.Pool = &api.Pool{Pooling: api.PoolClasses}
	o.addTexts(c, &one, o.promptsOf("input", maxTexts))
	return c, o.result()
}

// ClassList is the answer to a classify call.
type ClassList struct {
	ID      string       `json:"id"`
	Object  string       `json:"object" doc:"Always \"list\""`
	Created int64        `json:"created" doc:"Unix seconds"`
	Model   string       `json:"model"`
	Data    []ClassEntry `json:"data" doc:"One for each text, in their order"`
	Usage   InputUsage   `json:"usage"`
}

// ClassEntry is the class of one text.
type ClassEntry struct {
	Index   int       `json:"index"`
	Label   string    `json:"label" doc:"The most probable class, by the model's id2label"`
	Probs   []float64 `json:"probs" doc:"The probability of each class: by the softmax of the logits, by the sigmoid of each where several may hold or there is one, or the logits themselves of a regression"`
	Classes int       `json:"num_classes"`
}

// EncodeClassify returns the body of the answer to a classify call.
func EncodeClassify(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	a := ClassList{ID: c.ID, Object: "list", Created: c.Created.Unix(), Model: c.Model, Usage: inputUsage(r.Usage),
		Data: make([]ClassEntry, len(r.Choices))}
	for i := range r.Choices {
		probs, err := c.Vectors.Probabilities(&r.Choices[i])
		if err != nil {
			return nil, err
		}
		best := 0
		for k, p := range probs {
			if p > probs[best] {
				best = k
			}
		}
		a.Data[i] = ClassEntry{Index: i, Label: c.Vectors.Classes.Labels[best], Probs: probs, Classes: len(probs)}
	}
	return api.Marshal(a)
}
