package call

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

func TestCollectFailsWithoutALastEvent(t *testing.T) {
	c := &Call{N: 1, Requests: []*api.Request{{}}}
	_, err := Collect(t.Context(), c, EventsOf(api.Event{Seq: 1, Text: "a"}))
	require.Equal(t, api.CodeInternal, api.AsError(err).Code)
}

// TestTheLogProbabilitiesOfAPromptAreThoseOfAllItsChoices: the engine computes them once.
func TestTheLogProbabilitiesOfAPromptAreThoseOfAllItsChoices(t *testing.T) {
	c := &Call{N: 2, Requests: []*api.Request{{}, {}}}
	prompts := [2][]api.TokenLogprob{{{Token: 1}}, {{Token: 2}}}
	events := EventsOf(
		api.Event{Choice: 1, Text: "x", Finish: api.FinishStop},
		api.Event{Choice: 0, Extra: &api.Extra{Prompt: prompts[0]}, Finish: api.FinishStop},
		api.Event{Choice: 2, Extra: &api.Extra{Prompt: prompts[1]}, Finish: api.FinishStop},
		api.Event{Choice: 3, Finish: api.FinishStop, Done: true, Usage: &api.Usage{}},
	)
	r, err := Collect(t.Context(), c, events)
	require.NoError(t, err)
	for i := range r.Choices {
		require.Equal(t, prompts[i/2], r.Choices[i].Prompt, "choice %d", i)
	}
}

func TestCollectKeepsTheLastDigestOfEachRequest(t *testing.T) {
	c := &Call{N: 2, Requests: []*api.Request{{}, {}}}
	events := EventsOf(
		pinned("a", api.Event{Choice: 1, Text: "x"}),
		pinned("b", api.Event{Choice: 0, Text: "y"}),
		pinned("", api.Event{Choice: 0, Text: "z", Finish: api.FinishStop}),
		api.Event{Choice: 3, Finish: api.FinishLength, Done: true, Usage: &api.Usage{PromptTokens: 3}, Ended: 9},
	)
	r, err := Collect(t.Context(), c, events)
	require.NoError(t, err)
	require.Equal(t, &Result{
		Choices: []Choice{{Text: "yz", Finish: api.FinishStop}, {Text: "x"}, {}, {Finish: api.FinishLength}},
		Pins:    []api.Pin{{Numerics: "b"}, {}},
		Usage:   api.Usage{PromptTokens: 3},
		Ended:   9,
	}, r)
}
