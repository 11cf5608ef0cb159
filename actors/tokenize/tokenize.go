// Package tokenize is the pool of tokenizer actors: text or a chat to token ids, and back.
//
// A message stands for itself. The package must not know requests, models' workers or sequences.
package tokenize

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tokenizer"
	"github.com/millrace/millrace/tokenizer/jinja"
	"github.com/millrace/millrace/tracing"
)

// Pool is the tokenizers of this process.
type Pool struct {
	cfg   Config
	pids  []*actor.PID
	names []string
	turn  atomic.Uint64
	load  atomic.Int64 // prompts in hand
}

// Config is what tokenizers need.
type Config struct {
	Actors    int // 0: 2
	Spawn     func(name string, a actor.Actor) (*actor.PID, error)
	Tokenizer *tokenizer.Tokenizer
	Grammars  *grammar.Compiler // over the vocabulary of Tokenizer
	Root      *actor.RootContext
	Text      string         // digest of Tokenizer, see api.Pin
	Longest   func() int     // context of the model, in tokens; 0: it is not known
	Stage     *metrics.Stage // of tokenizing
	Tracer    trace.Tracer

	breakers *breakers
}

// NewPool spawns the tokenizers.
func NewPool(cfg Config) (*Pool, error) {
	cfg.breakers = &breakers{tokenizer: cfg.Tokenizer}
	p := &Pool{cfg: cfg}
	for i := range cmp.Or(cfg.Actors, 2) {
		pid, err := cfg.Spawn(fmt.Sprint("tokenize-", i), &tokenizerActor{&p.cfg, &p.load})
		if err != nil {
			return nil, err
		}
		p.pids, p.names = append(p.pids, pid), append(p.names, pid.Id)
	}
	return p, nil
}

// Next returns the tokenizer of the next prompt, which counts from here on.
func (p *Pool) Next() *actor.PID {
	p.Enqueued()
	return p.pids[p.turn.Add(1)%uint64(len(p.pids))]
}

// Enqueued counts a prompt that is on its way to a tokenizer.
func (p *Pool) Enqueued() {
	p.load.Add(1)
	p.cfg.Stage.Enqueued()
}

// Names are the names of the actors.
func (p *Pool) Names() []string { return p.names }

// Load is the number of prompts in hand.
func (p *Pool) Load() int { return int(p.load.Load()) }

// tokenizerActor turns prompts into ids. Each message stands for itself.
type tokenizerActor struct {
	*Config
	load *atomic.Int64 // of the pool
}

func (a *tokenizerActor) Receive(ctx actor.Context) {
	start := time.Now()
	var to *actor.PID
	var answer any
	switch m := ctx.Message().(type) {
	case *msg.Tokenize:
		defer a.answerPanic(ctx, m.Reply, start)
		answered := a.tokenize(m)
		if answered == nil {
			a.Stage.Served(time.Since(start))
			return
		}
		to, answer = m.Reply, answered
	case *msg.Detokenize:
		defer a.answerPanic(ctx, m.Reply, start)
		text, err := decode(a.Tokenizer, m.Tokens)
		to, answer = m.Reply, &msg.Detokenized{Text: text, Err: err}
	default:
		return
	}
	a.Stage.Served(time.Since(start))
	a.load.Add(-1)
	ctx.Send(to, answer)
}

// tokenize answers a Tokenize. It returns nil if the grammar takes time to compile: the answer follows then.
func (a *tokenizerActor) tokenize(m *msg.Tokenize) *msg.Tokenized {
	span := tracing.Stage(a.Tracer, m.Trace, "tokenize")
	t := &msg.Tokenized{Text: a.Text}
	if m.Texts != nil {
		t.Texts, t.Err = textTokens(a.Tokenizer, m.Texts, a.breakers)
	}
	if t.Err == nil && (m.Input != nil || m.Grammar == nil && m.Texts == nil) {
		if in := m.Input; in != nil && in.Second != "" {
			t.Tokens, t.Second, t.Err = encodePair(a.Tokenizer, in, a.Longest())
		} else {
			t.Tokens, t.Thought, t.Err = encode(a.Tokenizer, in, a.Longest())
		}
		span.SetAttributes(semconv.GenAIUsageInputTokens(len(t.Tokens)))
		if t.Err == nil && len(m.Answers) > 0 && m.Input != nil {
			t.Answers, t.Err = answerTokens(a.Tokenizer, m.Input, t.Tokens, m.Answers)
		}
	}
	if m.Grammar != nil && t.Err == nil {
		if !a.Grammars.Known(m.Tenant, m.Grammar) {
			go func() {
				defer a.load.Add(-1)
				a.check(m, t)
				end(span, t)
				a.Root.Send(m.Reply, t)
			}()
			return nil
		}
		a.check(m, t)
	}
	end(span, t)
	return t
}

// check compiles the grammar of a request.
func (a *tokenizerActor) check(m *msg.Tokenize, t *msg.Tokenized) {
	if err := a.Grammars.Check(m.Tenant, m.Grammar); err != nil {
		t.Tokens, t.Err = nil, api.GrammarError(m.Grammar, err)
		return
	}
	t.Checked = true
}

func end(span trace.Span, t *msg.Tokenized) {
	tracing.Fail(span, "invalid_request", t.Err)
	span.End()
}

func (a *tokenizerActor) answerPanic(ctx actor.Context, reply *actor.PID, start time.Time) {
	if v := recover(); v != nil {
		a.Stage.Served(time.Since(start))
		a.load.Add(-1)
		ctx.Send(reply, &msg.Tokenized{Err: api.StageFailed("tokenize", v)})
		panic(v)
	}
}

// encodePair makes the ids of a pair of texts, and returns where the second one begins. Errors are *api.Error.
func encodePair(tok *tokenizer.Tokenizer, r *api.TokenizeRequest, longest int) (ids []int32, second int, err error) {
	for _, text := range []string{r.Prompt, r.Second} {
		if err := fits(tok, "prompt", text, longest); err != nil {
			return nil, 0, err
		}
	}
	if ids, second, err = tok.EncodePair(r.Prompt, r.Second); err != nil {
		return nil, 0, api.Invalid("prompt", "%v", err)
	}
	return ids, second, nil
}

// encode makes the ids of a text or a chat, for a model whose context is longest tokens (0: unknown), and returns
// what the end of a chat's prompt says of reasoning. Errors are *api.Error.
func encode(tok *tokenizer.Tokenizer, r *api.TokenizeRequest, longest int) ([]int32, tools.Thought, error) {
	if r.Messages == nil {
		prompt := r.Prompt
		if r.Truncate && longest > 0 {
			prompt = tok.Beginning(prompt, longest)
		}
		if err := fits(tok, "prompt", prompt, longest); err != nil {
			return nil, tools.Unsaid, err
		}
		ids, err := tok.Encode(prompt, r.AddSpecialTokens)
		if err != nil {
			return nil, tools.Unsaid, api.Invalid("prompt", "%v", err)
		}
		return ids, tools.Unsaid, nil
	}
	prompt, err := render(tok, tokenizer.Chat{
		Messages: r.Messages, Tools: r.Tools, Args: r.TemplateArgs,
		AddGenerationPrompt: !r.NoGenerationPrompt && !r.ContinueFinal, ContinueFinal: r.ContinueFinal,
		Clock: r.Clock,
	})
	if err != nil {
		return nil, tools.Unsaid, api.Invalid("messages", "%v", err)
	}
	if err := fits(tok, "messages", prompt.Text, longest); err != nil {
		return nil, tools.Unsaid, err
	}
	ids, err := tok.EncodePrompt(prompt)
	if err != nil {
		return nil, tools.Unsaid, api.Invalid("messages", "%v", err)
	}
	return ids, thought(tok, r, prompt.Text), nil
}

// thought returns what the end of a chat's prompt says of reasoning.
func thought(tok *tokenizer.Tokenizer, r *api.TokenizeRequest, prompt string) tools.Thought {
	said := tools.ThoughtOf(prompt)
	if said == tools.Unsaid && !r.ContinueFinal && !r.NoGenerationPrompt && tools.BeginsInReasoning(tok.Template()) {
		return tools.Opened
	}
	return said
}

// render renders a chat. A template that cannot print the arguments of a call as an object gets a string, one that cannot do without the
// content of a turn gets "". One that refuses calls and results of tools, because it knows none, gets them as text.
func render(tok *tokenizer.Tokenizer, c tokenizer.Chat) (tokenizer.Prompt, error) {
	prompt, err := tok.RenderPrompt(c)
	if err == nil {
		return prompt, nil
	}
	if again, ok := withoutPreambles(c, err); ok {
		if prompt, retryErr := tok.RenderPrompt(again); retryErr == nil {
			return prompt, nil
		}
	}
	knows := tok.KnowsTools(len(c.Tools) > 0)
	if errors.Is(err, jinja.ErrTemplate) && slices.ContainsFunc(c.Messages, func(m api.Message) bool { return len(m.ToolCalls) > 0 }) {
		for _, form := range []struct{ text, empty bool }{{true, false}, {false, true}, {true, true}} {
			if form.empty && !knows { // it would leave the calls out
				break
			}
			c.TextArguments, c.EmptyContent = form.text, form.empty
			if prompt, retryErr := tok.RenderPrompt(c); retryErr == nil {
				return prompt, nil
			}
		}
	}
	if knows {
		return tokenizer.Prompt{}, err
	}
	plain, changed := tokenizer.WithoutTools(c.Messages)
	if !changed {
		return tokenizer.Prompt{}, err
	}
	c.Messages = plain
	return tok.RenderPrompt(c)
}

// withoutPreambles returns the chat for a template that refuses a turn with reasoning, content and calls: such turns
// lose their content. gpt-oss' template has one place for both, and llama.cpp leaves out the content, too.
func withoutPreambles(c tokenizer.Chat, refusal error) (again tokenizer.Chat, changed bool) {
	var raised *jinja.RaisedError
	if !errors.As(refusal, &raised) || !strings.Contains(raised.Message, "content and thinking") {
		return c, false
	}
	c.Messages = slices.Clone(c.Messages)
	for i := range c.Messages {
		m := &c.Messages[i]
		if m.Reasoning != "" && m.Content != "" && len(m.ToolCalls) > 0 {
			m.Content, m.Parts, changed = "", nil, true
		}
	}
	return c, changed
}

func decode(tok *tokenizer.Tokenizer, tokens []int32) (string, error) {
	text, err := tok.Decode(tokens, false)
	if err != nil {
		return "", api.Invalid("tokens", "%v", err)
	}
	return text, nil
}

// fits refuses a text that surely has more tokens than a model's context, 0: unknown. It costs
// nothing, where to tokenize a megabyte takes seconds and hundreds of megabytes.
func fits(tok *tokenizer.Tokenizer, param, text string, longest int) error {
	if least := tok.LeastTokens(text); longest > 0 && least > longest {
		return api.TooLong(param, "the %s has %d bytes, which are %d tokens at least, expected at most %d tokens (context of the model)",
			param, len(text), least, longest)
	}
	return nil
}
