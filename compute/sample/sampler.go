package sample

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// impossible is the logit of a token that is not drawn.
func impossible() float32 { return float32(math.Inf(-1)) }

// ErrLogits means that no token can be drawn: the vector has another length
// than the vocabulary, a NaN or +Inf, or nothing but -Inf.
var ErrLogits = errors.New("sample: bad logits")

// Choice is a sampled token.
type Choice struct {
	Token int32
	// Logprob is the token's natural-log probability under the model's own
	// distribution, before any processor, as OpenAI and vLLM report it by
	// default. 0 unless Params.Logprobs.
	Logprob float32
	Top     []Alternative // Params.TopLogprobs likeliest tokens, best first, equal ones by id; nil unless Params.Logprobs
}

// Alternative is a token that could have been sampled. Its Logprob is as in
// Choice; -Inf for a token that the model excludes.
type Alternative struct {
	Token   int32
	Logprob float32
}

// Sampler draws the tokens of one sequence. Its only state is which tokens the
// sequence holds, for the penalties, and its tokens, for DRY and bad words: Sample does not change it, Accept does.
type Sampler struct {
	p      Params
	vocab  int
	draw   Draw // what all positions have alike
	biases []bias
	index  map[int32]int // token -> its place in seen; nil without penalties
	seen   []occurrence
	dry    *dry      // nil: off
	words  [][]int32 // tokens of bad words
	// sequence are the prompt and the output, nil without DRY and bad words; the first prompt ones are the prompt.
	sequence []int32
	prompt   int
	thinks   reasoning
	ends     []int32 // tokens that are not drawn at positions before free
	free     int
}

// occurrence is a token of the prompt or the output.
type occurrence struct {
	id     int32
	output int32 // times in the output; 0: in the prompt only
}

// New returns the sampler of a sequence with the given prompt. p has passed
// Validate; token ids outside [0, vocab) are ignored.
func New(p Params, vocab int, prompt []int32) *Sampler {
	s := &Sampler{p: p, vocab: vocab, draw: newDraw(&p, vocab), thinks: newReasoning(p.Thinking)}
	for _, b := range p.biases() {
		if b.id >= 0 && int(b.id) < vocab && b.value != 0 {
			s.biases = append(s.biases, b)
		}
	}
	if s.repeats() || p.PresencePenalty != 0 || p.FrequencyPenalty != 0 {
		s.index = make(map[int32]int)
	}
	if s.repeats() {
		for _, token := range prompt {
			s.note(token, 0)
		}
	}
	s.dry = newDRY(&p)
	if p.Tokens != nil {
		s.words = slices.DeleteFunc(slices.Clone(p.Tokens.Words), func(ids []int32) bool {
			return len(ids) == 0 || slices.ContainsFunc(ids, func(id int32) bool { return id < 0 || int(id) >= vocab })
		})
	}
	if s.keeps() {
		s.sequence, s.prompt = slices.Clone(prompt), len(prompt)
	}
	return s
}

// keeps reports whether the sampler needs the sequence.
func (s *Sampler) keeps() bool { return s.dry != nil || len(s.words) > 0 }

// Ends makes the tokens that end the output of a prompt impossible until it has Params.MinTokens. Ids outside [0, vocab) are ignored.
func (s *Sampler) Ends(tokens []int32, prompt int) {
	if s.p.MinTokens == 0 {
		return
	}
	s.free = prompt + s.p.MinTokens
	for _, id := range tokens {
		if id >= 0 && int(id) < s.vocab {
			s.ends = append(s.ends, id)
		}
	}
}

// Accept appends a token to the sequence. The next Sample sees it.
func (s *Sampler) Accept(token int32) {
	s.note(token, 1)
	if s.keeps() {
		s.sequence = append(s.sequence, token)
	}
	s.thinks.accept(token)
}

// Replay accepts tokens in turn. New and Replay of a sequence's output rebuild
// the sampler that made it.
func (s *Sampler) Replay(tokens []int32) {
	for _, token := range tokens {
		s.Accept(token)
	}
}

// Sample draws the token at position, its index in the whole sequence (prompt
// and output). The result depends on nothing but the logits, the parameters,
// the accepted tokens and the position. logits, one per token of the
// vocabulary, may be overwritten. It allocates only for Choice.Top.
func (s *Sampler) Sample(logits []float32, position int, ws *Scratch) (Choice, error) {
	return s.SampleMasked(logits, nil, position, ws)
}

// SampleMasked is Sample among the tokens whose bits are set in mask, the lowest bit of the first word for token 0. The mask comes
// before every other processor, and log probabilities are those of the model without it. nil: all tokens.
func (s *Sampler) SampleMasked(logits []float32, mask []uint32, position int, ws *Scratch) (Choice, error) {
	if len(logits) != s.vocab {
		return Choice{}, fmt.Errorf("%w: found %d, expected %d, one per token", ErrLogits, len(logits), s.vocab)
	}
	if s.thinks.spent() {
		return s.endThinking(logits)
	}
	raw := logits
	if s.p.Logprobs && (mask != nil || len(s.biases) > 0 || len(s.seen) > 0 || s.keeps() || position < s.free) {
		ws.raw = append(ws.raw[:0], logits...)
		raw = ws.raw
	}
	if mask != nil {
		exclude(logits, mask)
	}
	if position < s.free {
		for _, id := range s.ends {
			logits[id] = impossible()
		}
	}
	s.edit(logits)
	if s.dry != nil {
		s.dry.edit(logits, s.sequence, ws)
	}
	s.ban(logits, ws)
	best, err := argmax(logits)
	if err != nil && ws.unban(logits) { // a grammar leaves nothing else
		best, err = argmax(logits)
	}
	if err != nil {
		return Choice{}, err
	}
	c := Choice{Token: best}
	switch u, xtc := uniform(s.p.Seed, position), s.p.XTC.applies(s.p.Seed, position); {
	case s.draw.PerNat == 0:
	case !xtc && !s.filters():
		c.Token = ws.draw(logits, logits[best], s.draw.PerNat, u)
	default:
		set := s.filter(logits, logits[best], ws)
		if xtc {
			set = withoutTop(set, s.p.XTC.Threshold, logits, logits[best])
		}
		c.Token = pick(set, u)
	}
	if s.p.Logprobs {
		c.Logprob, c.Top = logprobs(raw, c.Token, s.p.TopLogprobs)
	}
	return c, nil
}

// endThinking returns the token that ends the reasoning, whatever the logits are.
func (s *Sampler) endThinking(logits []float32) (Choice, error) {
	if _, err := argmax(logits); err != nil {
		return Choice{}, err
	}
	c := Choice{Token: s.thinks.bound.End}
	if s.p.Logprobs {
		c.Logprob, c.Top = logprobs(logits, c.Token, s.p.TopLogprobs)
	}
	return c, nil
}

// exclude sets the logits of the tokens without a bit in mask to -Inf.
func exclude(logits []float32, mask []uint32) {
	none := impossible()
	for at := 0; at < len(logits); at += 32 {
		word, bits := logits[at:min(at+32, len(logits))], uint32(0)
		if at/32 < len(mask) {
			bits = mask[at/32]
		}
		if bits == math.MaxUint32 {
			continue
		}
		for i := range word {
			if bits&(1<<i) == 0 {
				word[i] = none
			}
		}
	}
}

// edit applies the logit bias and the penalties. Only tokens named by one of
// them are touched.
func (s *Sampler) edit(logits []float32) {
	for _, b := range s.biases {
		logits[b.id] += b.value
	}
	for _, o := range s.seen {
		v := logits[o.id]
		if s.repeats() {
			// CTRL (Keskar et al. 2019, section 4.1), the sign as in transformers.
			if v < 0 {
				v *= s.p.RepetitionPenalty
			} else {
				v /= s.p.RepetitionPenalty
			}
		}
		if o.output > 0 {
			v -= float32(s.p.FrequencyPenalty * float32(o.output))
			v -= s.p.PresencePenalty
		}
		logits[o.id] = v
	}
}

// filters reports whether some tokens may not be drawn.
func (s *Sampler) filters() bool { return s.draw.filters() || s.p.TopNSigma > 0 || s.cutsTypical() }

func (s *Sampler) cutsTypical() bool { return s.p.TypicalP > 0 && s.p.TypicalP < 1 }

// filter lists the tokens that may be drawn, by id, with their weights.
func (s *Sampler) filter(logits []float32, top float32, ws *Scratch) []candidate {
	least := impossible()
	if s.p.TopNSigma > 0 {
		least = sigmaBound(logits, s.p.TopNSigma, top)
	}
	set := s.draw.filter(logits, top, least, ws)
	if s.cutsTypical() {
		set = ws.typical(set, s.p.TypicalP)
	}
	return set
}

func (s *Sampler) repeats() bool {
	return s.p.RepetitionPenalty != 0 && s.p.RepetitionPenalty != 1
}

func (s *Sampler) note(token, output int32) {
	if s.index == nil || token < 0 || int(token) >= s.vocab {
		return
	}
	at, ok := s.index[token]
	if !ok {
		at = len(s.seen)
		s.index[token] = at
		s.seen = append(s.seen, occurrence{id: token})
	}
	s.seen[at].output += output
}

// argmax is the lowest id with the largest logit. The comparison is false for
// NaN, so that finding one costs nothing; a block is looked into some ln(vocab)
// times.
func argmax(logits []float32) (int32, error) {
	best, top := -1, impossible()
	for at := 0; at < len(logits); at += block {
		rest := logits[at:]
		if len(rest) >= block {
			b := (*[block]float32)(rest)
			if b[0] <= top && b[1] <= top && b[2] <= top && b[3] <= top &&
				b[4] <= top && b[5] <= top && b[6] <= top && b[7] <= top {
				continue
			}
			rest = b[:]
		}
		for i, v := range rest {
			if !(v <= top) {
				if v != v || v > math.MaxFloat32 {
					return 0, fmt.Errorf("%w: found %g for token %d of %d, expected a finite number or -Inf", ErrLogits, v, at+i,
						len(logits))
				}
				best, top = at+i, v
			}
		}
	}
	if best < 0 {
		return 0, fmt.Errorf("%w: all %d are -Inf, expected one token that is possible", ErrLogits, len(logits))
	}
	return int32(best), nil
}
