package openai

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/proof"
)

// Bounds of a decisions call, as OpenAI's. maxTexts bounds the options of all its questions.
const (
	maxQuestions = 200
	maxOptions   = 255
	maxLevels    = 10
)

// The types of questions.
const (
	predicate = "predicate"
	choice    = "choice"
	score     = "score"
)

// DecodeDecisions decodes the body of a decisions call in OpenAI's form into a request for each question. An error is an *api.Error that
// names the field.
func DecodeDecisions(body []byte, models []api.Model, arrival time.Time) (*call.Call, error) {
	o, err := parse(body)
	if err != nil {
		return nil, err
	}
	c, _, one := o.vectors("decision-", call.Decisions, models, arrival)
	c.Vectors = nil
	one.TemplateArgs = map[string]any{"enable_thinking": false, "thinking": false}
	input := o.decisionInput()
	questions, ok := o.list("questions", maxQuestions)
	if ok && len(questions) == 0 || !ok {
		o.fail("questions", "expected a list of 1 to %d questions", maxQuestions)
	}
	options := 0
	for i, raw := range questions {
		name := fmt.Sprintf("questions[%d]", i)
		q := o.open(name, raw)
		if q == nil {
			break
		}
		question, text, answers := q.question()
		o.adopt(q)
		if options += len(answers); options > maxTexts {
			o.fail(name, "expected at most %d options in all questions", maxTexts)
		}
		if o.err != nil {
			break
		}
		r := one
		r.Messages = []api.Message{{Role: "user", Content: input + "\n\n" + text}}
		r.Pool = &api.Pool{Pooling: api.PoolLogprobs, Answers: answers}
		o.addRequest(c, r)
		c.Questions = append(c.Questions, question)
	}
	o.refuseUnsupported("stream", "false")
	o.refuseUnsupported("tools", "[]")
	if o.err == nil {
		o.proof(c)
	}
	return c, o.result()
}

// decisionInput reads what the questions are about: a string, or messages of a user, which are joined with empty lines.
func (o *object) decisionInput() string {
	const name, expected = "input", "a string, or a list of messages of a user"
	raw, ok := o.get(name)
	text := ""
	switch {
	case !ok:
		o.fail(name, "expected %s", expected)
	case raw[0] == '"':
		o.str(name, &text)
	case raw[0] != '[':
		o.expected(name, expected, raw)
	default:
		items, _ := o.list(name, maxMessages)
		texts := make([]string, 0, len(items))
		for i, item := range items {
			m := o.open(fmt.Sprintf("%s[%d]", name, i), item)
			if m == nil {
				return ""
			}
			texts = append(texts, m.decisionMessage())
			o.adopt(m)
		}
		text = strings.Join(texts, "\n\n")
	}
	if text == "" {
		o.fail(name, "expected a text with at least one character")
	}
	return text
}

func (o *object) decisionMessage() string {
	kind, role := "message", "user"
	if o.str("type", &kind); kind != "message" {
		o.fail("type", `expected "message", found %s`, api.Quote(kind))
	}
	if o.str("role", &role); role != "user" {
		o.fail("role", `expected "user", found %s`, api.Quote(role))
	}
	raw, ok := o.get("content")
	if !ok {
		o.fail("content", "expected a string or a list of parts")
		return ""
	}
	if raw[0] != '[' {
		text := ""
		o.str("content", &text)
		return text
	}
	items, _ := o.list("content", maxMessages)
	texts := make([]string, 0, len(items))
	for i, item := range items {
		part := o.open(fmt.Sprintf("content[%d]", i), item)
		if part == nil {
			return ""
		}
		kind, text := "", ""
		if part.str("type", &kind); kind != "input_text" {
			part.fail("type", `only "input_text" is supported, found %s`, api.Quote(kind))
		}
		part.str("text", &text)
		o.adopt(part)
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}

// question reads one question: what becomes of its answer, its text, and the answers that the model may give.
func (o *object) question() (q call.Question, text string, answers []string) {
	if _, ok := o.get("name"); ok {
		q.Name = new(string)
		o.str("name", q.Name)
	}
	instructions := o.nonempty("instructions")
	o.str("type", &q.Type)
	text = "Question: " + instructions + "\n"
	switch q.Type {
	case predicate:
		return q, text + "Answer yes or no, and nothing else.", []string{"yes", "no"}
	case choice:
		text += "Options:\n"
		seen := make(map[string]int)
		o.options("choices", maxOptions, func(i int, option *object) {
			raw, answer := option.value()
			if first, again := seen[answer]; again && answer != "" {
				option.fail("value", "the text %s is that of choices[%d], expected another one", api.Quote(answer), first)
			}
			seen[answer] = i
			q.Values, answers = append(q.Values, raw), append(answers, answer)
			text += "- " + answer
		}, &text)
		return q, text + "Answer with one of the options, exactly as it is written, and nothing else.", answers
	case score:
		text += "Levels:\n"
		o.options("levels", maxLevels, func(i int, option *object) {
			label, number := option.nonempty("label"), strconv.Itoa(i)
			q.Labels, q.Values, answers = append(q.Labels, label), append(q.Values, json.RawMessage(number)), append(answers, number)
			text += number + ": " + label
		}, &text)
		return q, text + "Answer with the number of one level, and nothing else.", answers
	}
	o.fail("type", `expected "predicate", "choice" or "score", found %s`, api.Quote(q.Type))
	return q, text, nil
}

// options reads the options of a question. add adds a line for one to text, to which its description is added.
func (o *object) options(name string, most int, add func(i int, option *object), text *string) {
	items, ok := o.list(name, most)
	if ok && len(items) < 2 || !ok {
		o.fail(name, "expected a list of 2 to %d", most)
	}
	for i, raw := range items {
		option := o.open(fmt.Sprintf("%s[%d]", name, i), raw)
		if option == nil {
			return
		}
		add(i, option)
		description := ""
		if option.str("description", &description); description != "" {
			*text += ": " + description
		}
		*text += "\n"
		o.adopt(option)
	}
}

// value reads the value of a choice: raw is what the client wrote, text what the model answers with.
func (o *object) value() (raw json.RawMessage, text string) {
	const expected = "a string with at least one character, true or false"
	raw, ok := o.get("value")
	switch {
	case !ok:
		o.fail("value", "expected %s", expected)
	case string(raw) == "true", string(raw) == "false":
		return raw, string(raw)
	default:
		if !decodeString(raw, &text) || text == "" {
			o.expected("value", expected, raw)
		}
	}
	return raw, text
}

// Decision is the answer to a decisions call.
type Decision struct {
	ID      string           `json:"id"`
	Model   string           `json:"model"`
	Answers []DecisionAnswer `json:"answers" doc:"One for each question, in their order"`
	Usage   DecisionUsage    `json:"usage"`
	Proof   *proof.Decisions `json:"proof,omitempty" doc:"With proof"`
}

// DecisionAnswer is the answer to one question.
type DecisionAnswer struct {
	Type          string              `json:"type" doc:"predicate, choice or score"`
	Name          *string             `json:"name" doc:"That of the question, null without one"`
	Probability   *float64            `json:"probability,omitempty" doc:"In the answer to a predicate: that it is yes, of yes and no"`
	Choice        json.RawMessage     `json:"choice,omitempty" doc:"In the answer to a choice: the most probable value, the first of several"`
	Score         *float64            `json:"score,omitempty" doc:"In the answer to a score: the mean of the levels' numbers, from 0 on, by their probabilities"`
	Probabilities []OptionProbability `json:"probabilities,omitempty" doc:"One for each option, in their order; their sum is 1"`
	Confidence    *float64            `json:"confidence,omitempty" doc:"The probability of the most probable option among all texts that the model may answer"`
	Mass          float64             `json:"mass" doc:"The probability of all options together among all texts that the model may answer. If it is low, the model would rather say something else"`
}

// OptionProbability is the probability of one option.
type OptionProbability struct {
	Value       json.RawMessage `json:"value" doc:"The value of a choice, or the number of a level"`
	Label       string          `json:"label,omitempty" doc:"That of a level"`
	Probability float64         `json:"probability"`
}

// DecisionUsage counts the tokens of a decisions call.
type DecisionUsage struct {
	InputTokens   int                 `json:"input_tokens" doc:"Tokens of the prompts of all questions"`
	InputDetails  DecisionInputUsage  `json:"input_tokens_details"`
	OutputTokens  int                 `json:"output_tokens" doc:"0"`
	OutputDetails DecisionOutputUsage `json:"output_tokens_details"`
	TotalTokens   int                 `json:"total_tokens"`
}

// DecisionInputUsage counts the input tokens that were in the prefix cache.
type DecisionInputUsage struct {
	Cached  int `json:"cached_tokens"`
	Written int `json:"cache_write_tokens" doc:"0: they are not counted"`
}

// DecisionOutputUsage counts the tokens of reasoning.
type DecisionOutputUsage struct {
	Reasoning int `json:"reasoning_tokens" doc:"0"`
}

// EncodeDecisions returns the body of the answer to a decisions call.
func EncodeDecisions(c *call.Call, r *call.Result, _ string) ([]byte, error) {
	a := Decision{ID: c.ID, Model: c.Model, Answers: make([]DecisionAnswer, len(r.Choices)), Proof: proof.OfDecisions(c, r),
		Usage: DecisionUsage{InputTokens: r.Usage.PromptTokens, InputDetails: DecisionInputUsage{Cached: r.Usage.CachedTokens},
			TotalTokens: r.Usage.PromptTokens}}
	for i := range r.Choices {
		d, err := call.Decide(r.Choices[i].Answers)
		if err != nil {
			return nil, err
		}
		a.Answers[i] = decisionAnswer(&c.Questions[i], d)
	}
	return api.Marshal(a)
}

func decisionAnswer(q *call.Question, d *call.Decision) DecisionAnswer {
	a := DecisionAnswer{Type: q.Type, Name: q.Name, Mass: d.Mass}
	if q.Type == predicate {
		a.Probability = &d.Probabilities[0]
		return a
	}
	confidence := d.Confidence()
	a.Confidence, a.Probabilities = &confidence, make([]OptionProbability, len(d.Probabilities))
	for i, p := range d.Probabilities {
		a.Probabilities[i] = OptionProbability{Value: q.Values[i], Probability: p}
		if q.Labels != nil {
			a.Probabilities[i].Label = q.Labels[i]
		}
	}
	if q.Type == choice {
		a.Choice = q.Values[d.Best]
	} else {
		expected := d.Expected()
		a.Score = &expected
	}
	return a
}
