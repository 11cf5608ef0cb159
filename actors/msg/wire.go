package msg

import (
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg/msgpb"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/grammar/grammarpb"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sample/samplepb"
	"github.com/millrace/millrace/detok"
	"github.com/millrace/millrace/tracing"
)

// Errors of the wire form.
var (
	ErrLocal = errors.New("msg: the message does not travel")
	ErrWire  = errors.New("msg: bad message")
)

// Marshal puts a message to the actor of that name into its wire form. now is the
// sender's time, see Generate.
func Marshal(to string, m any, now time.Time) (*msgpb.Envelope, error) {
	e := &msgpb.Envelope{To: to}
	switch m := m.(type) {
	case *Tokenize:
		t, err := tokenizeToWire(m)
		e.Body = &msgpb.Envelope_Tokenize{Tokenize: t}
		return e, err
	case *Tokenized:
		e.Body = &msgpb.Envelope_Tokenized{Tokenized: &msgpb.Tokenized{Tokens: m.Tokens, Second: int32(m.Second), Text: m.Text,
			Checked: m.Checked, Thought: uint32(m.Thought), Texts: samplepb.FromTextTokens(m.Texts),
			Answers: samplepb.FromSequences(m.Answers), Error: errorToWire(m.Err)}}
	case *Detokenize:
		e.Body = &msgpb.Envelope_Detokenize{Detokenize: &msgpb.Detokenize{Reply: pidToWire(m.Reply), Tokens: m.Tokens}}
	case *Detokenized:
		e.Body = &msgpb.Envelope_Detokenized{Detokenized: &msgpb.Detokenized{Text: m.Text, Error: errorToWire(m.Err)}}
	case *OpenText:
		e.Body = &msgpb.Envelope_OpenText{OpenText: &msgpb.OpenText{
			Seq: uint64(m.Seq), Reply: pidToWire(m.Reply), Compute: pidToWire(m.Compute), Stop: m.Options.Stop,
			IncludeStop: m.Options.IncludeStop, KeepSpecial: m.Options.KeepSpecial, Keep: m.Options.Keep, History: m.History,
			Trace: traceToWire(m.Trace),
		}}
	case *CloseText:
		e.Body = &msgpb.Envelope_CloseText{CloseText: &msgpb.CloseText{Seq: uint64(m.Seq), Owner: m.Owner}}
	case *Generate:
		e.Body = &msgpb.Envelope_Generate{Generate: generateToWire(m, now)}
	case *Redirect:
		e.Body = &msgpb.Envelope_Redirect{Redirect: &msgpb.Redirect{
			Seq: uint64(m.Seq), Reply: pidToWire(m.Reply), Watch: pidToWire(m.Watch), Detok: pidToWire(m.Detok), From: int64(m.From),
		}}
	case *Find:
		e.Body = &msgpb.Envelope_Find{Find: &msgpb.Find{RequestId: m.RequestID, Reply: pidToWire(m.Reply), End: m.End}}
	case *Found:
		e.Body = &msgpb.Envelope_Found{Found: &msgpb.Found{
			Seqs: convert[uint64](m.Seqs), First: int64(m.First), Compute: pidToWire(m.Compute),
			Numerics: m.Pin.Numerics, Text: m.Pin.Text, Prompt: m.Pin.Prompt,
		}}
	case *Cancel:
		e.Body = &msgpb.Envelope_Cancel{Cancel: &msgpb.Cancel{Seq: uint64(m.Seq), Owner: m.Owner}}
	case *Tokens:
		e.Body = &msgpb.Envelope_Tokens{Tokens: tokensToWire(m)}
	case *Text:
		e.Body = &msgpb.Envelope_Text{Text: textExtraToWire(m.Extra, &msgpb.Text{
			Seq: uint64(m.Seq), Text: m.Text, Token: m.Token, Cached: m.Cached, Index: int64(m.Index), Logprobs: logprobsToWire(m.Logprobs),
			Finish: string(m.Finish), Stop: m.Stop, Lost: m.Lost, Gap: m.Gap, Error: errorToWire(m.Err),
		})}
	case *Started:
		e.Body = &msgpb.Envelope_Started{Started: &msgpb.Started{AgeNs: int64(now.Sub(m.At))}}
	case *Lost:
		e.Body = &msgpb.Envelope_Lost{Lost: &msgpb.Lost{Seq: uint64(m.Seq), Why: m.Why}}
	case *Progress:
		e.Body = &msgpb.Envelope_Progress{Progress: &msgpb.Progress{
			Node: m.Node, Seqs: convert[uint64](m.Seqs), Generated: convert[int64](m.Generated), InStepNs: int64(m.InStep),
		}}
	case *ListBlocks:
		e.Body = &msgpb.Envelope_ListBlocks{ListBlocks: &msgpb.ListBlocks{Reply: pidToWire(m.Reply)}}
	case *Blocks:
		e.Body = &msgpb.Envelope_Blocks{Blocks: &msgpb.Blocks{Node: m.Node, Number: m.Number, Salt: m.Salt, Ids: m.IDs}}
	case *Prefetch:
		e.Body = &msgpb.Envelope_Prefetch{Prefetch: &msgpb.Prefetch{
			Reply: pidToWire(m.Reply), Source: sourceToWire(&m.Source), Space: m.Space, Tokens: m.Tokens, End: int64(m.End),
		}}
	case *Prefetched:
		e.Body = &msgpb.Envelope_Prefetched{Prefetched: &msgpb.Prefetched{Seq: uint64(m.Seq), Tokens: int64(m.Tokens), Full: m.Full}}
	case *Fetch:
		e.Body = &msgpb.Envelope_Fetch{Fetch: &msgpb.Fetch{
			Reply: pidToWire(m.Reply), Seq: uint64(m.Seq), SlabsOf: m.SlabsOf, Space: m.Space, Tokens: m.Tokens,
			First: int64(m.First), Count: int64(m.Count), Last: m.Last,
		}}
	case *Slab:
		e.Body = &msgpb.Envelope_Slab{Slab: &msgpb.Slab{
			Seq: uint64(m.Seq), Index: int64(m.Index), Have: int64(m.Have), Data: m.Data, Sum: m.Sum,
		}}
	default:
		return nil, fmt.Errorf("%w: %T", ErrLocal, m)
	}
	return e, nil
}

// Unmarshal is the message of an envelope; now is the receiver's time. What it
// returns can be handed to an actor: PIDs are there, numbers fit together.
func Unmarshal(e *msgpb.Envelope, now time.Time) (any, error) {
	var p pids
	var m any
	var err error
	switch b := e.GetBody().(type) {
	case *msgpb.Envelope_Tokenize:
		m, err = tokenizeFromWire(b.Tokenize, &p)
	case *msgpb.Envelope_Tokenized:
		t := b.Tokenized
		m = &Tokenized{Tokens: t.GetTokens(), Second: int(t.GetSecond()), Text: t.GetText(), Checked: t.GetChecked(),
			Thought: tools.Thought(t.GetThought()), Texts: t.GetTexts().ToTextTokens(), Answers: samplepb.ToSequences(t.GetAnswers()),
			Err: errorFromWire(t.GetError())}
	case *msgpb.Envelope_Detokenize:
		m = &Detokenize{Reply: p.get(b.Detokenize.GetReply()), Tokens: b.Detokenize.GetTokens()}
	case *msgpb.Envelope_Detokenized:
		m = &Detokenized{Text: b.Detokenized.GetText(), Err: errorFromWire(b.Detokenized.GetError())}
	case *msgpb.Envelope_OpenText:
		t := b.OpenText
		m = &OpenText{
			Seq: SeqID(t.GetSeq()), Reply: p.get(t.GetReply()), Compute: p.get(t.GetCompute()), History: t.GetHistory(),
			Options: detok.Options{Stop: t.GetStop(), IncludeStop: t.GetIncludeStop(), KeepSpecial: t.GetKeepSpecial(), Keep: t.GetKeep()},
			Trace:   traceFromWire(t.GetTrace()),
		}
	case *msgpb.Envelope_CloseText:
		m = &CloseText{Seq: SeqID(b.CloseText.GetSeq()), Owner: b.CloseText.GetOwner()}
	case *msgpb.Envelope_Generate:
		m, err = generateFromWire(b.Generate, &p, now)
	case *msgpb.Envelope_Redirect:
		t := b.Redirect
		if t.GetFrom() < 0 {
			return nil, fmt.Errorf("%w: redirect from token %d", ErrWire, t.GetFrom())
		}
		m = &Redirect{
			Seq: SeqID(t.GetSeq()), Reply: p.get(t.GetReply()), Watch: p.get(t.GetWatch()), Detok: p.get(t.GetDetok()),
			From: int(t.GetFrom()),
		}
	case *msgpb.Envelope_Find:
		m = &Find{RequestID: b.Find.GetRequestId(), Reply: p.get(b.Find.GetReply()), End: b.Find.GetEnd()}
	case *msgpb.Envelope_Found:
		t := b.Found
		if t.GetFirst() < 0 || t.GetCompute() == nil {
			return nil, fmt.Errorf("%w: found sequences from choice %d on at worker %q", ErrWire, t.GetFirst(), t.GetCompute().GetAddress())
		}
		m = &Found{
			Seqs: convert[SeqID](t.GetSeqs()), First: int(t.GetFirst()), Compute: p.get(t.GetCompute()),
			Pin: api.Pin{Numerics: t.GetNumerics(), Text: t.GetText(), Prompt: t.GetPrompt()},
		}
	case *msgpb.Envelope_Cancel:
		m = &Cancel{Seq: SeqID(b.Cancel.GetSeq()), Owner: b.Cancel.GetOwner()}
	case *msgpb.Envelope_Tokens:
		m = tokensFromWire(b.Tokens)
	case *msgpb.Envelope_Text:
		t := b.Text
		m = &Text{
			Seq: SeqID(t.GetSeq()), Text: t.GetText(), Token: t.GetToken(), Cached: t.GetCached(), Index: int(t.GetIndex()),
			Logprobs: logprobsFromWire(t.GetLogprobs()), Extra: textExtraFromWire(t),
			Finish: api.Finish(t.GetFinish()), Stop: t.GetStop(), Lost: t.GetLost(), Gap: t.GetGap(), Err: errorFromWire(t.GetError()),
		}
	case *msgpb.Envelope_Started:
		m = &Started{At: now.Add(-time.Duration(b.Started.GetAgeNs()))}
	case *msgpb.Envelope_Lost:
		m = &Lost{Seq: SeqID(b.Lost.GetSeq()), Why: b.Lost.GetWhy()}
	case *msgpb.Envelope_Progress:
		t := b.Progress
		if len(t.GetSeqs()) != len(t.GetGenerated()) {
			return nil, fmt.Errorf("%w: progress of %d sequences with %d counts", ErrWire, len(t.GetSeqs()), len(t.GetGenerated()))
		}
		m = &Progress{
			Node: t.GetNode(), Seqs: convert[SeqID](t.GetSeqs()), Generated: convert[int](t.GetGenerated()),
			InStep: time.Duration(t.GetInStepNs()),
		}
	case *msgpb.Envelope_ListBlocks:
		m = &ListBlocks{Reply: p.get(b.ListBlocks.GetReply())}
	case *msgpb.Envelope_Blocks:
		t := b.Blocks
		m = &Blocks{Node: t.GetNode(), Number: t.GetNumber(), Salt: t.GetSalt(), IDs: t.GetIds()}
	case *msgpb.Envelope_Prefetch:
		t := b.Prefetch
		if t.GetEnd() < 0 {
			return nil, fmt.Errorf("%w: sequence of %d tokens", ErrWire, t.GetEnd())
		}
		m = &Prefetch{Reply: p.get(t.GetReply()), Source: *sourceFromWire(t.GetSource(), &p), Space: t.GetSpace(), Tokens: t.GetTokens(),
			End: int(t.GetEnd())}
	case *msgpb.Envelope_Prefetched:
		m = &Prefetched{Seq: SeqID(b.Prefetched.GetSeq()), Tokens: int(b.Prefetched.GetTokens()), Full: b.Prefetched.GetFull()}
	case *msgpb.Envelope_Fetch:
		t := b.Fetch
		if t.GetFirst() < 0 || t.GetCount() < 0 {
			return nil, fmt.Errorf("%w: fetch of %d slabs from %d on", ErrWire, t.GetCount(), t.GetFirst())
		}
		m = &Fetch{
			Reply: p.get(t.GetReply()), Seq: SeqID(t.GetSeq()), SlabsOf: t.GetSlabsOf(), Space: t.GetSpace(), Tokens: t.GetTokens(),
			First: int(t.GetFirst()), Count: int(t.GetCount()), Last: t.GetLast(),
		}
	case *msgpb.Envelope_Slab:
		t := b.Slab
		m = &Slab{Seq: SeqID(t.GetSeq()), Index: int(t.GetIndex()), Have: int(t.GetHave()), Data: t.GetData(), Sum: t.GetSum()}
	default:
		return nil, fmt.Errorf("%w: no body that is known here, of a newer version?", ErrWire)
	}
	if err == nil && p.missing {
		err = fmt.Errorf("%w: a %T without an actor to answer to", ErrWire, m)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

// pids reads PIDs that a message must have.
type pids struct{ missing bool }

func (p *pids) get(w *msgpb.PID) *actor.PID {
	if w.GetAddress() == "" || w.GetId() == "" {
		p.missing = true
		return nil
	}
	return actor.NewPID(w.GetAddress(), w.GetId())
}

func pidToWire(p *actor.PID) *msgpb.PID {
	if p == nil {
		return nil
	}
	return &msgpb.PID{Address: p.Address, Id: p.Id}
}

func sourceToWire(s *Source) *msgpb.Source {
	if s == nil {
		return nil
	}
	return &msgpb.Source{Kv: pidToWire(s.KV), Seq: uint64(s.Seq), Dead: s.Dead, Complete: s.Complete}
}

func sourceFromWire(w *msgpb.Source, p *pids) *Source {
	return &Source{KV: p.get(w.GetKv()), Seq: SeqID(w.GetSeq()), Dead: w.GetDead(), Complete: w.GetComplete()}
}

func traceToWire(p tracing.Parent) *msgpb.Trace {
	parent, state := tracing.Encode(p)
	if parent == "" {
		return nil
	}
	return &msgpb.Trace{Traceparent: parent, Tracestate: state}
}

func traceFromWire(t *msgpb.Trace) tracing.Parent {
	return tracing.Decode(t.GetTraceparent(), t.GetTracestate())
}

func convert[To, From ~int | ~int64 | ~uint64](list []From) []To {
	if list == nil {
		return nil
	}
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = To(v)
	}
	return out
}

func errorToWire(err error) *msgpb.Error {
	if err == nil {
		return nil
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		e = &api.Error{Code: api.CodeInternal, Message: err.Error()}
	}
	return &msgpb.Error{Code: int32(e.Code), Param: e.Param, Message: e.Message, Reason: e.Reason, RetryAfterNs: int64(e.RetryAfter)}
}

func errorFromWire(e *msgpb.Error) error {
	if e == nil {
		return nil
	}
	return &api.Error{
		Code: api.Code(e.GetCode()), Param: e.GetParam(), Message: e.GetMessage(), Reason: e.GetReason(),
		RetryAfter: time.Duration(e.GetRetryAfterNs()),
	}
}

func tokenizeToWire(m *Tokenize) (*msgpb.Tokenize, error) {
	in := m.Input
	if in == nil {
		in = &api.TokenizeRequest{}
	}
	t := &msgpb.Tokenize{
		Grammar: grammarpb.FromSpec(m.Grammar), Texts: samplepb.FromTexts(m.Texts), Tenant: m.Tenant, OnlyGrammar: m.Input == nil,
		Reply: pidToWire(m.Reply), Model: in.Model, Prompt: []byte(in.Prompt), Second: []byte(in.Second),
		AddSpecialTokens: in.AddSpecialTokens, ContinueFinal: in.ContinueFinal, NoGenerationPrompt: in.NoGenerationPrompt,
		Truncate: in.Truncate, Answers: m.Answers, Trace: traceToWire(m.Trace),
	}
	if !in.Clock.IsZero() {
		ns := in.Clock.UnixNano()
		t.ClockNs = &ns
	}
	var err error
	if t.Messages, t.Tools, t.TemplateArgs, err = api.EncodeChat(in.Messages, in.Tools, in.TemplateArgs); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWire, err)
	}
	return t, nil
}

func tokenizeFromWire(t *msgpb.Tokenize, p *pids) (*Tokenize, error) {
	in := &api.TokenizeRequest{
		Model: t.GetModel(), Prompt: string(t.GetPrompt()), Second: string(t.GetSecond()), AddSpecialTokens: t.GetAddSpecialTokens(),
		ContinueFinal: t.GetContinueFinal(), NoGenerationPrompt: t.GetNoGenerationPrompt(), Truncate: t.GetTruncate(),
	}
	if t.ClockNs != nil {
		in.Clock = time.Unix(0, t.GetClockNs())
	}
	var err error
	if in.Messages, in.Tools, in.TemplateArgs, err = api.DecodeChat(t.GetMessages(), t.GetTools(), t.GetTemplateArgs()); err != nil {
		return nil, fmt.Errorf("%w: tokenize: %w", ErrWire, err)
	}
	m := &Tokenize{Reply: p.get(t.GetReply()), Input: in, Tenant: t.GetTenant(), Texts: t.GetTexts().ToTexts(), Answers: t.GetAnswers(),
		Trace: traceFromWire(t.GetTrace())}
	if t.GetOnlyGrammar() {
		m.Input = nil
	}
	m.Grammar, err = grammarFromWire(t.GetGrammar())
	return m, err
}

// grammarFromWire returns nil for nil.
func grammarFromWire(w *grammarpb.Spec) (*grammar.Spec, error) {
	s := w.ToSpec()
	if s == nil {
		return nil, nil
	}
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWire, err)
	}
	return s, nil
}

func generateToWire(g *Generate, now time.Time) *msgpb.Generate {
	w := &msgpb.Generate{
		Seq: uint64(g.Seq), Choices: convert[uint64](g.Choices), First: int64(g.First), RequestId: g.RequestID, Text: g.Text,
		Reply: pidToWire(g.Reply), Watch: pidToWire(g.Watch), Detok: pidToWire(g.Detok),
		Prompt: g.Prompt, Second: int32(g.Second), Generated: g.Generated, MaxTokens: int64(g.MaxTokens), StopTokens: g.StopTokens,
		Sampling: samplepb.FromParams(&g.Sampling), Beams: samplepb.FromBeams(g.Beams),
		Tenant: g.Tenant, CacheSalt: g.CacheSalt, Weight: int64(g.Weight), Migrated: g.Migrated, Priority: int64(g.Priority),
		AgeNs: int64(now.Sub(g.Arrival)), Trace: traceToWire(g.Trace), Source: sourceToWire(g.Source),
		Grammar: grammarpb.FromSpec(g.Grammar), Longest: g.Longest,
	}
	if g.Scored != nil {
		n := int32(*g.Scored)
		w.Scored = &n
	}
	if g.Pool != nil {
		w.Pool = &msgpb.Pool{Pooling: string(g.Pool.Pooling), Tokens: g.Pool.Tokens}
	}
	if !g.Deadline.IsZero() {
		left := int64(g.Deadline.Sub(now))
		w.DeadlineInNs = &left
	}
	return w
}

func generateFromWire(w *msgpb.Generate, p *pids, now time.Time) (*Generate, error) {
	g := &Generate{
		Seq: SeqID(w.GetSeq()), Choices: convert[SeqID](w.GetChoices()), First: int(w.GetFirst()), RequestID: w.GetRequestId(),
		Text: w.GetText(), Reply: p.get(w.GetReply()), Watch: p.get(w.GetWatch()), Detok: p.get(w.GetDetok()),
		Prompt: w.GetPrompt(), Second: int(w.GetSecond()), Generated: w.GetGenerated(), MaxTokens: int(w.GetMaxTokens()),
		StopTokens: w.GetStopTokens(), Sampling: w.GetSampling().ToParams(), Beams: w.GetBeams().ToBeams(),
		Tenant: w.GetTenant(), CacheSalt: w.GetCacheSalt(), Weight: int(w.GetWeight()), Migrated: w.GetMigrated(),
		Priority: int(w.GetPriority()), Arrival: now.Add(-time.Duration(w.GetAgeNs())), Trace: traceFromWire(w.GetTrace()),
		Longest: w.GetLongest(),
	}
	var err error
	if g.Grammar, err = grammarFromWire(w.GetGrammar()); err != nil {
		return nil, err
	}
	if w.Scored != nil {
		n := int(w.GetScored())
		g.Scored = &n
	}
	if p := w.GetPool(); p != nil {
		g.Pool = &api.Pool{Pooling: api.Pooling(p.GetPooling()), Tokens: p.GetTokens()}
	}
	if w.GetSource() != nil {
		g.Source = sourceFromWire(w.GetSource(), p)
	}
	if w.DeadlineInNs != nil {
		g.Deadline = now.Add(time.Duration(w.GetDeadlineInNs()))
	}
	return g, g.validate()
}

// validate checks what the worker relies on; what needs the vocabulary is
// checked there.
func (g *Generate) validate() error {
	switch {
	case len(g.Choices) == 0 || g.Choices[0] != g.Seq:
		return fmt.Errorf("%w: generate %d: expected its sequence as the first choice", ErrWire, g.Seq)
	case g.Beams == nil && len(g.Choices) > 1:
		return fmt.Errorf("%w: generate %d: %d choices without beams, expected 1", ErrWire, g.Seq, len(g.Choices))
	case len(g.Prompt) == 0:
		return fmt.Errorf("%w: generate %d: no prompt", ErrWire, g.Seq)
	case g.MaxTokens < max(len(g.Generated), 1):
		return fmt.Errorf("%w: generate %d: at most %d tokens, of which %d are there", ErrWire, g.Seq, g.MaxTokens, len(g.Generated))
	}
	if err := g.Sampling.Validate(); err != nil {
		return fmt.Errorf("%w: generate %d: %w", ErrWire, g.Seq, err)
	}
	if g.Scored != nil && (*g.Scored < 0 || *g.Scored > sample.MaxTopLogprobs) {
		return fmt.Errorf("%w: generate %d: %d alternatives for a token of the prompt, expected 0 to %d", ErrWire, g.Seq, *g.Scored,
			sample.MaxTopLogprobs)
	}
	if g.Scored != nil && g.Pool != nil && g.Pool.Pooling != api.PoolNone {
		return fmt.Errorf("%w: generate %d: log probabilities of the prompt with a vector", ErrWire, g.Seq)
	}
	if g.Pool != nil {
		if err := g.Pool.Validate(); err != nil {
			return fmt.Errorf("%w: generate %d: %w", ErrWire, g.Seq, err)
		}
	}
	if g.Beams == nil {
		return nil
	}
	if err := g.Beams.Validate(); err != nil {
		return fmt.Errorf("%w: generate %d: %w", ErrWire, g.Seq, err)
	}
	if len(g.Choices) > g.Beams.Width || len(g.Generated) > 0 {
		return fmt.Errorf("%w: generate %d: %d choices of %d beams after %d tokens", ErrWire, g.Seq, len(g.Choices), g.Beams.Width,
			len(g.Generated))
	}
	return nil
}

// Kind is the last part of the subject that a message travels on: what a role may
// send is what it may publish to. "" for what does not travel.
func Kind(m any) string {
	switch m.(type) {
	case *Tokenize, *Detokenize:
		return "tokenize"
	case *Tokenized, *Detokenized:
		return "tokenized"
	case *OpenText, *CloseText:
		return "open"
	case *Generate, *Find, *Redirect, *ListBlocks, *Prefetch:
		return "generate"
	case *Cancel:
		return "cancel"
	case *Tokens:
		return "tokens"
	case *Text:
		return "text"
	case *Started, *Found, *Lost, *Progress, *Blocks, *Prefetched:
		return "progress"
	case *Fetch, *Slab:
		return "slabs"
	}
	return ""
}
