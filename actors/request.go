package actors

import (
	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// request is the state machine of one request, driven by requestActor: it
// turns what arrives into events of the journal and into messages to send.
type request struct {
	api     *api.Request
	limits  modelLimits
	eos     []int32
	prompt  []int32
	choices []choice
	open    int // choices that have not ended
	started bool
	done    bool
	ending  error // why the request is being ended from outside, if not by its client
}

type choice struct {
	seq    msg.SeqID
	tokens []int32
	ended  bool
}

// modelLimits are the lengths that the pipeline can serve, in tokens.
type modelLimits struct {
	context    int // of the model
	pool       int // that the whole KV pool holds
	slabTokens int // of its slabs
}

func newRequest(r *api.Request, eos []int32, lim modelLimits) *request {
	return &request{api: r, eos: eos, limits: lim}
}

// tokenized takes the prompt and returns a sequence to start for each choice.
// An error ends the request.
func (r *request) tokenized(ids []int32, nextID func() msg.SeqID) ([]*msg.Generate, error) {
	limit, err := r.tokenLimit(len(ids))
	if err != nil {
		return nil, err
	}
	r.prompt, r.started = ids, true
	r.open = r.api.N
	stop := r.api.StopTokens
	if !r.api.IgnoreEOS {
		stop = append(append([]int32(nil), stop...), r.eos...)
	}
	seqs := make([]msg.SeqID, r.api.N)
	for i := range seqs {
		seqs[i] = nextID()
		r.choices = append(r.choices, choice{seq: seqs[i]})
	}
	each := 1 // choices of a sequence: a beam search answers all of them
	if r.api.Beams != nil {
		each = r.api.N
	}
	generate := make([]*msg.Generate, r.api.N/each)
	for i := range generate {
		params := r.api.Sampling
		params.Seed += uint64(i) // choices differ, and the request stays reproducible
		if r.api.TopLogprobs >= 0 {
			params.Logprobs, params.TopLogprobs = true, r.api.TopLogprobs
		}
		generate[i] = &msg.Generate{
			Seq: seqs[i*each], Choices: seqs[i*each : (i+1)*each], RequestID: r.api.ID, Prompt: ids, MaxTokens: limit,
			StopTokens: stop, Sampling: params, Beams: r.api.Beams, Tenant: r.api.Tenant,
			Priority: r.api.Priority, Deadline: r.api.Deadline, Arrival: r.api.Arrival,
		}
	}
	return generate, nil
}

// tokenLimit is the number of tokens that may be generated after a prompt.
func (r *request) tokenLimit(prompt int) (int, error) {
	if prompt == 0 {
		return 0, api.Invalid("prompt", "the prompt has no tokens, expected at least 1")
	}
	room := min(r.limits.context, r.limits.pool) - prompt
	if r.api.Beams != nil {
		room = r.limits.beamRoom(prompt, r.api.Beams.Width)
	}
	if room < 1 && r.api.Beams != nil {
		return 0, api.Invalid("prompt", "a prompt of %d tokens with %d beams leaves no room for an answer (context of the model %d tokens, KV memory for %d)",
			prompt, r.api.Beams.Width, r.limits.context, r.limits.pool)
	}
	if room < 1 {
		return 0, tooLong("prompt", "the prompt has %d tokens, expected fewer than %d (context of the model %d tokens, KV memory for %d)",
			prompt, min(r.limits.context, r.limits.pool), r.limits.context, r.limits.pool)
	}
	if r.api.MaxTokens > room {
		return 0, tooLong("max_tokens", "max_tokens is %d after a prompt of %d tokens, expected at most %d (context of the model %d tokens, KV memory for %d)",
			r.api.MaxTokens, prompt, room, r.limits.context, r.limits.pool)
	}
	if r.api.MaxTokens > 0 {
		return r.api.MaxTokens, nil
	}
	return room, nil
}

func tooLong(param, format string, args ...any) error {
	e := api.Invalid(param, format, args...)
	e.Reason = "context_length_exceeded"
	return e
}

// text takes what a token added to a choice and returns the event for it; ok
// is false when the choice is unknown or has ended.
func (r *request) text(t *msg.Text) (e api.Event, ok bool) {
	i := r.choice(t.Seq)
	if i < 0 || r.choices[i].ended {
		return api.Event{}, false
	}
	c := &r.choices[i]
	e = api.Event{Choice: i, Text: t.Text, Logprobs: t.Logprobs, Finish: t.Finish, Err: t.Err}
	if t.Token >= 0 {
		c.tokens = append(c.tokens, t.Token)
		e.Tokens = c.tokens[len(c.tokens)-1:]
	}
	if t.Finish == api.FinishNone {
		return e, true
	}
	if t.Finish == api.FinishCancelled && r.ending != nil {
		e.Finish, e.Err = api.FinishError, r.ending
	}
	c.ended = true
	if r.open--; r.open == 0 || e.Finish == api.FinishError { // a failed choice fails the request
		r.done, e.Done, e.Usage = true, true, r.usage()
	}
	return e, true
}

// fail ends the request at once with err.
func (r *request) fail(err error) api.Event {
	r.done = true
	return api.Event{Finish: api.FinishError, Err: err, Done: true, Usage: r.usage()}
}

// cancel returns the sequences to end. Before the first of them was started
// the request ends with the event.
func (r *request) cancel(reason error) (running []msg.SeqID, ended *api.Event) {
	if r.done {
		return nil, nil
	}
	r.ending = reason
	if !r.started {
		r.done = true
		e := api.Event{Finish: api.FinishCancelled, Done: true, Usage: r.usage()}
		if reason != nil {
			e.Finish, e.Err = api.FinishError, reason
		}
		return nil, &e
	}
	return r.running(), nil
}

// running lists the sequences that have not ended.
func (r *request) running() []msg.SeqID {
	var ids []msg.SeqID
	for i := range r.choices {
		if !r.choices[i].ended {
			ids = append(ids, r.choices[i].seq)
		}
	}
	return ids
}

func (r *request) choice(seq msg.SeqID) int {
	for i := range r.choices {
		if r.choices[i].seq == seq {
			return i
		}
	}
	return -1
}

func (r *request) usage() *api.Usage {
	u := &api.Usage{PromptTokens: len(r.prompt)}
	for i := range r.choices {
		u.CompletionTokens += len(r.choices[i].tokens)
	}
	return u
}
