package load

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

func TestArrivalsHaveTheRate(t *testing.T) {
	o := Options{Rate: 50, Requests: 20000, Seed: 3}
	at := o.Arrivals()
	require.InEpsilon(t, 50, float64(len(at))/at[len(at)-1].Seconds(), 0.03)
	short := 0 // of an exponential distribution, 1 - 1/e of the gaps are below the mean
	for i := 1; i < len(at); i++ {
		if at[i]-at[i-1] < 20*time.Millisecond {
			short++
		}
	}
	require.InEpsilon(t, 0.632, float64(short)/float64(len(at)), 0.03)
	require.Equal(t, at, o.Arrivals(), "a seed repeats them")
	o.Rate = 0
	require.Zero(t, o.Arrivals()[o.Requests-1])
}

func TestPromptsHaveTheLengthAndBeginDifferently(t *testing.T) {
	o := Options{Requests: 2000, Prompt: 40, Seed: 1}
	seen, total := map[string]bool{}, 0
	for _, p := range o.Prompts() {
		fields := strings.Fields(p)
		seen[fields[0]] = true
		total += len(fields) - 1
	}
	require.InEpsilon(t, 40, float64(total)/2000, 0.05)
	require.Greater(t, len(seen), 1990)
}

func TestASummaryCountsWhatIsGood(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	o := Options{TTFT: ms(100), TPOT: ms(10)}
	answers := []Answer{
		{Prompt: 10, Tokens: 3, Chunks: []time.Duration{ms(50), ms(60), ms(70)}, End: ms(71)},
		{Prompt: 30, Tokens: 3, Chunks: []time.Duration{ms(200), ms(205), ms(210)}, End: ms(211)}, // late
		{Prompt: 20, Tokens: 3, Chunks: []time.Duration{ms(90), ms(130), ms(140)}, End: ms(141)},  // slow
		{Err: errors.New("busy")},
		{Err: errors.New("busy")},
	}
	r := Summarize(o, answers, 2*time.Second)
	require.Equal(t, 5, r.Requests)
	require.Equal(t, 2, r.Failed)
	require.Equal(t, []string{"2 x busy"}, r.Errors)
	require.InDelta(t, 0.2, r.GoodShare, 1e-9)
	require.InDelta(t, 0.5, r.Goodput, 1e-9)
	require.InDelta(t, 4.5, r.TokenRate, 1e-9)
	require.InDelta(t, 20, r.PromptTokens, 1e-9)
	require.InDelta(t, 0.09, r.TTFT.P50, 1e-9)
	require.InDelta(t, 0.2, r.TTFT.Max, 1e-9)
	require.InDelta(t, 0.04, r.ITL.Max, 1e-9)
	require.InDelta(t, 0.025, r.TPOT.Max, 1e-9)
	var out bytes.Buffer
	require.NoError(t, r.Print(&out))
	require.Contains(t, out.String(), "  2 x busy\n")
	require.Contains(t, out.String(), "  up to    64ms "+strings.Repeat("#", 50)+" 1\n  up to   128ms "+strings.Repeat("#",
		50)+" 1\n  up to   256ms ")
	require.NoError(t, Summarize(o, []Answer{{Err: errors.New("busy")}}, time.Second).Print(&out))
}

// server answers each request with three chunks.
type server struct {
	client.Client
	mu       sync.Mutex
	requests []client.ChatRequest
}

func (s *server) ChatStream(_ context.Context, r client.ChatRequest) iter.Seq2[client.Chunk, error] {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	return func(yield func(client.Chunk, error) bool) {
		for range 3 {
			var c client.ChunkChoice
			c.Delta.Content = "x"
			if !yield(client.Chunk{Choices: []client.ChunkChoice{c}}, nil) {
				return
			}
		}
		yield(client.Chunk{Usage: &client.Usage{PromptTokens: 7, CompletionTokens: 3}}, nil)
	}
}

func TestEachRequestIsSentOnce(t *testing.T) {
	s := &server{}
	r, err := Run(t.Context(), s, Options{Model: "m", Rate: 2000, Requests: 50, Prompt: 5, Gen: 9, TTFT: time.Minute, TPOT: time.Minute})
	require.NoError(t, err)
	require.Len(t, s.requests, 50)
	require.Equal(t, 9, s.requests[0].MaxCompletionTokens)
	require.Zero(t, r.Failed)
	require.InDelta(t, 1, r.GoodShare, 0)
	require.InDelta(t, 7, r.PromptTokens, 0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Run(ctx, s, Options{Rate: 0.001, Requests: 2})
	require.ErrorIs(t, err, context.Canceled)
}
