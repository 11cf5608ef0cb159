package worker

import (
	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
)

// answered is what a worker has of an answer, to send it to another detokenizer.
type answered struct {
	tokens []int32
	scored bool   // its tokens have log probabilities
	scores scores // of its last tokens
	cached int32  // as msg.Token
	finish api.Finish
}

// score is the log probability of a token.
type score struct {
	logprob float32
	top     []sample.Alternative
}

// scores are those of the last tokens of an answer.
type scores []score

// mostScores is how many tokens keep their log probabilities: more than a gateway lacks that takes a
// request over.
const mostScores = 1024

// keep adds the log probability of the next token.
func (list *scores) keep(s score) {
	if len(*list) == 2*mostScores {
		*list = append((*list)[:0], (*list)[mostScores:]...)
	}
	*list = append(*list, s)
}

// has reports whether the tokens from an index on can be sent again. Those that another worker has
// computed have no log probabilities here.
func (a *answered) has(from int) bool {
	return from <= len(a.tokens) && (!a.scored || from >= len(a.tokens)-len(a.scores))
}

// from lists the tokens from an index on, the last one with the end.
func (a *answered) from(from int, seq msg.SeqID) (list []msg.Token) {
	for i := from; i < len(a.tokens); i++ {
		t := msg.Token{Seq: seq, ID: a.tokens[i], Index: i, Cached: a.cached}
		if a.scored {
			s := a.scores[len(a.scores)-len(a.tokens)+i]
			t.Logprob, t.Top = s.logprob, s.top
		}
		list = append(list, t)
	}
	switch n := len(list); {
	case a.finish == api.FinishNone:
	case n == 0:
		list = append(list, msg.Token{Seq: seq, ID: -1, Index: from, Finish: a.finish})
	default:
		list[n-1].Finish, list[n-1].Stopped = a.finish, a.finish == api.FinishStop
	}
	return list
}
