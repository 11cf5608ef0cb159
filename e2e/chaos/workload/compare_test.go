package workload

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

func answer(text string, ids ...int32) *Answer {
	return &Answer{
		Choices: []Choice{{Text: text, Tokens: ids, Finish: "length"}},
		Usage:   client.Usage{CompletionTokens: len(ids)},
	}
}

func TestEveryDeviationHasItsVerdict(t *testing.T) {
	expected := answer("abcd", 1, 2, 3, 4)
	cut := answer("ab", 1, 2)
	cut.Err = errors.New("connection refused")
	noEqual, wrongNoEqual := answer("ab", 1, 2), answer("ac", 1, 3)
	noEqual.Err = &client.Error{Status: 503, Code: "no_equal_worker"}
	wrongNoEqual.Err = noEqual.Err
	otherEnd := answer("abcd", 1, 2, 3, 4)
	otherEnd.Choices[0].Finish = "stop"
	otherUsage := answer("abcd", 1, 2, 3, 4)
	otherUsage.Usage.PromptTokens = 1
	otherReasoning, otherCalls := answer("abcd", 1, 2, 3, 4), answer("abcd", 1, 2, 3, 4)
	otherReasoning.Choices[0].Reasoning = "so"
	otherCalls.Choices[0].Calls = []client.FunctionCall{{Name: "f", Arguments: "{}"}}
	otherLogprobs := answer("abcd", 1, 2, 3, 4)
	otherLogprobs.Choices[0].Logprobs = map[string][]json.RawMessage{"tokens": {[]byte(`"a"`)}}
	for _, c := range []struct {
		found *Answer
		want  Verdict
	}{
		{answer("abcd", 1, 2, 3, 4), Whole},
		{cut, Lost},
		{answer("abbcd", 1, 2, 2, 3, 4), Duplicated},
		{answer("abcdabcd", 1, 2, 3, 4, 1, 2, 3, 4), Duplicated},
		{answer("abd", 1, 2, 4), Missing},
		{answer("abc", 1, 2, 3), Missing},
		{answer("abce", 1, 2, 3, 5), Spliced},
		{answer("abdc", 1, 2, 4, 3), Spliced},
		{answer("efgh", 5, 6, 7, 8), Differing},
		{noEqual, NoEqual},
		{wrongNoEqual, Spliced},
		{answer("abce", 1, 2, 3, 4), Differing},
		{otherEnd, Differing},
		{otherUsage, Differing},
		{otherReasoning, Differing},
		{otherCalls, Differing},
		{otherLogprobs, Differing},
	} {
		got, err := Compare(expected, c.found)
		require.Equal(t, c.want, got, "%+v: %v", c.found, err)
		require.Equal(t, c.want == Whole, err == nil)
		o := Judge([]*Oracle{{Kind: "A", Answers: map[int]*Answer{7: expected}}}, []Result{{Stream: &Stream{ID: 7}, Answer: c.found}})
		require.Equal(t, c.want == Whole || c.want == NoEqual, o.Good())
	}
}

func TestDetailsOfTheUsageAreCompared(t *testing.T) {
	reasoned := func(tokens int) *Answer {
		a := answer("a", 1)
		a.Usage.CompletionDetails = &client.CompletionDetails{ReasoningTokens: tokens}
		return a
	}
	got, _ := Compare(reasoned(1), reasoned(1))
	require.Equal(t, Whole, got)
	got, _ = Compare(reasoned(1), reasoned(0))
	require.Equal(t, Differing, got)
}

func TestStreamsOfASeedAreAlwaysTheSame(t *testing.T) {
	tenants := []string{"a", "b", "c", "d"}
	a, b := Streams(88, 50, 3, tenants), Streams(88, 50, 3, tenants)
	require.Equal(t, a, b)
	require.NotEqual(t, a, Streams(88, 50, 4, tenants))
	ways, ids := map[string]bool{}, map[string]bool{}
	for _, s := range a {
		ways[s.Kind+s.Way.Over] = true
		ids[s.Way.Over+s.Way.Tenant] = true
		id := s.Way.Tenant + s.requestID(1, 0)
		require.False(t, ids[id], "a request id is a tenant's once")
		ids[id] = true
	}
	require.Len(t, ways, 2*len(kinds), "every kind over every transport")
}

func TestAGapIsCountedWhereTheFaultIsInIt(t *testing.T) {
	at := func(ms ...int) (all []time.Time) {
		for _, m := range ms {
			all = append(all, time.UnixMilli(int64(m)))
		}
		return all
	}
	results := []Result{
		{Answer: &Answer{Arrivals: at(0, 10, 20, 720, 730)}},   // a gap of 700
		{Answer: &Answer{Arrivals: at(0, 10, 20, 30, 5000)}},   // one of 4970, from within the second on
		{Answer: &Answer{Arrivals: at(100, 9000)}},             // not yet there
		{Answer: &Answer{Arrivals: at(0, 10)}},                 // gone
		{Answer: &Answer{Arrivals: at(0, 15, 30, 2000, 3000)}}, // 1970 begins within, 1000 does not
	}
	require.Equal(t, Gaps{Count: 3, P50: 1970, P99: 4970, Max: 4970}, GapsAt(results, at(22)))
	require.Equal(t, Gaps{Count: 14, P50: 10, P99: 8900, Max: 8900}, AllGaps(results))
}
