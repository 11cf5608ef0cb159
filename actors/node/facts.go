package node

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/tokenizer"
)

// textFacts are those of a tokenizer, nil for none, and of a format of reasoning and tool calls.
func textFacts(t *tokenizer.Tokenizer, f tools.Format) api.TextFacts {
	if t == nil {
		return api.TextFacts{}
	}
	return api.TextFacts{
		EOS: t.EOS(), Format: f.String(), Special: specialMarkers(t, f), Infill: infillTexts(t), Think: thinkTokens(t, f),
		Judge: judgeTokens(t),
	}
}

// weightFacts are those of this process's model.
func (p *Node) weightFacts() api.WeightFacts {
	f := p.cfg.Facts
	if cluster.ComputingOf(p.cfg.Roles) == "" {
		return f
	}
	f.Created, f.Vocab = p.created, p.cfg.Model.Vocab()
	e := &f.Embedding
	e.Width, e.Pooling = p.cfg.Model.HiddenWidth(), cmp.Or(e.Pooling, api.PoolLast)
	if e.Encoder {
		e.Rows = p.cfg.Sched.MaxBatchTokens
	}
	return f
}

// judgeTokens returns the tokens "no" and "yes" of a model with a chat template, nil if one of them is no token of its own.
func judgeTokens(t *tokenizer.Tokenizer) []int32 {
	if t.Template() == "" {
		return nil
	}
	no, yes := single(t, "no"), single(t, "yes")
	if no < 0 || yes < 0 {
		return nil
	}
	return []int32{no, yes}
}

// single returns the token that is a text, -1 if there is none.
func single(t *tokenizer.Tokenizer, text string) int32 {
	ids, err := t.Encode(text, false)
	if err != nil || len(ids) != 1 {
		return -1
	}
	return ids[0]
}

// thinkTokens returns the tokens that begin and end a model's reasoning, nil if no token ends it.
func thinkTokens(t *tokenizer.Tokenizer, f tools.Format) []int32 {
	begin, end := f.ReasoningTags()
	if end == "" {
		return nil
	}
	if id := single(t, end); id >= 0 {
		return []int32{single(t, begin), id}
	}
	return nil
}

// infillMarkers are the special tokens of the families that fill gaps: StarCoder and Granite, Qwen Coder, DeepSeek Coder. The prompt
// follows the first one, its suffix the second.
var infillMarkers = [][]string{
	{"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
	{"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
	{"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},
}

// infillTexts returns the markers that a tokenizer has as special tokens, nil if it has none of the families'.
func infillTexts(t *tokenizer.Tokenizer) []string {
	for _, family := range infillMarkers {
		if !slices.ContainsFunc(family, func(marker string) bool { _, ok := t.Special(marker); return !ok }) {
			return family
		}
	}
	return nil
}

// specialMarkers returns the ids of the special tokens by which a model marks reasoning and calls, also those that
// a request forces.
func specialMarkers(t *tokenizer.Tokenizer, f tools.Format) map[string]int32 {
	ids := make(map[string]int32)
	for _, marker := range slices.Concat(f.Markers(true), f.ForCalls().Markers(true)) {
		if id, ok := t.Special(marker); ok {
			ids[marker] = id
		}
	}
	return ids
}
