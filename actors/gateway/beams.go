package gateway

import "github.com/millrace/millrace/api"

// checkBeams says what a beam search cannot do.
func checkBeams(r *api.Request, maxBatchSize int) error {
	if r.Beams == nil {
		return nil
	}
	if err := r.Beams.Validate(); err != nil {
		return api.InvalidParam(err)
	}
	switch {
	case r.Beams.Width > maxBatchSize:
		return api.Invalid("num_beams", "num_beams is %d, expected at most %d, the rows of a step (max_batch_size)", r.Beams.Width, maxBatchSize)
	case r.N > r.Beams.Width:
		return api.Invalid("n", "n is %d, expected at most num_beams, %d", r.N, r.Beams.Width)
	case r.TopLogprobs >= 0:
		return api.Invalid("logprobs", "not supported together with beam search")
	case len(r.Stop) > 0:
		return api.Invalid("stop", "not supported together with beam search: use stop_token_ids")
	}
	return nil
}

// checkGrammar says what a grammar cannot do.
func checkGrammar(r *api.Request) error {
	switch {
	case r.Grammar == nil:
		return nil
	case r.Beams != nil:
		return api.Invalid(r.Grammar.Param, "%s: not supported together with use_beam_search", r.Grammar.Param)
	}
	if err := r.Grammar.Validate(); err != nil {
		return api.GrammarError(r.Grammar, err)
	}
	return nil
}

// beamLimit is the longest answer of a beam search after a prompt; it may be
// less than 1.
func (m modelLimits) beamLimit(prompt, width int) int {
	shared := (prompt + m.slabTokens - 1) / m.slabTokens
	return min(m.context-prompt, (m.pool/m.slabTokens-shared)/width*m.slabTokens)
}
