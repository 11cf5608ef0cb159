package load

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/client"
)

func TestArrivalsAreAPoissonProcessOfTheirRate(t *testing.T) {
	at := Arrivals(50, 400*time.Second, 7)
	require.InDelta(t, 20000, len(at), 4*141, "four deviations of a Poisson count")
	var previous time.Duration
	sum, squares := 0.0, 0.0
	for _, a := range at {
		require.GreaterOrEqual(t, a, previous)
		require.Less(t, a, 400*time.Second)
		gap := (a - previous).Seconds() * 50
		sum, squares, previous = sum+gap, squares+gap*gap, a
	}
	n := float64(len(at))
	require.InDelta(t, 1, squares/n-sum*sum/n/n, 0.1, "the variance of exponential gaps is the square of their mean")
	require.Equal(t, at, Arrivals(50, 400*time.Second, 7))
	require.NotEqual(t, at[0], Arrivals(50, 400*time.Second, 8)[0])
}

func TestRequestsAreTheSameForTheSameSeed(t *testing.T) {
	first := Requests(20, 3)
	require.Equal(t, first, Requests(20, 3))
	require.NotEqual(t, first, Requests(20, 4))
}

const second = time.Second

func answered(due, first, end time.Duration, tokens int) Outcome {
	return Outcome{Due: due, Sent: due, First: first, End: end, Tokens: tokens}
}

func TestAnAnswerIsGoodWithinBothBounds(t *testing.T) {
	b := Bounds{TTFT: second, TPOT: 100 * time.Millisecond}
	for _, c := range []struct {
		o    Outcome
		good bool
	}{
		{answered(5*second, 6*second, 7*second, 11), true},
		{answered(5*second, 6*second+1, 7*second, 11), false},
		{answered(5*second, 6*second, 7*second+1, 11), false},
		{answered(5*second, 6*second, 6*second, 1), true},
		{Outcome{Due: 5 * second, First: 5 * second, End: 5 * second, Refused: true}, false},
		{Outcome{Due: 5 * second, First: 5 * second, End: 5 * second, Err: errors.New("cut")}, false},
	} {
		require.Equal(t, c.good, c.o.Good(b), "%+v", c.o)
	}
	late := answered(5*second, 6*second, 7*second, 11)
	late.Sent = 5*second + second/2
	late.First += second / 4
	require.False(t, late.Good(b), "a client waits from the moment that its request was due")
}

func TestRatesAreOfEndsInsideTheSpan(t *testing.T) {
	b := Bounds{TTFT: second, TPOT: second}
	loads := [][]Outcome{
		{answered(0, second, 2*second, 5), answered(second, second, 3*second, 8), answered(2*second, 4*second, 5*second, 9)},
		{answered(3*second, 3*second, 5*second, 11), answered(5*second, 5*second, 9*second, 12), answered(6*second, 6*second, 6*second, 1)},
	}
	s := Summarize(loads, Span{2 * second, 6 * second}, b)
	require.Equal(t, 6, s.Requests)
	require.Equal(t, 6, s.Answered)
	require.InDelta(t, 8, s.Intervals, 1e-9)
	require.InDelta(t, 3./8, s.Offered, 1e-9, "due at 2, 3 and 5 s")
	require.InDelta(t, 2.75/8, s.Served, 1e-9, "0, 1/2, 1, 1 and 1/4 of the answers, and none of a moment at the end")
	require.InDelta(t, 1.75/8, s.Good, 1e-9, "one of them came late")
	require.InDelta(t, 18./8, s.Tokens, 1e-9)
	require.InDelta(t, 2000, s.TTFT.Max, 1e-9)
}

func TestRefusalsAreToldFromFailures(t *testing.T) {
	var full, mute, down, broken Outcome
	full.failed(fmt.Errorf("request: %w", &client.Error{Status: http.StatusTooManyRequests, RetryAfter: second}))
	mute.failed(&client.Error{Status: http.StatusTooManyRequests})
	down.failed(&client.Error{Status: http.StatusServiceUnavailable, RetryAfter: second})
	broken.failed(&client.Error{Status: http.StatusInternalServerError, Message: "broken"})
	full.Sent, full.End = second, second+7*time.Millisecond
	s := Summarize([][]Outcome{{full, mute, down, broken}}, Span{0, second}, Bounds{})
	require.Equal(t, 3, s.Refused)
	require.Equal(t, 1, s.Unsaid)
	require.Equal(t, 1, s.Failed)
	require.Contains(t, s.FirstErr, "broken")
	require.Zero(t, s.Answered)
	require.Equal(t, Spread{0, 7, 7}, s.Refusals)
}
