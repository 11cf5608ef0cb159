package gateway

import (
	"fmt"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// checkBeams says what a beam search cannot do.
func checkBeams(r *api.Request, m *model) error {
	if r.Beams == nil {
		return nil
	}
	if err := r.Beams.Validate(); err != nil {
		return api.InvalidParam(err)
	}
	if rows := rowsOfTenant(r, m.capacity); r.Beams.Width > rows && rows < m.capacity {
		return api.Invalid("num_beams",
			"num_beams is %d, expected at most %d: the others of the %d rows of a step (max_batch_size) are kept for other tenants",
			r.Beams.Width, rows, m.capacity)
	}
	switch {
	case m.noBeams:
		return api.LossyWithBeams()
	case r.Beams.Width > m.capacity:
		return api.Invalid("num_beams", "num_beams is %d, expected at most %d, the rows of a step (max_batch_size)", r.Beams.Width,
			m.capacity)
	case r.N > r.Beams.Width:
		return api.Invalid("n", "n is %d, expected at most num_beams, %d", r.N, r.Beams.Width)
	case r.TopLogprobs >= 0:
		return api.Invalid("logprobs", "not supported together with beam search")
	case r.PromptLogprobs != nil:
		return api.Invalid("prompt_logprobs", "not supported together with beam search")
	case len(r.Stop) > 0:
		return api.Invalid("stop", "not supported together with beam search: use stop_token_ids")
	}
	return nil
}

// rowsOfTenant returns the part of some rows, or of the KV memory, that one beam search may have: it needs all of its rows in each step, so
// those that are kept for other tenants cannot be taken back from it. A request that another gateway accepted, or one without a key, may
// have all.
func rowsOfTenant(r *api.Request, all int) int {
	if r.Tenant == "" || r.Takeover != nil {
		return all
	}
	return sched.ShareWithOthers(all)
}

// checkGrammar says what a grammar cannot do.
func checkGrammar(r *api.Request) error {
	switch {
	case r.Grammar == nil:
		return nil
	case r.Beams != nil:
		return api.GrammarWithBeams(r.Grammar.Param)
	}
	if err := r.Grammar.Validate(); err != nil {
		return api.GrammarError(r.Grammar, err)
	}
	return nil
}

// checkPool says what a request without an answer cannot do. A worker of an earlier version would generate one.
func checkPool(r *api.Request, m *model) error {
	switch {
	case r.PromptLogprobs != nil && m.Embedding.Width == 0:
		return api.Unavailable(fmt.Errorf("a worker of model %q scores no prompts: it is of an earlier version", m.ID))
	case r.PromptLogprobs != nil && (*r.PromptLogprobs < 0 || *r.PromptLogprobs > sample.MaxTopLogprobs):
		return api.Invalid("prompt_logprobs", "prompt_logprobs: found %d, expected 0 to %d", *r.PromptLogprobs, sample.MaxTopLogprobs)
	case m.Embedding.Encoder != r.Pool.Encodes():
		if m.Embedding.Encoder {
			return api.Invalid("model",
				"model %q is an encoder, which generates nothing: expected a call of /v1/embeddings, /v1/rerank, /v1/score or /v1/classify",
				m.ID)
		}
		return api.Invalid("pooling", "pooling: found %q, which is of encoders, and model %q is none", r.Pool.Pooling, m.ID)
	case r.Second != "" && !r.Pool.Encodes():
		return api.Invalid("prompt", "a pair of texts, expected one text: model %q is no encoder", m.ID)
	case r.PromptLogprobs != nil && r.Pool.Encodes():
		return api.Invalid("prompt_logprobs", "not supported together with a vector")
	case r.Pool == nil:
		return nil
	case r.PromptLogprobs != nil && r.Pool.Pooling != api.PoolNone:
		return api.Invalid("prompt_logprobs", "not supported together with a vector")
	case r.N != 1 || r.MaxTokens != 1 || r.Beams != nil || r.Grammar != nil:
		return api.Invalid("pooling", "pooling: found %d choices of %d tokens, expected 1 of 1, without beams or a grammar", r.N,
			r.MaxTokens)
	case len(r.Pool.Answers) > 0 && (r.Messages == nil || r.Truncate || len(r.Pool.Tokens) > 0):
		return api.Invalid("pooling", "pooling: found answers to a text, to a chat that may be cut, or beside tokens, expected a chat")
	case m.Embedding.Width == 0:
		return api.Unavailable(fmt.Errorf("a worker of model %q makes no vectors: it is of an earlier version", m.ID))
	}
	return r.Pool.Validate()
}

// beamLimit is the longest answer of a beam search after a prompt; it may be
// less than 1.
func (m modelLimits) beamLimit(r *api.Request, prompt int) int {
	shared := (prompt + m.slabTokens - 1) / m.slabTokens
	return min(m.context-prompt, (rowsOfTenant(r, m.pool/m.slabTokens)-shared)/r.Beams.Width*m.slabTokens)
}
