package call

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

// scripted is a stream of events and then io.EOF.
type scripted struct {
	events []api.Event
	closed int
}

func (s *scripted) Next(context.Context) (api.Event, error) {
	if len(s.events) == 0 {
		return api.Event{}, io.EOF
	}
	ev := s.events[0]
	s.events = s.events[1:]
	return ev, nil
}

func (s *scripted) Poll() (api.Event, bool, error) {
	ev, err := s.Next(context.Background())
	return ev, err == nil, err
}

func (s *scripted) Wake() <-chan struct{} { return nil }

func (s *scripted) Close() { s.closed++ }

type scriptedEngine struct {
	api.Engine
	streams []*scripted
	next    int
	fail    error // of Submit after the last stream
}

func (e *scriptedEngine) Submit(context.Context, *api.Request) (api.Stream, error) {
	if e.next == len(e.streams) {
		return nil, e.fail
	}
	e.next++
	return e.streams[e.next-1], nil
}

// answer runs a call and returns its events.
func answer(ctx context.Context, e api.Engine, c *Call) (EventStream, error) {
	a, err := NewDirect(e).Run(ctx, c)
	if err != nil {
		return nil, err
	}
	return a.Events(ctx), nil
}

// TestTheLastEventOfACallSaysWhenItEnded, and no earlier one, also not the last one of another request.
func TestTheLastEventOfACallSaysWhenItEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 90 * time.Second
		begin := time.Now()
		e := apitest.New(func(r *api.Request, s *apitest.Stream) {
			if r.Prompt == "slow" {
				<-time.After(took)
			}
			apitest.Say("x")(r, s)
		})
		events, err := answer(t.Context(), e, &Call{N: 1, Requests: []*api.Request{{Prompt: "quick", N: 1}, {Prompt: "slow", N: 1}}})
		require.NoError(t, err)
		var ended []int64
		for ev := range All(t.Context(), events) {
			require.Equal(t, ev.Done, ev.Ended != 0)
			if ev.Done {
				ended = append(ended, ev.Ended)
			}
		}
		require.Equal(t, []int64{begin.Add(took).Unix()}, ended)
		e.WaitIdle()
	})
}

func TestARefusedPromptClosesThoseBeforeIt(t *testing.T) {
	e := &scriptedEngine{streams: []*scripted{{}, {}}, fail: api.Invalid("prompt", "too long")}
	c := &Call{N: 1, Requests: []*api.Request{{}, {}, {}}}
	_, err := NewDirect(e).Run(t.Context(), c)
	require.ErrorIs(t, err, e.fail)
	require.Equal(t, 1, e.streams[0].closed)
	require.Equal(t, 1, e.streams[1].closed)
}

func TestAnAnswerWithoutAnEndIsAnError(t *testing.T) {
	for name, events := range map[string][]api.Event{
		"cut":             {{Seq: 1, Text: "a"}},
		"choice too high": {{Seq: 1, Text: "a", Choice: 1, Done: true}},
		"choice negative": {{Seq: 1, Text: "a", Choice: -1, Done: true}},
	} {
		c := &Call{N: 1, Requests: []*api.Request{{}}}
		s := &scripted{events: events}
		out, err := answer(t.Context(), &scriptedEngine{streams: []*scripted{s}}, c)
		require.NoError(t, err)
		var last api.Event
		for last = range All(t.Context(), out) { //nolint:revive // to the end
		}
		require.Equal(t, api.CodeInternal, api.Failure(last).Code, name)
		require.Equal(t, 1, s.closed, name)
	}
}

func TestRunEndsWithItsContextWhenNobodyReads(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	many := make([]api.Event, 3*eventBuffer)
	a, b := &scripted{events: many}, &scripted{events: many}
	c := &Call{N: 1, Requests: []*api.Request{{}, {}}}
	out, err := answer(ctx, &scriptedEngine{streams: []*scripted{a, b}}, c)
	require.NoError(t, err)
	cancel()
	for range All(t.Context(), out) { //nolint:revive // to the end
	}
	require.Equal(t, 1, a.closed)
	require.Equal(t, 1, b.closed)
}

// pinned returns ev with a numerics digest.
func pinned(digest string, ev api.Event) api.Event {
	ev.Pin = &api.Pin{Numerics: digest}
	return ev
}

func TestAFurtherAttemptIsBoundToWhatTheLastOneWas(t *testing.T) {
	engine := apitest.New(apitest.Say("x"))
	c := &Call{N: 1, Requests: []*api.Request{{Prompt: "p", N: 1}, {Prompt: "q", N: 1}, {Prompt: "r", N: 1}}}
	p := c.Progress([]api.Event{pinned("a", api.Event{Seq: 1, Text: "x", Tokens: []int32{1}}),
		pinned("b", api.Event{Seq: 2, Choice: 2, Text: "x", Tokens: []int32{1}}),
		pinned("c", api.Event{Seq: 3, Choice: 2, Text: "x", Tokens: []int32{2}})})
	rest, err := NewDirect(engine).Continue(context.Background(), c, p, 1)
	require.NoError(t, err)
	for range All(t.Context(), rest) { //nolint:revive // to the end
	}
	found := map[string]api.Pin{}
	for _, r := range engine.Requests() {
		require.False(t, r.Buffered, "a log keeps it")
		if r.Takeover != nil {
			found[r.Prompt] = r.Takeover.Pin
		}
	}
	require.Equal(t, map[string]api.Pin{"p": {Numerics: "a"}, "r": {Numerics: "c"}}, found)
}
