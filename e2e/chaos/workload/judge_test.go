package workload

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

func TestAnAnswerIsWhollyThatOfOnePool(t *testing.T) {
	stream := &Stream{ID: 1}
	a := &Oracle{Kind: "A", Answers: map[int]*Answer{1: answer("abcd", 1, 2, 3, 4)}}
	b := &Oracle{Kind: "B", Answers: map[int]*Answer{1: answer("abef", 1, 2, 5, 6)}}
	ends := func(code string, ids ...int32) *Answer {
		x := answer("", ids...)
		x.Err = &client.Error{Status: 503, Code: code}
		return x
	}
	for name, c := range map[string]struct {
		found *Answer
		want  Outcome
	}{
		"of A":                           {answer("abcd", 1, 2, 3, 4), Outcome{Completed: 1, ByKind: map[string]int{"A": 1}}},
		"of B":                           {answer("abef", 1, 2, 5, 6), Outcome{Completed: 1, ByKind: map[string]int{"B": 1}}},
		"of A, then of B":                {answer("abcf", 1, 2, 3, 6), Outcome{Spliced: 1}},
		"of B, then of neither":          {answer("abex", 1, 2, 5, 9), Outcome{Spliced: 1}},
		"of neither":                     {answer("xyz", 7, 8, 9), Outcome{Differing: 1}},
		"ended, a beginning of B's":      {ends("no_equal_worker", 1, 2, 5), Outcome{NoEqual: 1, EndedOf: map[string]int{"B": 1}}},
		"ended, a beginning of both":     {ends("no_equal_worker", 1, 2), Outcome{NoEqual: 1}},
		"ended, a beginning of neither":  {ends("no_equal_worker", 1, 9), Outcome{Spliced: 1}},
		"ended before its first token":   {ends("no_equal_worker"), Outcome{Lost: 1}},
		"ended with another error":       {ends("unavailable", 1, 2), Outcome{Lost: 1}},
		"A's without its end":            {answer("abc", 1, 2, 3), Outcome{Missing: 1}},
		"A's with a token that is twice": {answer("abbcd", 1, 2, 2, 3, 4), Outcome{Duplicated: 1}},
	} {
		o := Judge([]*Oracle{a, b}, []Result{{Stream: stream, Answer: c.found}})
		require.Equal(t, c.want.Completed+c.want.NoEqual == 1, o.Good(), name)
		o.Streams, o.Tokens, o.Wrong = 0, 0, nil
		if len(o.ByKind) == 0 {
			o.ByKind = nil
		}
		if len(o.EndedOf) == 0 {
			o.EndedOf = nil
		}
		require.Equal(t, c.want, o, name)
	}
	require.Equal(t, 1, Distinct(a, b))
	require.Zero(t, Distinct(a, a))
}

func TestAnUnseededStreamIsComparedWithItsReplay(t *testing.T) {
	stream := &Stream{ID: 1, Kind: KindUnseeded}
	first, again := answer("ab", 1, 2), answer("cd", 3, 4)
	oracle := &Oracle{Kind: "A", Answers: map[int]*Answer{1: first}, Replayed: map[string]*Answer{"x": first, "y": again}}
	judge := func(id string, found *Answer) Outcome {
		return Judge([]*Oracle{oracle}, []Result{{Stream: stream, RequestID: id, Answer: found}})
	}
	require.Equal(t, 1, judge("y", answer("cd", 3, 4)).Completed)
	require.Equal(t, 1, judge("y", answer("ab", 1, 2)).Differing, "the first round's seed is not the second's")
	o := judge("z", answer("ef", 5, 6))
	require.Equal(t, 1, o.Completed, "nothing to compare it with")
	require.Equal(t, 1, o.Unreplayed)
	other := &Oracle{Kind: "B", Replayed: map[string]*Answer{"y": first}}
	o = Judge([]*Oracle{oracle, other}, []Result{{Stream: stream, RequestID: "x", Answer: answer("ef", 5, 6)}})
	require.Equal(t, 1, o.Unreplayed, "the answer may be that of the oracle without a replay")
	require.Empty(t, o.ByKind)
	short := answer("ef", 5, 6)
	short.Usage.CompletionTokens = 3
	require.Equal(t, 1, judge("z", short).Missing, "a token that the usage counts is not there")
	lost := answer("ef", 5)
	lost.Err = errors.New("cut")
	require.Equal(t, 1, judge("z", lost).Lost)
	require.Equal(t, 1, Judge([]*Oracle{oracle}, []Result{{Stream: &Stream{ID: 2}, Answer: first}}).Differing,
		"a stream that no oracle knows")
}

func TestAFaultHitsWhatRunsAcrossIt(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms) }
	results := []Result{
		{Answer: &Answer{Arrivals: []time.Time{at(10), at(30)}}},
		{Answer: &Answer{Arrivals: []time.Time{at(20), at(40)}}},
		{Answer: &Answer{}},
	}
	hits, streams := Hits(results, []time.Time{at(5), at(25), at(35), at(50)})
	require.Equal(t, 2, hits)
	require.Equal(t, 3, streams)
}
