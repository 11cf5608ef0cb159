package msg

import (
	"github.com/millrace/millrace/actors/msg/msgpb"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

func tokensToWire(m *Tokens) *msgpb.Tokens {
	list := make([]msgpb.Token, len(m.Tokens)) //nolint:govet // never copied
	out := &msgpb.Tokens{Tokens: make([]*msgpb.Token, len(m.Tokens))}
	for i := range m.Tokens {
		t, w := &m.Tokens[i], &list[i]
		w.Seq, w.Id, w.Index, w.Logprob, w.Cached = uint64(t.Seq), t.ID, int64(t.Index), t.Logprob, t.Cached
		w.Stopped, w.Finish, w.Lost, w.Error = t.Stopped, string(t.Finish), t.Lost, errorToWire(t.Err)
		if t.Extra != nil {
			t.Extra.toWire(w)
		}
		w.Logprobs = t.Top != nil
		w.Top = alternativesToWire(t.Top)
		out.Tokens[i] = w
	}
	return out
}

func tokensFromWire(w *msgpb.Tokens) *Tokens {
	m := &Tokens{Tokens: make([]Token, len(w.GetTokens()))}
	for i, t := range w.GetTokens() {
		m.Tokens[i] = Token{
			Seq: SeqID(t.GetSeq()), ID: t.GetId(), Index: int(t.GetIndex()), Logprob: t.GetLogprob(), Cached: t.GetCached(),
			Stopped: t.GetStopped(), Finish: api.Finish(t.GetFinish()), Lost: t.GetLost(), Err: errorFromWire(t.GetError()),
			Extra: extraFromWire(t),
		}
		if !t.GetLogprobs() {
			continue
		}
		m.Tokens[i].Top = alternativesFromWire(t.GetTop())
	}
	return m
}

func (x *Extra) toWire(w *msgpb.Token) {
	w.Vector, w.Scored, w.First = x.Vector, x.Scored, x.First
	for _, s := range x.Prompt {
		w.Prompt = append(w.Prompt, &msgpb.Scored{Token: s.Token, Logprob: s.Logprob, Rank: int64(s.Rank), Top: alternativesToWire(s.Top)})
	}
}

func extraFromWire(t *msgpb.Token) *Extra {
	if t.GetVector() == nil && !t.GetScored() {
		return nil
	}
	x := &Extra{Vector: t.GetVector(), Scored: t.GetScored(), First: t.GetFirst()}
	for _, s := range t.GetPrompt() {
		x.Prompt = append(x.Prompt, sample.Scored{Token: s.GetToken(), Logprob: s.GetLogprob(), Rank: int(s.GetRank()),
			Top: alternativesFromWire(s.GetTop())})
	}
	return x
}

// textExtraToWire writes what few texts have.
func textExtraToWire(x *api.Extra, w *msgpb.Text) *msgpb.Text {
	if x != nil {
		w.Vector, w.Prompt = x.Vector, logprobsToWire(x.Prompt)
	}
	return w
}

func textExtraFromWire(w *msgpb.Text) *api.Extra {
	if w.GetVector() == nil && w.GetPrompt() == nil {
		return nil
	}
	return &api.Extra{Vector: w.GetVector(), Prompt: logprobsFromWire(w.GetPrompt())}
}

func alternativesToWire(list []sample.Alternative) []*msgpb.Alternative {
	out := make([]*msgpb.Alternative, len(list))
	for i, a := range list {
		out[i] = &msgpb.Alternative{Token: a.Token, Logprob: a.Logprob}
	}
	return out
}

func alternativesFromWire(list []*msgpb.Alternative) []sample.Alternative {
	out := make([]sample.Alternative, len(list))
	for i, a := range list {
		out[i] = sample.Alternative{Token: a.GetToken(), Logprob: a.GetLogprob()}
	}
	return out
}

func logprobsToWire(list []api.TokenLogprob) []*msgpb.Logprob {
	if list == nil {
		return nil
	}
	out := make([]*msgpb.Logprob, len(list))
	for i, l := range list {
		out[i] = &msgpb.Logprob{Token: l.Token, Text: l.Text, Bytes: l.Bytes, Logprob: l.Logprob, Rank: int64(l.Rank),
			Top: logprobsToWire(l.Top)}
	}
	return out
}

func logprobsFromWire(list []*msgpb.Logprob) []api.TokenLogprob {
	if list == nil {
		return nil
	}
	out := make([]api.TokenLogprob, len(list))
	for i, l := range list {
		out[i] = api.TokenLogprob{
			Token: l.GetToken(), Text: l.GetText(), Bytes: l.GetBytes(), Logprob: l.GetLogprob(), Rank: int(l.GetRank()),
			Top: logprobsFromWire(l.GetTop()),
		}
	}
	return out
}
