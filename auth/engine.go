package auth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// Guard is an engine that serves only requests with a key in their context,
// within the key's limits, in the name of the key's tenant.
func Guard(e api.Engine) api.Engine { return GuardAt(e, time.Now) }

// GuardAt is Guard with a clock.
func GuardAt(e api.Engine, now func() time.Time) api.Engine { return &guard{Engine: e, now: now} }

type guard struct {
	api.Engine
	now func() time.Time
}

// Submit implements api.Engine. Each api.Request counts as one, and so does each
// prompt of a call with several.
func (g *guard) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	k, _ := api.CallerFrom(ctx).(*Key)
	if err := g.check(k, r.Model); err != nil {
		return nil, err
	}
	r.Tenant, r.Weight, r.Priority = k.Tenant, k.Weight, max(r.Priority, k.Priority)
	prompt, answer := estimate(r)
	if err := k.limiter.enter(g.now(), prompt+answer); err != nil {
		return nil, err
	}
	s, err := g.Engine.Submit(ctx, r)
	if err != nil {
		k.limiter.leave(g.now(), prompt+answer, 0)
		return nil, err
	}
	return &stream{Stream: s, guard: g, key: k, reserved: prompt + answer, prompt: prompt, rows: rowsOf(r)}, nil
}

// Tokenize implements api.Engine. It counts as a request, with the tokens that it finds.
func (g *guard) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	var ids []int32
	bytes := len(r.Prompt)
	for i := range r.Messages {
		bytes += len(r.Messages[i].Content)
	}
	err := g.charge(ctx, r.Model, tokensOf(bytes), func() (used int, err error) {
		ids, err = g.Engine.Tokenize(ctx, r)
		return len(ids), err
	})
	return ids, err
}

// Detokenize implements api.Engine. It counts as a request, with its tokens.
func (g *guard) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	var text string
	err := g.charge(ctx, model, len(tokens), func() (used int, err error) {
		text, err = g.Engine.Detokenize(ctx, model, tokens)
		return len(tokens), err
	})
	return text, err
}

// charge makes a call that may use up to the given number of tokens, within the limits of the
// context's key.
func (g *guard) charge(ctx context.Context, model string, tokens int, call func() (used int, err error)) error {
	k, _ := api.CallerFrom(ctx).(*Key)
	if err := g.check(k, model); err != nil {
		return err
	}
	if err := k.limiter.enter(g.now(), tokens); err != nil {
		return err
	}
	used := 0
	defer func() { k.limiter.leave(g.now(), tokens, used) }()
	n, err := call()
	if err == nil {
		used = n
	}
	return err
}

// check: a model that the key may not use is one that does not exist.
func (g *guard) check(k *Key, model string) error {
	switch {
	case k == nil:
		return errUnauthorized
	case model != "" && len(k.Models) > 0 && !k.Allows(model, g.Models()):
		return &api.Error{Code: api.CodeNotFound, Reason: "model_not_found", Param: "model",
			Message: fmt.Sprintf("model %s does not exist", api.Quote(model))}
	}
	return nil
}

// bytesPerToken is the usual length of a token of English text.
const bytesPerToken = 4

// estimate returns the tokens that a request may cost: those of its prompt, estimated from the bytes
// of a text, and those that it declares for its answers. A request that declares nothing reserves
// nothing for its answer, which may put its key into debt.
func estimate(r *api.Request) (prompt, answer int) {
	bytes := len(r.Prompt)
	for i := range r.Messages {
		bytes += len(r.Messages[i].Content)
	}
	rows := rowsOf(r)
	return (len(r.PromptTokens) + tokensOf(bytes)) * rows.prompt, r.MaxTokens * rows.beams
}

// rows is how often the tokens of a request are computed.
type rows struct {
	prompt  int // of its prompt: once for all choices, once more if the first one wants its log probabilities
	beams   int // of the answers, whichever are kept
	answers int // those that are kept
}

func rowsOf(r *api.Request) rows {
	n := max(r.N, 1)
	v := rows{prompt: 1, beams: n, answers: n}
	if r.PromptLogprobs != nil {
		v.prompt = min(n, 2) // the first choice computes all of it, and offers none of it to the others
	}
	if r.Beams != nil {
		v.beams = max(r.Beams.Width, n)
	}
	return v
}

// of returns the cost of the tokens of all answers.
func (v rows) of(tokens int) int { return tokens * v.beams / v.answers }

// tokensOf estimates the number of tokens of a text from its bytes.
func tokensOf(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// stream returns unused reserved tokens at its end.
type stream struct {
	api.Stream
	guard    *guard
	key      *Key
	reserved int
	prompt   int // estimated
	rows     rows
	answered int // tokens
	once     sync.Once
}

func (s *stream) Next(ctx context.Context) (api.Event, error) {
	ev, err := s.Stream.Next(ctx)
	s.count(&ev)
	return ev, err
}

func (s *stream) Poll() (api.Event, bool, error) {
	ev, ok, err := s.Stream.Poll()
	s.count(&ev)
	return ev, ok, err
}

func (s *stream) count(ev *api.Event) {
	if ev.Restart {
		s.answered = 0
	}
	s.answered += len(ev.Tokens)
	if ev.Done {
		used := s.prompt + s.rows.of(s.answered)
		if ev.Usage != nil {
			used = ev.Usage.PromptTokens*s.rows.prompt + s.rows.of(ev.Usage.CompletionTokens)
		}
		s.leave(used)
	}
}

func (s *stream) leave(used int) {
	s.once.Do(func() { s.key.limiter.leave(s.guard.now(), s.reserved, used) })
}

// Close implements api.Stream. A request that is cut short pays for the tokens made, read or not.
func (s *stream) Close() {
	s.Stream.Close()
	s.once.Do(func() {
		over, cancel := context.WithCancel(context.Background())
		cancel()
		for {
			ev, err := s.Stream.Next(over)
			if err != nil {
				break
			}
			if ev.Restart {
				s.answered = 0
			}
			s.answered += len(ev.Tokens)
			if ev.Done {
				break
			}
		}
		s.key.limiter.leave(s.guard.now(), s.reserved, s.prompt+s.rows.of(s.answered))
	})
}
