package gateway

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/tools"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sample"
)

func seqs() func() msg.SeqID {
	var n msg.SeqID
	return func() msg.SeqID { n++; return n }
}

func apiRequest(n, maxTokens int) *api.Request {
	return &api.Request{ID: "r", N: n, MaxTokens: maxTokens, TopLogprobs: -1}
}

// begin takes a prompt and starts every sequence.
func begin(t *testing.T, r *request, ids []int32, eos ...int32) []*msg.Generate {
	t.Helper()
	require.NoError(t, r.tokenized(prompt{ids: ids, eos: eos}))
	_, over := r.resumed()
	require.False(t, over)
	return startAll(r, seqs())
}

func startAll(r *request, nextID func() msg.SeqID) []*msg.Generate {
	var list []*msg.Generate
	for _, first := range r.waiting() {
		g, _ := r.start(first, nextID)
		list = append(list, g)
	}
	return list
}

func TestARequestThatDoesNotFitIsRefusedWithItsNumbers(t *testing.T) {
	lim := modelLimits{context: 100, pool: 64, vocab: 10}
	for _, c := range []struct {
		name              string
		prompt, maxTokens int
		message           string
	}{
		{"no tokens", 0, 1, "no tokens"},
		{"prompt fills the pool", 64, 0, "64 tokens, expected fewer than 64"},
		{"answer is too long", 60, 5, "max_tokens is 5 after a prompt of 60 tokens, expected at most 4"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := newRequest(apiRequest(1, c.maxTokens), lim).tokenized(prompt{ids: make([]int32, c.prompt)})
			var e *api.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, api.CodeInvalid, e.Code)
			require.Contains(t, e.Message, c.message)
		})
	}
	g := begin(t, newRequest(apiRequest(1, 0), lim), make([]int32, 60))
	require.Equal(t, 4, g[0].MaxTokens, "no max_tokens: up to the limit")
	for wanted, want := range map[int]int{3: 3, 4: 4, 5: 4, 1 << 24: 4} {
		q := apiRequest(1, wanted)
		q.ClipMaxTokens = true
		require.Equal(t, want, begin(t, newRequest(q, lim), make([]int32, 60))[0].MaxTokens, "clipped")
	}
}

// TestARequestThatIsTooLongSaysWhyTheContextIsShort, unless the pool is shorter.
func TestARequestThatIsTooLongSaysWhyTheContextIsShort(t *testing.T) {
	for pool, want := range map[int]string{
		100: "60 tokens, expected fewer than 50 (sequences are shorter here than the model's: it has no indexer)",
		40:  "60 tokens, expected fewer than 40 (context of the model 50 tokens, KV memory for 40)",
	} {
		r := newRequest(apiRequest(1, 1), modelLimits{context: 50, shortened: "it has no indexer", pool: pool, vocab: 10})
		require.ErrorContains(t, r.tokenized(prompt{ids: make([]int32, 60)}), want)
	}
}

// TestASequenceThatGivesSlabsBackMayBeLongerThanThePool, up to the context. A beam search may not.
func TestASequenceThatGivesSlabsBackMayBeLongerThanThePool(t *testing.T) {
	lim := modelLimits{context: 100, pool: 64, vocab: 10, slabTokens: 16, single: 1000}
	g := begin(t, newRequest(apiRequest(1, 0), lim), make([]int32, 70))
	require.Equal(t, 30, g[0].MaxTokens)
	err := newRequest(apiRequest(1, 31), lim).tokenized(prompt{ids: make([]int32, 70)})
	require.ErrorContains(t, err, "expected at most 30")
	q := apiRequest(1, 0)
	q.Beams = &sample.BeamParams{Width: 2}
	require.ErrorContains(t, newRequest(q, lim).tokenized(prompt{ids: make([]int32, 70)}), "leaves no room")
}

// TestAnUnlimitedAnswerNeedsNoRoomForAllOfIt: workers promise a predicted one.
func TestAnUnlimitedAnswerNeedsNoRoomForAllOfIt(t *testing.T) {
	lim := modelLimits{context: 5000, pool: 5000, vocab: 10}
	r := newRequest(apiRequest(2, 0), lim)
	begin(t, r, make([]int32, 100))
	require.Equal(t, 100+256, r.needs())
	r.choices[1].tokens = make([]int32, 900)
	require.Equal(t, 100+900, r.needs(), "it has them already")
	r = newRequest(apiRequest(1, 20), lim)
	begin(t, r, make([]int32, 100))
	require.Equal(t, 100+20, r.needs())
	q := apiRequest(1, 600)
	q.Beams = &sample.BeamParams{Width: 2}
	r = newRequest(q, modelLimits{context: 5000, pool: 5000, vocab: 10, slabTokens: 16})
	begin(t, r, make([]int32, 100))
	require.Equal(t, 100+600, r.needs(), "a beam search gets all of it at once")
}

func TestIgnoreEOSKeepsTheRequestsOwnStopTokens(t *testing.T) {
	lim := modelLimits{context: 100, pool: 100, vocab: 10}
	r := apiRequest(1, 5)
	r.StopTokens = []int32{9}
	g := begin(t, newRequest(r, lim), []int32{1}, 2, 6)
	require.Equal(t, []int32{9, 2, 6}, g[0].StopTokens)
	r.IgnoreEOS = true
	g = begin(t, newRequest(r, lim), []int32{1}, 2, 6)
	require.Equal(t, []int32{9}, g[0].StopTokens)
}

func TestOnlyTheLastChoiceEndsTheRequestAndUsageCountsAll(t *testing.T) {
	r := newRequest(apiRequest(2, 5), modelLimits{context: 100, pool: 100, vocab: 10})
	g := begin(t, r, []int32{1, 2, 3})
	require.NotEqual(t, g[0].Sampling.Seed, g[1].Sampling.Seed, "choices differ")

	e, v := r.text(&msg.Text{Seq: g[1].Seq, Token: 7, Text: "b", Finish: api.FinishStop})
	require.Equal(t, taken, v)
	require.Equal(t, api.Event{Choice: 1, Text: "b", Tokens: []int32{7}, Finish: api.FinishStop, Pin: &r.bond.pin}, e)
	_, v = r.text(&msg.Text{Seq: g[1].Seq, Token: 8, Index: 1})
	require.Equal(t, ignored, v, "an ended choice gets no more text")
	_, v = r.text(&msg.Text{Seq: 99, Token: 8})
	require.Equal(t, ignored, v, "an unknown sequence is ignored")

	_, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: 7, Text: "a"})
	e, v = r.text(&msg.Text{Seq: g[0].Seq, Token: 8, Index: 1, Finish: api.FinishLength})
	require.Equal(t, taken, v)
	require.True(t, e.Done)
	require.Equal(t, &api.Usage{PromptTokens: 3, CompletionTokens: 3}, e.Usage)
}

// TestUsageHasTheCachedTokensOfTheChoiceThatFoundLeast: they come with its first token, so that no other message can be late for the end.
func TestUsageHasTheCachedTokensOfTheChoiceThatFoundLeast(t *testing.T) {
	r := newRequest(apiRequest(2, 1), modelLimits{context: 100, pool: 100, vocab: 10})
	g := begin(t, r, make([]int32, 50))
	_, v := r.text(&msg.Text{Seq: g[0].Seq, Token: 5, Cached: 49, Finish: api.FinishLength})
	require.Equal(t, taken, v)
	e, _ := r.text(&msg.Text{Seq: g[1].Seq, Token: 5, Cached: 32, Finish: api.FinishLength})
	require.Equal(t, 32, e.Usage.CachedTokens, "one choice found what the other one had computed")

	r = newRequest(apiRequest(1, 2), modelLimits{context: 100, pool: 100, vocab: 10})
	g = begin(t, r, make([]int32, 50))
	r.text(&msg.Text{Seq: g[0].Seq, Token: 5, Cached: 51})
	e, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: 5, Index: 1, Finish: api.FinishLength})
	require.Equal(t, 50, e.Usage.CachedTokens, "of the prompt")
}

func TestAFailedChoiceFailsTheRequest(t *testing.T) {
	r := newRequest(apiRequest(2, 5), modelLimits{context: 100, pool: 100, vocab: 10})
	g := begin(t, r, []int32{1})
	e, v := r.text(&msg.Text{Seq: g[0].Seq, Token: -1, Finish: api.FinishError, Err: ErrStopping()})
	require.Equal(t, taken, v)
	require.True(t, e.Done)
	require.Equal(t, []msg.SeqID{g[1].Seq}, r.running(), "left to cancel")
}

func TestCancelEndsARequestAtOnceAndLeavesItsSequencesToCancel(t *testing.T) {
	for _, reason := range []error{nil, ErrStopping()} {
		r := newRequest(apiRequest(2, 5), modelLimits{context: 100, pool: 100, vocab: 10})
		g := begin(t, r, []int32{1})
		_, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: 7, Text: "a"})
		e := r.cancel(reason)
		require.True(t, e.Done)
		require.Equal(t, 1, e.Usage.CompletionTokens)
		require.Equal(t, reason, e.Err)
		require.Equal(t, reason == nil, e.Finish == api.FinishCancelled)
		require.Equal(t, []msg.SeqID{g[0].Seq, g[1].Seq}, r.running())
		_, v := r.text(&msg.Text{Seq: g[0].Seq, Token: 8, Index: 1})
		require.Equal(t, ignored, v, "late text")
	}
}

func TestALostChoiceGoesOnBehindItsTokensAsANewSequence(t *testing.T) {
	r := newRequest(apiRequest(2, 5), modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}}))
	nextID := seqs()
	g := startAll(r, nextID)
	for i, id := range []int32{7, 8} {
		_, v := r.text(&msg.Text{Seq: g[1].Seq, Token: id, Index: i})
		require.Equal(t, taken, v)
	}
	_, v := r.text(&msg.Text{Seq: g[1].Seq, Token: 8, Index: 1})
	require.Equal(t, ignored, v, "a token that is there already")
	_, v = r.text(&msg.Text{Seq: g[1].Seq, Token: 9, Index: 3})
	require.Equal(t, gap, v)
	_, v = r.text(&msg.Text{Seq: g[1].Seq, Token: -1, Index: 4, Finish: api.FinishLength})
	require.Equal(t, gap, v, "an end after tokens that are missing")

	first, err := r.lost(g[1].Seq, "of a test")
	require.NoError(t, err)
	require.Equal(t, 1, first)
	again := startAll(r, nextID)
	require.Len(t, again, 1, "the other choice runs on")
	require.Equal(t, []int32{1, 2}, again[0].Prompt)
	require.Equal(t, []int32{7, 8}, again[0].Generated)
	require.Equal(t, 5, again[0].MaxTokens)
	require.False(t, g[1].Migrated)
	require.True(t, again[0].Migrated, "a full queue is no reason to lose it")
	require.Equal(t, g[1].Sampling, again[0].Sampling)
	require.NotContains(t, []msg.SeqID{g[0].Seq, g[1].Seq}, again[0].Seq)

	_, v = r.text(&msg.Text{Seq: g[1].Seq, Token: 9, Index: 2})
	require.Equal(t, ignored, v, "late text of the old sequence")
	first, err = r.lost(g[1].Seq, "of a test")
	require.NoError(t, err)
	require.Equal(t, -1, first, "it is lost once")
	e, v := r.text(&msg.Text{Seq: again[0].Seq, Token: 9, Index: 2, Finish: api.FinishStop})
	require.Equal(t, taken, v)
	require.Equal(t, api.Event{Choice: 1, Tokens: []int32{9}, Finish: api.FinishStop}, e)
}

func TestATextThatIsLostGoesOnBehindItsTokensWhereItsSequenceRuns(t *testing.T) {
	r := newRequest(apiRequest(2, 5), modelLimits{context: 100, pool: 100, vocab: 10})
	g := begin(t, r, []int32{1, 2})
	for i, id := range []int32{7, 8} {
		_, _ = r.text(&msg.Text{Seq: g[1].Seq, Token: id, Index: i})
	}
	for i, history := range [][]int32{nil, {7, 8}} {
		require.True(t, r.mayRedirect(g[i].Seq))
		open, from := r.redirect(g[i].Seq)
		require.Equal(t, len(history), from)
		require.Len(t, open, 1)
		require.Equal(t, g[i].Seq, open[0].Seq)
		require.Equal(t, history, open[0].History)
	}
	require.Empty(t, r.waiting())
	require.False(t, r.mayRedirect(g[1].Seq), "it has not helped")
	_, v := r.text(&msg.Text{Seq: g[1].Seq, Token: 9, Index: 4})
	require.Equal(t, resend, v, "a token that was on its way before")
	_, v = r.text(&msg.Text{Seq: g[1].Seq, Token: 9, Index: 2})
	require.Equal(t, taken, v)
	require.True(t, r.mayRedirect(g[1].Seq), "it has helped before")
	_, from := r.redirect(g[1].Seq)
	require.Equal(t, 3, from)
	_, _ = r.text(&msg.Text{Seq: g[1].Seq, Token: -1, Index: 3, Finish: api.FinishStop})
	require.False(t, r.mayRedirect(g[1].Seq), "its text has ended")

	logprobs := apiRequest(1, 5)
	logprobs.TopLogprobs = 0
	r = newRequest(logprobs, modelLimits{context: 100, pool: 100, vocab: 10})
	seq := begin(t, r, []int32{1})[0].Seq
	require.True(t, r.mayRedirect(seq))
	r.redirect(seq)
	_, v = r.text(&msg.Text{Seq: seq, Token: 9})
	require.Equal(t, gap, v, "an earlier worker keeps tokens without their log probabilities")
	require.False(t, r.mayRedirect(seq))
	_, v = r.text(&msg.Text{Seq: seq, Token: 9, Logprobs: []api.TokenLogprob{{Token: 9}}})
	require.Equal(t, taken, v)

	scored := apiRequest(1, 5)
	scored.PromptLogprobs = new(int)
	r = newRequest(scored, modelLimits{context: 100, pool: 100, vocab: 10})
	require.False(t, r.mayRedirect(begin(t, r, []int32{1})[0].Seq), "a worker does not keep the prompt's log probabilities")
}

func TestAPromptIsScoredForTheFirstChoiceOnly(t *testing.T) {
	scored := apiRequest(4, 5)
	scored.PromptLogprobs = new(int)
	r := newRequest(scored, roomy)
	for i, g := range begin(t, r, []int32{1, 2, 3}) {
		require.Equal(t, i == 0, g.Scored != nil, "choice %d", i)
	}
}

// TestATokenWithoutItsTextIsNotTaken: a detokenizer that was opened after fewer tokens than have come
// since, and missed those that its worker sent again, has no text for the one that is next here.
func TestATokenWithoutItsTextIsNotTaken(t *testing.T) {
	r := newRequest(apiRequest(1, 5), roomy)
	seq := begin(t, r, []int32{1, 2})[0].Seq
	_, from := r.redirect(seq)
	require.Zero(t, from)
	for i, id := range []int32{7, 8} { // the detokenizer before has sent them
		_, v := r.text(&msg.Text{Seq: seq, Token: id, Index: i, Text: "x"})
		require.Equal(t, taken, v)
	}
	_, v := r.text(&msg.Text{Seq: seq, Token: 8, Index: 1, Gap: true})
	require.Equal(t, ignored, v, "its text is there")
	_, v = r.text(&msg.Text{Seq: seq, Token: 9, Index: 2, Gap: true})
	require.Equal(t, gap, v)
	require.True(t, r.mayRedirect(seq))
	open, from := r.redirect(seq)
	require.Equal(t, 2, from)
	require.Equal(t, []int32{7, 8}, open[0].History)
	_, v = r.text(&msg.Text{Seq: seq, Token: 9, Index: 2, Gap: true})
	require.Equal(t, resend, v, "on its way from the one before")
	_, v = r.text(&msg.Text{Seq: seq, Token: 9, Index: 2, Text: "y"})
	require.Equal(t, taken, v)
}

// TestAnAnswerOfWhichOnlyTheEndIsMissingGetsTheEndOfAnUndisturbedRun: a worker has what it needs to
// say why it ended, and a detokenizer has the text that it holds back.
func TestAnAnswerOfWhichOnlyTheEndIsMissingGetsTheEndOfAnUndisturbedRun(t *testing.T) {
	for _, c := range []struct {
		tokens  []int32
		include bool
		most    int     // tokens
		history []int32 // of the text
	}{
		{[]int32{5, 6}, false, 3, []int32{5, 6}},
		{[]int32{5, 6, 7}, false, 3, []int32{5, 6, 7}},
		{[]int32{5, 6, 9}, false, 3, []int32{5, 6}},
		{[]int32{5, 9}, false, 3, []int32{5}},
		{[]int32{5, 9}, true, 3, []int32{5, 9}},
		{[]int32{5, 6, 7, 8}, false, 4, []int32{5, 6, 7, 8}}, // workers with less room have come
	} {
		q := apiRequest(1, 3)
		q.IncludeStop = c.include
		q.Takeover = &api.Progress{Choices: []api.ChoiceProgress{{Tokens: c.tokens}}}
		r := newRequest(q, roomy)
		require.NoError(t, r.tokenized(prompt{ids: []int32{1}, eos: []int32{9}}))
		g, open := r.start(0, seqs())
		require.Equal(t, c.most, g.MaxTokens)
		require.Equal(t, []int32{9}, g.StopTokens)
		require.Equal(t, c.tokens, g.Generated)
		require.Equal(t, c.history, open[0].History)
	}
}

func TestAWaitingChoiceTakesOverItsSequence(t *testing.T) {
	q := apiRequest(2, 4)
	q.Takeover = &api.Progress{Choices: []api.ChoiceProgress{{Tokens: []int32{5, 6}}, {Tokens: []int32{7}, Finish: api.FinishStop}}}
	r := newRequest(q, modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}}))
	require.False(t, r.adopt(1, []msg.SeqID{31}, r.bond.pin), "it has ended")
	require.False(t, r.adopt(2, []msg.SeqID{31}, r.bond.pin), "there is no such choice")
	require.False(t, r.adopt(0, []msg.SeqID{30, 31}, r.bond.pin), "a sequence of two choices")
	require.True(t, r.adopt(0, []msg.SeqID{30}, r.bond.pin))
	require.Empty(t, r.waiting())
	require.False(t, r.adopt(0, []msg.SeqID{32}, r.bond.pin), "it has one")
	open, from := r.redirect(30)
	require.Equal(t, 2, from)
	require.Equal(t, []int32{5, 6}, open[0].History)
	e, v := r.text(&msg.Text{Seq: 30, Token: 8, Index: 2, Finish: api.FinishStop})
	require.Equal(t, taken, v)
	require.True(t, e.Done)
}

func TestABeamSearchThatIsLostStartsFromNothingAndItsTokensComeOnce(t *testing.T) {
	q := apiRequest(2, 5)
	q.Beams = &sample.BeamParams{Width: 2}
	r := newRequest(q, modelLimits{context: 100, pool: 100, slabTokens: 1, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}}))
	nextID := seqs()
	g := startAll(r, nextID)
	require.Len(t, g, 1)
	_, _ = r.text(&msg.Text{Seq: g[0].Choices[0], Token: 7, Finish: api.FinishStop})
	_, _ = r.text(&msg.Text{Seq: g[0].Choices[1], Token: 8, Text: "x"})
	_, err := r.lost(g[0].Choices[1], "of a test")
	require.NoError(t, err)
	again := startAll(r, nextID)
	require.Len(t, again, 1)
	require.Empty(t, again[0].Generated)
	_, v := r.text(&msg.Text{Seq: again[0].Choices[0], Token: 7, Finish: api.FinishStop})
	require.Equal(t, ignored, v, "that choice had ended")
	_, v = r.text(&msg.Text{Seq: again[0].Choices[1], Token: 8, Text: "x"})
	require.Equal(t, ignored, v)
	e, v := r.text(&msg.Text{Seq: again[0].Choices[1], Token: 9, Index: 1, Finish: api.FinishLength})
	require.Equal(t, taken, v)
	require.True(t, e.Done)
	require.Equal(t, 3, e.Usage.CompletionTokens)
}

func TestARequestThatIsMovedAgainAndAgainWithoutATokenEnds(t *testing.T) {
	r := newRequest(apiRequest(1, 50), modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}}))
	nextID := seqs()
	g := startAll(r, nextID)
	lose := func() error {
		_, err := r.lost(g[0].Seq, "its worker is gone")
		if err == nil {
			g = startAll(r, nextID)
		}
		return err
	}
	for range mostResumes {
		require.NoError(t, lose())
	}
	_, _ = r.text(&msg.Text{Seq: g[0].Seq, Token: 3})
	for range mostResumes {
		require.NoError(t, lose(), "a token starts the count again")
	}
	require.ErrorContains(t, lose(), "its worker is gone")
}

func TestAnAnswerThatAnotherProcessBeganGoesOn(t *testing.T) {
	q := apiRequest(3, 4)
	q.Takeover = &api.Progress{Pin: api.Pin{Prompt: api.HashPrompt([]int32{1, 2})}, Choices: []api.ChoiceProgress{
		{Tokens: []int32{5, 6}, Finish: api.FinishStop}, {Tokens: []int32{7}}, {Tokens: []int32{5, 6, 7, 8}},
	}}
	r := newRequest(q, modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}}))
	_, over := r.resumed()
	require.False(t, over)
	g := startAll(r, seqs())
	require.Len(t, g, 2)
	require.Equal(t, []int32{7}, g[0].Generated)
	require.Equal(t, q.Sampling.Seed+1, g[0].Sampling.Seed)
	e, v := r.text(&msg.Text{Seq: g[1].Seq, Token: -1, Index: 4, Text: "held", Finish: api.FinishLength})
	require.Equal(t, taken, v)
	require.Equal(t, "held", e.Text)
	e, v = r.text(&msg.Text{Seq: g[0].Seq, Token: 9, Index: 1, Finish: api.FinishStop})
	require.Equal(t, taken, v)
	require.Equal(t, api.Event{Choice: 1, Tokens: []int32{9}, Finish: api.FinishStop, Done: true,
		Usage: &api.Usage{PromptTokens: 2, CompletionTokens: 8}}, e)
}

func TestAnAnswerOfWhichOnlyTheEndIsMissingEndsAtOnce(t *testing.T) {
	q := apiRequest(1, 4)
	q.Takeover = &api.Progress{Pin: api.Pin{Prompt: api.HashPrompt([]int32{1, 2})},
		Choices: []api.ChoiceProgress{{Tokens: []int32{5}, Finish: api.FinishStop}}}
	r := newRequest(q, modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1, 2}}))
	end, over := r.resumed()
	require.True(t, over)
	require.Equal(t, api.Event{Done: true, Usage: &api.Usage{PromptTokens: 2, CompletionTokens: 1}}, end)
	require.Empty(t, r.waiting())
}

func TestProgressOfAnotherNumberOfChoicesIsRefused(t *testing.T) {
	q := apiRequest(2, 4)
	q.Takeover = &api.Progress{Choices: make([]api.ChoiceProgress, 1)}
	r := newRequest(q, modelLimits{context: 100, pool: 100, vocab: 10})
	require.ErrorContains(t, r.tokenized(prompt{ids: []int32{1}}), "progress of 1 choices, expected 2")
}

func TestTheJournalKeepsEveryEventForASlowReader(t *testing.T) {
	b := api.NewBuffer()
	cancelled := 0
	s := newStream(b, func() { cancelled++ })
	for range 3 {
		b.Append(api.Event{Text: "x"})
	}
	s.Close()
	require.Equal(t, 1, cancelled)
	b.Append(api.Event{Done: true})
	b.Append(api.Event{Text: "late"})
	for seq := uint64(1); seq <= 4; seq++ {
		e, err := s.Next(context.Background())
		require.NoError(t, err)
		require.Equal(t, seq, e.Seq)
		require.Equal(t, seq == 4, e.Done)
	}
	_, err := s.Next(context.Background())
	require.ErrorIs(t, err, io.EOF)
	s.Close()
	require.Equal(t, 1, cancelled, "a finished request is not cancelled")
}

func TestAReaderWaitsForTheNextEventOrItsContext(t *testing.T) {
	b := api.NewBuffer()
	s := newStream(b, nil)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := s.Next(ctx)
	require.ErrorIs(t, err, context.Canceled)
	got := make(chan error, 1)
	go func() {
		e, err := s.Next(context.Background())
		if err == nil && e.Text != "x" {
			err = errors.New("another event")
		}
		got <- err
	}()
	b.Append(api.Event{Text: "x"})
	require.NoError(t, <-got)
}

func TestTheFirstTokenSaysThatThePromptOpenedReasoning(t *testing.T) {
	r := newRequest(apiRequest(2, 3), modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}, thought: tools.Opened}))
	gens := startAll(r, seqs())
	for _, g := range gens {
		e, v := r.text(&msg.Text{Seq: g.Seq, Token: 5, Index: 0})
		require.Equal(t, taken, v)
		require.True(t, e.Reasons)
		e, _ = r.text(&msg.Text{Seq: g.Seq, Token: 6, Index: 1})
		require.False(t, e.Reasons)
	}
	require.NoError(t, r.again())
	require.NoError(t, r.tokenized(prompt{ids: []int32{1}, thought: tools.Closed}))
	e, _ := r.text(&msg.Text{Seq: startAll(r, seqs())[0].Seq, Token: 5, Index: 0})
	require.False(t, e.Reasons)
}

func TestMarkersStayInTheText(t *testing.T) {
	r := apiRequest(1, 3)
	r.KeepTokens = []string{"<tool_call>"}
	q := newRequest(r, modelLimits{context: 100, pool: 100, vocab: 10})
	require.NoError(t, q.tokenized(prompt{ids: []int32{1}}))
	_, open := q.start(0, seqs())
	require.Equal(t, []string{"<tool_call>"}, open[0].Options.Keep)
}

func TestAGrammarBeginsAfterTheReasoning(t *testing.T) {
	for _, c := range []struct {
		name           string
		after, opening string // of the request
		thought        tools.Thought
		want           [2]string
	}{
		{"the prompt opens reasoning that the grammar has a place for", "", "", tools.Opened, [2]string{"</think>", ""}},
		{"the prompt opens it", "</think>", "<think>", tools.Opened, [2]string{"</think>", ""}},
		{"the prompt closes it", "</think>", "<think>", tools.Closed, [2]string{"", ""}},
		{"the model decides", "</think>", "<think>", tools.Unsaid, [2]string{"</think>", "<think>"}},
		{"the grammar has a place for it", "", "", tools.Unsaid, [2]string{"", ""}},
	} {
		spec := &grammar.Spec{Kind: grammar.Regex, Source: "a", Param: "guided_regex", After: c.after, Opening: c.opening}
		r := api.Request{ID: "r", N: 1, MaxTokens: 3, Grammar: spec, ReasoningEnd: "</think>"}
		r.TopLogprobs = -1
		q := newRequest(&r, modelLimits{context: 100, pool: 100, vocab: 10})
		require.NoError(t, q.tokenized(prompt{ids: []int32{1}, thought: c.thought}))
		got := startAll(q, seqs())[0].Grammar
		require.Equal(t, c.want, [2]string{got.After, got.Opening}, c.name)
		require.NoError(t, got.Validate())
		require.Equal(t, [2]string{c.after, c.opening}, [2]string{spec.After, spec.Opening}, "the request's own stays as it is")
	}
	marked := &grammar.Spec{After: "<tool_call>"}
	q := newRequest(&api.Request{Grammar: marked, ReasoningEnd: "</think>"}, modelLimits{})
	require.Same(t, marked, q.grammar())
	skips := &grammar.Spec{After: "<tool_call>", SkipFrom: "<think>", SkipTo: "</think>"}
	q = newRequest(&api.Request{Grammar: skips, ReasoningEnd: "</think>"}, modelLimits{})
	for thought, want := range map[tools.Thought][2]string{tools.Unsaid: {"<think>", "</think>"}, tools.Opened: {"", "</think>"},
		tools.Closed: {}} {
		q.thought = thought
		got := q.grammar()
		require.Equal(t, want, [2]string{got.SkipFrom, got.SkipTo})
		require.Equal(t, "<tool_call>", got.After)
	}
	require.Equal(t, "<think>", skips.SkipFrom, "the request's own stays as it is")
}

// TestAWorkerIsRedirectedAgainForTokensThatDidNotCome, but not for those that may be on their way.
func TestAWorkerIsRedirectedAgainForTokensThatDidNotCome(t *testing.T) {
	r := newRequest(apiRequest(1, 9), roomy)
	seq := begin(t, r, []int32{1, 2})[0].Seq
	_, v := r.text(&msg.Text{Seq: seq, Token: 5})
	require.Equal(t, taken, v)
	r.redirect(seq)
	_, v = r.text(&msg.Text{Seq: seq, Token: 8, Index: 3, Gap: true})
	require.Equal(t, resend, v)

	system := actor.NewActorSystem()
	t.Cleanup(system.Shutdown)
	got := make(chan any, 10)
	worker := system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) { got <- ctx.Message() }))
	require.IsType(t, &actor.Started{}, <-got)
	a := &requestActor{requestDeps: &requestDeps{}, state: r}
	at := &place{compute: worker, detok: actor.NewPID("detok", "1"), choices: []msg.SeqID{seq}, requested: time.Now()}
	done := make(chan struct{})
	system.Root.Spawn(actor.PropsFromFunc(func(ctx actor.Context) {
		if _, ok := ctx.Message().(*actor.Started); ok {
			a.redirectAgain(ctx, at) // too early
			at.requested = at.requested.Add(-redirectAfter)
			a.redirectAgain(ctx, at)
			a.redirectAgain(ctx, at) // too early
			ctx.Send(worker, "end")
			close(done)
		}
	}))
	<-done
	m, ok := (<-got).(*msg.Redirect)
	require.True(t, ok)
	require.Equal(t, seq, m.Seq)
	require.Equal(t, 1, m.From)
	require.Equal(t, "detok", m.Detok.Address)
	require.Equal(t, "end", <-got)
}
