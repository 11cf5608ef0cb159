package eval

import (
	"fmt"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/device"
)

// Continuations are the greedy continuations of a text to compare: Prompts prompts of
// PromptTokens tokens, at even distances in the text, each continued by Tokens tokens.
type Continuations struct {
	Prompts, PromptTokens, Tokens int
}

// prompts are slices of the text.
func (c Continuations) prompts(text []int32) ([][]int32, error) {
	if c.Prompts < 1 || c.PromptTokens < 1 || c.Tokens < 1 {
		return nil, fmt.Errorf("eval: %w: %d continuations of %d tokens after %d, expected at least 1 each",
			device.ErrInvalid, c.Prompts, c.Tokens, c.PromptTokens)
	}
	space := len(text) - c.PromptTokens
	if space < 0 {
		return nil, fmt.Errorf("eval: %w: a text of %d tokens, expected at least the %d of a prompt",
			device.ErrInvalid, len(text), c.PromptTokens)
	}
	all := make([][]int32, c.Prompts)
	for i := range all {
		at := space * i / max(c.Prompts-1, 1)
		all[i] = text[at : at+c.PromptTokens]
	}
	return all, nil
}

// Greedy continues the prompts of a text by the likeliest tokens, all in one
// batch. An end-of-sequence token is a token like others.
func Greedy(m *compute.Model, text []int32, c Continuations) ([][]int32, error) {
	prompts, err := c.prompts(text)
	if err != nil {
		return nil, err
	}
	length := c.PromptTokens + c.Tokens
	batch := make([]device.Rows, len(prompts))
	defer func() {
		for _, rows := range batch {
			if rows.Region != nil {
				rows.Region.Close()
			}
		}
	}()
	out := make([][]int32, len(prompts))
	for i, prompt := range prompts {
		region, err := newRegion(m, i, length)
		if err != nil {
			return nil, err
		}
		batch[i].Region = region
		token, err := prefill(m, region, prompt)
		if err != nil {
			return nil, err
		}
		out[i] = []int32{token}
	}
	for at := c.PromptTokens; at < length-1; at++ {
		for i := range batch {
			batch[i].Tokens, batch[i].Position = out[i][len(out[i])-1:], at
		}
		logits, err := m.Engine().Run(batch)
		if err != nil {
			return nil, err
		}
		for i := range out {
			out[i] = append(out[i], argmax(logits.Row(i)))
		}
	}
	return out, nil
}

// prefill runs a prompt and returns the likeliest token after it.
func prefill(m *compute.Model, region *device.Region, prompt []int32) (int32, error) {
	for first := 0; ; first += StepRows {
		rows := prompt[first:min(first+StepRows, len(prompt))]
		last := first+len(rows) == len(prompt)
		from := len(rows)
		if last {
			from--
		}
		logits, err := m.Engine().Run([]device.Rows{{Region: region, Tokens: rows, Position: first, OutputsFrom: from}})
		if err != nil {
			return 0, err
		}
		if last {
			return argmax(logits.Row(0)), nil
		}
	}
}

// Agreement is the share of tokens that a run and its reference choose alike.
type Agreement struct {
	Best   float64 `json:"best_token"`    // share of the text's positions with the same likeliest token
	Greedy float64 `json:"greedy_tokens"` // share of the continuations' tokens before the first that differs
	Whole  int     `json:"same_continuations"`
}

// Agree compares the likeliest tokens of a text and the continuations of its
// prompts with those of a reference. Both were made with the same settings.
func Agree(best, reference []int32, greedy, referenceGreedy [][]int32) Agreement {
	var a Agreement
	same := 0
	for i, id := range best {
		if id == reference[i] {
			same++
		}
	}
	a.Best = float64(same) / float64(len(best))
	common, tokens := 0, 0
	for i, g := range greedy {
		n := commonPrefix(g, referenceGreedy[i])
		common, tokens = common+n, tokens+len(g)
		if n == len(g) {
			a.Whole++
		}
	}
	a.Greedy = float64(common) / float64(tokens)
	return a
}

func commonPrefix(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}
