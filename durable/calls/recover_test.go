package calls_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/e2e/natstest"
)

// TestLogsAreBackAfterARestartOfNATS reads paused calls of two gateways, and one that has ended, at the
// other gateway: their own gateway writes them again from memory.
func TestLogsAreBackAfterARestartOfNATS(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	srv := natsServer(t)
	url := srv.ClientURL()
	gateways := []gateway{newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})}
	ended := begin(t, gateways[0], e, `{"prompt":"short","max_tokens":5,"stream":true,"stream_resume":true}`)
	want := see(t, ended).until(0)
	require.Eventually(t, func() bool { return gateways[0].count(t, "streams") == 0 }, wait, time.Millisecond)
	const streams = 6
	var here []*view
	var readers []call.Answer
	for i := range streams {
		r := begin(t, gateways[i%2], e, fmt.Sprintf(`%s,"seed":%d}`, body, i))
		v := see(t, r)
		v.until(10)
		here, readers = append(here, v), append(readers, r)
	}
	for range 2 {
		srv = natstest.Restart(t, srv)
		for i, r := range readers {
			v := see(t, attach(t, gateways[1-i%2], r.Call().ID))
			v.until(10)
			here = append(here, v)
		}
		require.Equal(t, want, see(t, attach(t, gateways[1], ended.Call().ID)).until(0))
	}
	g.open(1 << 30)
	for i, v := range here {
		require.Equal(t, undisturbed(t, readers[i%streams].Call()), v.until(0))
	}
	require.Len(t, e.Requests(), streams+1, "none ran twice")
	require.Zero(t, gateways[0].count(t, "takeovers_total")+gateways[1].count(t, "takeovers_total"))
}

// TestAnUnknownCallIsUnknownAfterARestart checks that the wait for a gateway that may reconnect ends.
func TestAnUnknownCallIsUnknownAfterARestart(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1))
	srv := natsServer(t)
	a := newGateway(t, srv.ClientURL(), e, calls.Options{Answer: 50 * time.Millisecond, Rejoin: 200 * time.Millisecond})
	natstest.Restart(t, srv)
	require.Eventually(t, a.nc.IsConnected, wait, time.Millisecond)
	_, err := a.Attach(t.Context(), "cmpl-nobody-has-it")
	require.ErrorContains(t, err, "no stream")
}

// TestANewCallWaitsWhileJetStreamIsAway checks that a new call waits for JetStream like a running one.
func TestANewCallWaitsWhileJetStreamIsAway(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(1 << 30)
	e := deterministic(g)
	srv := natsServer(t)
	a := newGateway(t, srv.ClientURL(), e, calls.Options{Timeout: 200 * time.Millisecond})
	const text = `{"prompt":"short","max_tokens":5,"stream":true,"stream_resume":true}`
	restart := natstest.Stop(srv)
	type started struct {
		call.Answer
		error
	}
	answers := make(chan started, 1)
	decoded := decode(t, e, text)
	go func() {
		r, err := a.Run(t.Context(), decoded)
		answers <- started{r, err}
	}()
	select {
	case s := <-answers:
		t.Fatalf("the call did not wait: %v", s.error)
	case <-time.After(time.Second):
	}
	natstest.Start(t, restart)
	s := <-answers
	require.NoError(t, s.error)
	see(t, s.Answer).until(0)
}

func TestALogThatIsLostWithTheServerIsWrittenAgain(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	srv := natsServer(t)
	url := srv.ClientURL()
	a, b := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	first := begin(t, a, e, body+`,"n":2}`)
	here := see(t, first)
	there := see(t, attach(t, b, first.Call().ID))
	here.until(20)
	there.until(20)
	natstest.Restart(t, srv)
	g.open(20)
	here.until(40)
	there.until(40)
	require.Equal(t, 1.0, a.count(t, "rewritten_total"))
	a.kill()
	g.open(1 << 30)
	want := undisturbed(t, first.Call())
	require.Equal(t, want, there.until(0), "the other gateway took over from the new log")
	require.Len(t, e.Requests(), 2)
}
