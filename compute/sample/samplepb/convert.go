// Package samplepb is the protobuf form of package sample's parameters. It must not know what
// they travel in.
package samplepb

import "github.com/millrace/millrace/compute/sample"

// FromParams returns the protobuf form of p.
func FromParams(p *sample.Params) *Params {
	w := &Params{
		Temperature: p.Temperature, TopK: int64(p.TopK), TopP: p.TopP, MinP: p.MinP, TypicalP: p.TypicalP,
		RepetitionPenalty: p.RepetitionPenalty, PresencePenalty: p.PresencePenalty, FrequencyPenalty: p.FrequencyPenalty,
		LogitBias: p.LogitBias, Seed: p.Seed, Logprobs: p.Logprobs, TopLogprobs: int64(p.TopLogprobs),
		MinTokens: int64(p.MinTokens), TopNSigma: p.TopNSigma, XtcProbability: p.XTC.Probability, XtcThreshold: p.XTC.Threshold,
		BadWords: p.BadWords, Tokens: FromTextTokens(p.Tokens),
	}
	if d := p.DRY; d != nil {
		w.Dry = &DRY{Multiplier: d.Multiplier, Base: d.Base, Allowed: int64(d.Allowed), Last: int64(d.Last), Breakers: d.Breakers}
	}
	if t := p.Thinking; t != nil {
		w.Thinking = &Thinking{Budget: int64(t.Budget), Start: t.Start, End: t.End, Begun: t.Begun}
	}
	return w
}

// ToParams returns what w is the form of. The result is not validated.
func (w *Params) ToParams() sample.Params {
	p := sample.Params{
		Temperature: w.GetTemperature(), TopK: int(w.GetTopK()), TopP: w.GetTopP(), MinP: w.GetMinP(), TypicalP: w.GetTypicalP(),
		RepetitionPenalty: w.GetRepetitionPenalty(), PresencePenalty: w.GetPresencePenalty(), FrequencyPenalty: w.GetFrequencyPenalty(),
		LogitBias: w.GetLogitBias(), Seed: w.GetSeed(), Logprobs: w.GetLogprobs(), TopLogprobs: int(w.GetTopLogprobs()),
		MinTokens: int(w.GetMinTokens()), TopNSigma: w.GetTopNSigma(),
		XTC: sample.XTC{Probability: w.GetXtcProbability(), Threshold: w.GetXtcThreshold()}, BadWords: w.GetBadWords(),
		Tokens: w.GetTokens().ToTextTokens(),
	}
	if d := w.GetDry(); d != nil {
		p.DRY = &sample.DRY{Multiplier: d.GetMultiplier(), Base: d.GetBase(), Allowed: int(d.GetAllowed()), Last: int(d.GetLast()),
			Breakers: d.GetBreakers()}
	}
	if t := w.GetThinking(); t != nil {
		p.Thinking = &sample.Thinking{Budget: int(t.GetBudget()), Start: t.GetStart(), End: t.GetEnd(), Begun: t.GetBegun()}
	}
	return p
}

// FromBeams returns the protobuf form of b, and nil for nil.
func FromBeams(b *sample.BeamParams) *Beams {
	if b == nil {
		return nil
	}
	return &Beams{Width: int64(b.Width), LengthPenalty: b.LengthPenalty, Early: uint32(b.Early)}
}

// ToBeams returns what w is the form of, and nil for nil. The result is not validated.
func (w *Beams) ToBeams() *sample.BeamParams {
	if w == nil {
		return nil
	}
	return &sample.BeamParams{Width: int(w.GetWidth()), LengthPenalty: w.GetLengthPenalty(),
		Early: sample.EarlyStopping(min(w.GetEarly(), 255))}
}

// FromTexts returns the protobuf form of t, and nil for nil.
func FromTexts(t *sample.Texts) *Texts {
	if t == nil {
		return nil
	}
	return &Texts{Words: t.Words, Breakers: t.Breakers}
}

// ToTexts returns what w is the form of, and nil for nil.
func (w *Texts) ToTexts() *sample.Texts {
	if w == nil {
		return nil
	}
	return &sample.Texts{Words: w.GetWords(), Breakers: w.GetBreakers()}
}

// FromTextTokens returns the protobuf form of t, and nil for nil.
func FromTextTokens(t *sample.TextTokens) *TextTokens {
	if t == nil {
		return nil
	}
	return &TextTokens{Words: FromSequences(t.Words), Breaks: t.Breaks, LongBreaks: FromSequences(t.LongBreaks)}
}

// ToTextTokens returns what w is the form of, and nil for nil. Ids may be outside the vocabulary.
func (w *TextTokens) ToTextTokens() *sample.TextTokens {
	if w == nil {
		return nil
	}
	return &sample.TextTokens{Words: ToSequences(w.GetWords()), Breaks: w.GetBreaks(), LongBreaks: ToSequences(w.GetLongBreaks())}
}

// FromSequences returns the protobuf form of lists of tokens, and nil for nil.
func FromSequences(all [][]int32) (list []*Tokens) {
	for _, ids := range all {
		list = append(list, &Tokens{Ids: ids})
	}
	return list
}

// ToSequences returns what a list is the form of, and nil for nil. Ids may be outside the vocabulary.
func ToSequences(all []*Tokens) (list [][]int32) {
	for _, t := range all {
		list = append(list, t.GetIds())
	}
	return list
}
