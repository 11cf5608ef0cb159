package auth

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
)

// gateways are two guards of one file of keys, with one clock. tell delivers the news of each to the
// other.
type gateways struct {
	t     *testing.T
	now   time.Time
	rings [2]*Keyring
	guard [2]*guard
	ctx   [2]context.Context
}

func twoGateways(t *testing.T, change func(*Entry)) *gateways {
	t.Helper()
	text, entry := NewKey("acme")
	change(&entry)
	first := ring(t, entry)
	x := &gateways{t: t, now: time.Now().Add(time.Hour)}
	for i := range x.rings {
		r, err := Open(first.path)
		require.NoError(t, err)
		k, err := r.Authenticate("Bearer " + text)
		require.NoError(t, err)
		x.rings[i], x.ctx[i] = r, api.WithCaller(context.Background(), k)
		x.guard[i] = &guard{Engine: apitest.New(apitest.Say("a", "b", "c")), now: func() time.Time { return x.now }}
	}
	return x
}

func (x *gateways) tell() (reports int) {
	names := []string{"a", "b"}
	for i, r := range x.rings {
		data := r.News(names[i])
		if data == nil {
			continue
		}
		reports++
		for j, other := range x.rings {
			require.NoError(x.t, other.Hear(x.now, names[j], data))
		}
	}
	return reports
}

func (x *gateways) submit(at, id int) (api.Stream, error) {
	return x.guard[at].Submit(x.ctx[at], request(id))
}

// serve submits a request that is accepted, and reads its answer.
func (x *gateways) serve(at, id int) {
	x.t.Helper()
	s, err := x.submit(at, id)
	require.NoError(x.t, err)
	finish(x.t, s)
}

func TestGatewaysShareTheRequestsOfAMinute(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.RequestsPerMinute = 4 })
	for i := range 4 {
		x.serve(i%2, i)
		x.tell()
	}
	for at := range 2 {
		_, err := x.submit(at, 4)
		refused(t, err, ReasonRequests, 15*time.Second)
	}
	x.now = x.now.Add(15 * time.Second)
	x.serve(0, 4)
	x.tell()
	_, err := x.submit(1, 5)
	refused(t, err, ReasonRequests, 15*time.Second)
}

// TestRequestsAcceptedBetweenTwoNewsAreDebt: both gateways accept a whole minute's allowance, once.
func TestRequestsAcceptedBetweenTwoNewsAreDebt(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.RequestsPerMinute = 4 })
	for i := range 8 {
		x.serve(i%2, i)
	}
	x.tell()
	for at := range 2 {
		_, err := x.submit(at, 8)
		refused(t, err, ReasonRequests, 75*time.Second)
	}
}

func TestGatewaysShareTokensAndWhatIsGivenBack(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.TokensPerMinute = 40 })
	a, err := x.submit(0, 0) // reserves 20
	require.NoError(t, err)
	b, err := x.submit(1, 1)
	require.NoError(t, err)
	x.tell()
	_, err = x.submit(1, 2)
	refused(t, err, ReasonTokens, 30*time.Second)
	finish(t, a) // used 10
	finish(t, b)
	_, err = x.submit(1, 2) // its own 10 are back
	refused(t, err, ReasonTokens, 15*time.Second)
	x.tell()
	_, err = x.submit(1, 2)
	require.NoError(t, err)
}

func TestGatewaysShareConcurrentRequests(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.Concurrent = 2 })
	a, err := x.submit(0, 0)
	require.NoError(t, err)
	_, err = x.submit(0, 1)
	require.NoError(t, err)
	x.tell()
	_, err = x.submit(1, 2)
	refused(t, err, ReasonConcurrent, time.Second)
	finish(t, a)
	x.tell()
	b, err := x.submit(1, 2)
	require.NoError(t, err)
	finish(t, b)

	x.now = x.now.Add(newsLast + 1) // the other is dead, and its request with it
	b, err = x.submit(1, 3)
	require.NoError(t, err)
	_, err = x.submit(1, 4)
	require.NoError(t, err)
	finish(t, b)
}

func TestTheEndOfTheLastRequestIsNewsAndSilenceFollows(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.Concurrent = 1 })
	require.Zero(t, x.tell(), "there was no request")
	s, err := x.submit(0, 0)
	require.NoError(t, err)
	for range 3 {
		require.Equal(t, 1, x.tell(), "a request runs")
	}
	finish(t, s)
	require.Equal(t, 1, x.tell())
	require.Zero(t, x.tell())
	_, err = x.submit(1, 1)
	require.NoError(t, err)
}

func TestNewsThatAreNoneAndOfUnknownKeysChangeNothing(t *testing.T) {
	x := twoGateways(t, func(e *Entry) { e.RequestsPerMinute = 1 })
	require.Error(t, x.rings[0].Hear(x.now, "a", []byte("{")))
	require.NoError(t, x.rings[0].Hear(x.now, "a", []byte(`{"gateway":"b","keys":{"unknown":{"requests":9,"running":1}}}`)))
	x.serve(0, 0)
}
