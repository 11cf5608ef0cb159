package gateway

import (
	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
)

// verdict says what became of a Text.
type verdict int

const (
	ignored verdict = iota // of a sequence that is gone, or of a token that is there already
	taken                  // an event came of it
	gap                    // tokens before it are missing: the sequence is lost
	further                // it was one of several reads: the next one follows
	resend                 // tokens before it are missing that its worker had to send again: it has to once more
)

// text takes what a token added to a choice and returns the event for it.
func (r *request) text(t *msg.Text) (e api.Event, v verdict) {
	i := r.choice(t.Seq)
	if i < 0 || r.done || r.choices[i].ended {
		return api.Event{}, ignored
	}
	c := &r.choices[i]
	missing := t.Gap || t.Index > len(c.tokens) // here, or at a detokenizer that was opened with a shorter history
	switch {
	case t.Token >= 0 && t.Index < len(c.tokens):
		return api.Event{}, ignored
	case missing && c.redirected:
		return api.Event{}, resend
	case missing:
		return api.Event{}, gap
	case t.Token >= 0 && r.api.TopLogprobs >= 0 && len(t.Logprobs) == 0: // sent again by a worker of an earlier version, which keeps none
		return api.Event{}, gap
	}
	e = api.Event{Choice: i, Text: t.Text, Logprobs: t.Logprobs, Finish: t.Finish, Stop: t.Stop, Err: t.Err, Extra: t.Extra}
	if t.Extra != nil && t.Extra.Vector != nil {
		r.found(int(t.Cached))
		if r.answers != nil {
			last, err := r.answers.take(t.Extra.Vector)
			switch {
			case err != nil:
				e.Finish, e.Err, e.Extra = api.FinishError, err, nil
			case !last:
				c.seq, c.redirected, r.resumes = 0, false, 0
				return api.Event{}, further
			default:
				e.Extra = &api.Extra{Answers: r.answers.result()}
			}
		}
	}
	if t.Token >= 0 {
		c.tokens, c.redirected = append(c.tokens, t.Token), false
		e.Tokens = c.tokens[len(c.tokens)-1:]
		r.resumes, r.bond.fixed = 0, true
		if t.Index == 0 {
			r.found(int(t.Cached))
			e.Reasons = r.thought == tools.Opened
			e.Extra = r.dropping(e.Extra)
		}
	}
	e.Pin = r.bond.tell()
	if e.Finish == api.FinishNone {
		return e, taken
	}
	c.ended = true
	if r.open--; r.open == 0 || e.Finish == api.FinishError { // a failed choice fails the request
		r.done, e.Done, e.Usage = true, true, r.usage()
	}
	return e, taken
}

// dropping adds to what the first event of a choice has that messages left the chat.
func (r *request) dropping(had *api.Extra) *api.Extra {
	if r.dropped == 0 {
		return had
	}
	x := api.Extra{Dropped: r.dropped}
	if had != nil {
		x.Prompt, x.Vector = had.Prompt, had.Vector
	}
	return &x
}

// fail ends the request at once with err.
func (r *request) fail(err error) api.Event {
	r.done = true
	return api.Event{Finish: api.FinishError, Err: err, Done: true, Usage: r.usage()}
}

// cancel ends the request at once, by its client or for a reason of ours. What
// runs of it is left to be cancelled, see running.
func (r *request) cancel(reason error) api.Event {
	if reason != nil {
		return r.fail(reason)
	}
	r.done = true
	return api.Event{Finish: api.FinishCancelled, Done: true, Usage: r.usage()}
}

func (r *request) usage() *api.Usage {
	u := &api.Usage{PromptTokens: len(r.prompt), CachedTokens: max(r.cached, 0)}
	for i := range r.choices {
		u.CompletionTokens += len(r.choices[i].tokens)
	}
	return u
}

// found counts the cached tokens of a choice. Those that begin later find what the first one computes, so the least count.
func (r *request) found(cached int) {
	cached = min(max(cached, 0), len(r.prompt))
	if r.cached < 0 || cached < r.cached {
		r.cached = cached
	}
}
