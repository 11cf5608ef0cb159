package grammar

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// allowed are the tokens of a mask.
func allowed(t *testing.T, m *Matcher) string {
	t.Helper()
	mask := NewMask(len(fakeTokens) + 7)
	require.NoError(t, m.Mask(mask))
	var list []string
	for id := range 32 * len(mask) {
		if mask.Allows(int32(id)) && id < len(fakeTokens) {
			list = append(list, fakeTokens[id])
		}
	}
	require.False(t, mask.Allows(int32(len(fakeTokens)+7)), "a token that the model lacks")
	return strings.Join(list, " ")
}

func matcher(t *testing.T, e *fakeEngine, s *Spec, o Options) *Matcher {
	t.Helper()
	o.Vocab = len(fakeTokens) + 7
	s.Kind, s.Param = Regex, "guided_regex"
	m, err := NewCompiler(func() (Engine, error) { return e, nil }).Matcher("t", s, o, nil)
	require.NoError(t, err)
	return m
}

func advance(t *testing.T, m *Matcher, text string) {
	t.Helper()
	for _, id := range ids(text) {
		ok, err := m.Advance(id)
		require.NoError(t, err)
		require.True(t, ok, "%q in %q", fakeTokens[id], text)
	}
}

func refuses(t *testing.T, m *Matcher, token string) {
	t.Helper()
	before := allowed(t, m)
	ok, err := m.Advance(ids(token)[0])
	require.NoError(t, err)
	require.False(t, ok, token)
	require.Equal(t, before, allowed(t, m), "a refused token changes nothing")
}

func TestAnAnswerFollowsItsGrammarAndThenEnds(t *testing.T) {
	m := matcher(t, &fakeEngine{}, &Spec{Source: "abc"}, Options{})
	require.Equal(t, "a", allowed(t, m))
	refuses(t, m, "b")
	advance(t, m, "a b")
	require.Equal(t, "c </s> <end>", allowed(t, m), "it may end here")
	advance(t, m, "c")
	require.True(t, m.Ended())
	require.Equal(t, "</s> <end>", allowed(t, m), "all ends of the model")
	refuses(t, m, "a")
	advance(t, m, "<end>")
}

func TestWithIgnoreEOSAnAnswerEndsOnlyWhereNothingElseMayFollow(t *testing.T) {
	m := matcher(t, &fakeEngine{}, &Spec{Source: "abc"}, Options{Longest: true})
	advance(t, m, "a b")
	require.Equal(t, "c", allowed(t, m))
	advance(t, m, "c")
	require.Equal(t, "</s> <end>", allowed(t, m))
}

// TestAGrammarBeginsAfterItsMarker: in whatever tokens the marker comes, and none has a part of the grammar.
func TestAGrammarBeginsAfterItsMarker(t *testing.T) {
	for _, text := range []string{"</t>", "< / t >", "a b < < / t >", "< / a</t>", "c > </t>"} {
		m := matcher(t, &fakeEngine{}, &Spec{Source: "b", After: "</t>"}, Options{})
		require.NotContains(t, strings.Fields(allowed(t, m)), "</s>", "no end before the marker")
		refuses(t, m, "</t>b")
		refuses(t, m, "</s>")
		advance(t, m, text)
		require.Equal(t, "b", allowed(t, m), text)
	}
	m := matcher(t, &fakeEngine{}, &Spec{Source: "b", After: "</t>"}, Options{})
	advance(t, m, "< / t")
	refuses(t, m, ">b")
	advance(t, m, "a >b")
}

func TestAnOptionalGrammarLeavesTextWithoutItsMarkerFree(t *testing.T) {
	m := matcher(t, &fakeEngine{}, &Spec{Source: "b", After: "</t>", Optional: true}, Options{})
	require.False(t, m.Free(), "</t>b may not come")
	advance(t, m, "a </s>")
	m = matcher(t, &fakeEngine{}, &Spec{Source: "b", After: "cab", Optional: true}, Options{})
	require.True(t, m.Free())
	advance(t, m, "c a")
	require.True(t, m.Free())
	advance(t, m, "b")
	require.False(t, m.Free())
	advance(t, m, "b")
	require.True(t, m.Ended())
}

// TestNoMarkerCountsInASkippedPart: a model that thinks about calls does not begin one.
func TestNoMarkerCountsInASkippedPart(t *testing.T) {
	skip := Spec{Source: "b", After: "</t>", SkipFrom: "<a>", SkipTo: "c>", Optional: true, Repeat: true}
	inside := skip
	inside.SkipFrom = ""
	for _, c := range []struct {
		spec Spec
		text string
	}{
		{skip, "< a > < / t > a </t> </t>b c > a </t>"}, {skip, "< a > c b c > < / t >"},
		{inside, "</t> < / t >b c a c > </t>"}, {inside, "a c >b </t>"},
		{skip, "< / t >"}, {skip, "< b </t>"}, {skip, "a < a > </t>"}, {skip, "< < / t >"}, // it did not begin at once
	} {
		m := matcher(t, &fakeEngine{}, &c.spec, Options{})
		text := strings.Fields(c.text)
		advance(t, m, strings.Join(text[:len(text)-1], " "))
		require.Contains(t, strings.Fields(allowed(t, m)), "a", "%q: anything may come", c.text)
		advance(t, m, text[len(text)-1])
		require.Equal(t, "b", allowed(t, m), c.text)
		advance(t, m, "b < a > </t>")
		require.Equal(t, "b", allowed(t, m), "after a call nothing is skipped")
	}
	m := matcher(t, &fakeEngine{}, &skip, Options{})
	refuses(t, m, "</t>b")
	advance(t, m, "< a >")
	require.True(t, m.Free(), "no token here ends both texts")
	advance(t, m, "</t>b c > a </s>")
	require.NoError(t, m.Rollback(3))
	require.True(t, m.Free())
	advance(t, m, "</t> > c > </t>")
	require.Equal(t, "b", allowed(t, m))
}

func TestARepeatedGrammarBeginsAgainAfterEachMarker(t *testing.T) {
	e := &fakeEngine{}
	m := matcher(t, e, &Spec{Source: "ab", After: "</t>", Optional: true, Repeat: true}, Options{})
	advance(t, m, "c </t> a b c a </t> a")
	require.Equal(t, "b", allowed(t, m))
	m.Commit()
	require.EqualValues(t, 1, e.live.Load(), "earlier automatons are freed")
	advance(t, m, "b c </s>")
	m.Close()
	require.Zero(t, e.live.Load())
}

// TestRollbackLeadsBackToEveryPlace: over beginnings and ends of the grammar, at random.
func TestRollbackLeadsBackToEveryPlace(t *testing.T) {
	e := &fakeEngine{}
	text := ids("a < / t > a b c a</t> a b c b </t> a b </s>")
	spec := Spec{Source: "ab", After: "</t>", Optional: true, Repeat: true}
	var want []string
	m := matcher(t, e, &spec, Options{})
	for _, id := range text {
		want = append(want, allowed(t, m))
		ok, err := m.Advance(id)
		require.True(t, ok && err == nil)
	}
	require.Equal(t, "a", want[5])
	require.NoError(t, m.Rollback(len(text)))
	rng := rand.New(rand.NewPCG(1, 2))
	for at, first, range1000 := 0, 0, 0; range1000 < 1000; range1000++ {
		if n := rng.IntN(len(text) - at + 1); rng.IntN(2) == 0 {
			for _, id := range text[at : at+n] {
				ok, err := m.Advance(id)
				require.True(t, ok && err == nil)
			}
			at += n
		} else if n := rng.IntN(at - first + 1); true {
			require.NoError(t, m.Rollback(n))
			at -= n
		}
		if at < len(text) {
			require.Equal(t, want[at], allowed(t, m), "at %d", at)
		}
		if range1000 == 900 {
			m.Commit()
			first = at
			require.Error(t, m.Rollback(1))
		}
	}
	m.Close()
	m.Close()
	require.Zero(t, e.live.Load())
}

func TestAReplayedMatcherIsWhereTheSequenceIs(t *testing.T) {
	c := NewCompiler(func() (Engine, error) { return &fakeEngine{}, nil })
	s := &Spec{Kind: Regex, Source: "abc", Param: "guided_regex", After: "</t>"}
	m, err := c.Matcher("t", s, Options{Vocab: 20}, ids("c a</t> a b"))
	require.NoError(t, err)
	require.Equal(t, "c </s> <end>", allowed(t, m))
	_, err = c.Matcher("t", s, Options{Vocab: 20}, ids("c a</t> b"))
	require.ErrorIs(t, err, ErrToken)
}

func TestAMaskThatAllowsNothingIsAnError(t *testing.T) {
	m := matcher(t, &fakeEngine{}, &Spec{Source: "x"}, Options{})
	require.ErrorIs(t, m.Mask(NewMask(20)), ErrToken)
}

// TestReasoningMayComeFirst: a grammar with an opening holds from the first token on, unless the answer begins with the opening.
func TestReasoningMayComeFirst(t *testing.T) {
	e := &fakeEngine{}
	spec := func() *Spec { return &Spec{Source: "abc", Opening: "<t>", After: "</t>"} }
	m := matcher(t, e, spec(), Options{})
	require.Equal(t, "a <", allowed(t, m))
	refuses(t, m, "b")
	advance(t, m, "a b c")
	require.True(t, m.Ended(), "it did not reason")
	m.Close()

	m = matcher(t, e, spec(), Options{})
	advance(t, m, "<")
	require.Equal(t, "t", allowed(t, m), "the grammar is out")
	refuses(t, m, "a")
	advance(t, m, "t >b")
	require.NotContains(t, allowed(t, m), "</s>", "reasoning has to end")
	advance(t, m, "c </t>")
	require.Equal(t, "a", allowed(t, m))
	require.NoError(t, m.Rollback(5))
	require.Equal(t, "a <", allowed(t, m))
	advance(t, m, "a b")
	m.Commit()
	m.Close()

	both := &Spec{Source: "<tb", Opening: "<t>", After: "</t>"}
	m = matcher(t, e, both, Options{})
	require.Equal(t, "<", allowed(t, m))
	advance(t, m, "<")
	n, err := m.Forced(make([]int32, 3))
	require.Zero(t, n, "what the grammar forces is not all that may come")
	require.NoError(t, err)
	advance(t, m, "t")
	require.Equal(t, "b > >b", allowed(t, m), "both may be meant")
	advance(t, m, "b")
	require.True(t, m.Ended())
	require.NoError(t, m.Rollback(1))
	advance(t, m, "> a </t> <")
	require.NoError(t, m.Rollback(5))
	require.Equal(t, "t", allowed(t, m))
	m.Close()
	require.Zero(t, e.live.Load(), "each automaton is freed")
}
