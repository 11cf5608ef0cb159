package proof

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// Decisions is the proof of the answer to a decisions call: what its log probabilities were computed from, and their bits.
type Decisions struct {
	Version int             `json:"version" doc:"1"`
	Digest  string          `json:"digest" doc:"SHA-256 of version, model, prompts and options, in hexadecimal"`
	Model   string          `json:"model"`
	Created int64           `json:"created" doc:"The clock of the chat template, in Unix seconds. Not in the digest: the hash of the prompt is"`
	Prompts []PromptProof   `json:"prompts" doc:"By question"`
	Options [][]OptionProof `json:"options" doc:"By question, in the order of its options: yes and no of a predicate"`
}

// OptionProof is the tokens of an option and the log probability of each after the prompt and the tokens before it.
type OptionProof struct {
	Tokens   []int32  `json:"tokens"`
	Logprobs []string `json:"logprobs" doc:"The bits of each as a 32-bit float, in hexadecimal"`
}

// OfDecisions returns the proof of the answer to a decisions call, nil if the call requests none.
func OfDecisions(c *call.Call, r *call.Result) *Decisions {
	if !c.Proof {
		return nil
	}
	p := &Decisions{Version: Version, Model: c.Model, Created: c.Requests[0].TemplateClock().Unix(),
		Options: make([][]OptionProof, len(r.Choices))}
	for i := range r.Choices {
		pin := r.Pins[i]
		p.Prompts = append(p.Prompts, PromptProof{Numerics: pin.Numerics, Text: pin.Text, Hash: pin.Prompt})
		for _, answer := range r.Choices[i].Answers {
			p.Options[i] = append(p.Options[i], optionProof(&answer))
		}
	}
	p.Digest = p.Sum()
	return p
}

func optionProof(a *api.AnswerLogprobs) OptionProof {
	o := OptionProof{Tokens: a.Tokens, Logprobs: make([]string, len(a.Logprobs))}
	for i, v := range a.Logprobs {
		o.Logprobs[i] = fmt.Sprintf("%08x", math.Float32bits(v))
	}
	return o
}

// Sum returns the digest of a proof's fields, encoded as that of Proof. The tokens of an option are numbers, joined by commas, as are the
// bits of their log probabilities.
func (p *Decisions) Sum() string {
	var texts []string
	field := func(name, value string) { texts = append(texts, name, value) }
	field("version", strconv.Itoa(p.Version))
	field("model", p.Model)
	for _, one := range p.Prompts {
		field("prompts.numerics", one.Numerics)
		field("prompts.text", one.Text)
		field("prompts.hash", one.Hash)
	}
	for i, options := range p.Options {
		field("options", strconv.Itoa(i))
		for _, one := range options {
			field("options.tokens", numbers(one.Tokens))
			field("options.logprobs", strings.Join(one.Logprobs, ","))
		}
	}
	return hashOf(texts...)
}

// Differences lists what another proof has otherwise, as that of Proof.
func (p *Decisions) Differences(other *Decisions) []string {
	var list differences
	list.add("version", other.Version, p.Version)
	list.add("model", other.Model, p.Model)
	list.addPrompts(other.Prompts, p.Prompts)
	list.add("options", len(other.Options), len(p.Options))
	for i := range min(len(p.Options), len(other.Options)) {
		found, expected := other.Options[i], p.Options[i]
		list.add(fmt.Sprintf("options[%d]", i), len(found), len(expected))
		for k := range min(len(found), len(expected)) {
			list.add(fmt.Sprintf("options[%d][%d].tokens", i, k), numbers(found[k].Tokens), numbers(expected[k].Tokens))
			list.add(fmt.Sprintf("options[%d][%d].logprobs", i, k), strings.Join(found[k].Logprobs, ","),
				strings.Join(expected[k].Logprobs, ","))
		}
	}
	return list
}
