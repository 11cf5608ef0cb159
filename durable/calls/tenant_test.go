package calls_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/apitest"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/metrics/metricstest"
)

// keys is a keyring with one key for each of the tenants, and a context with each key.
type keys struct {
	t    testing.TB
	path string
	text []string
	ring *auth.Keyring
	as   []context.Context
}

func newKeys(t testing.TB, tenants ...string) *keys {
	t.Helper()
	k := &keys{t: t, path: filepath.Join(t.TempDir(), "keys.yaml")}
	var secrets []string
	for _, tenant := range tenants {
		secret, entry := auth.NewKey(tenant)
		line, err := entry.Line()
		require.NoError(t, err)
		k.text, secrets = append(k.text, line), append(secrets, secret)
	}
	k.write(k.text...)
	var err error
	k.ring, err = auth.Open(k.path)
	require.NoError(t, err)
	for _, secret := range secrets {
		key, err := k.ring.Authenticate("Bearer " + secret)
		require.NoError(t, err)
		k.as = append(k.as, api.WithCaller(t.Context(), key))
	}
	return k
}

func (k *keys) write(lines ...string) {
	k.t.Helper()
	require.NoError(k.t, os.WriteFile(k.path, []byte(strings.Join(lines, "")), 0o600))
}

// start runs a call with the caller of ctx.
func start(ctx context.Context, t testing.TB, g gateway, e api.Engine, text string) (call.Answer, error) {
	t.Helper()
	r, err := g.Run(ctx, decode(t, e, text))
	if err == nil {
		t.Cleanup(r.Close)
	}
	return r, err
}

func requireCode(t testing.TB, err error, code api.Code, reason string) {
	t.Helper()
	require.Error(t, err)
	require.Equal(t, code, api.AsError(err).Code, "%v", err)
	require.Equal(t, reason, api.AsError(err).Reason)
}

// TestAnIDIsItsTenantsOwn checks that two tenants can use the same id without any effect on each other.
func TestAnIDIsItsTenantsOwn(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	opts := calls.Options{Answer: 100 * time.Millisecond, Rejoin: 200 * time.Millisecond}
	a, b := newGateway(t, url, e, opts), newGateway(t, url, e, opts)
	k := newKeys(t, "one", "two", "one")
	text, other := body+`,"request_id":"order-42"}`, body+`,"request_id":"order-42","seed":5}`
	first, err := start(k.as[0], t, a, e, text)
	require.NoError(t, err)
	mine := see(t, first)
	mine.until(10)
	for _, gw := range []gateway{a, b} {
		_, err = gw.Attach(k.as[1], first.Call().ID)
		requireCode(t, err, api.CodeNotFound, "stream_not_found")
		_, err = gw.Attach(t.Context(), first.Call().ID)
		requireCode(t, err, api.CodeNotFound, "stream_not_found")
		requireCode(t, gw.Cancel(k.as[1], first.Call().ID), api.CodeNotFound, "stream_not_found")
		_, err = start(k.as[2], t, gw, e, other)
		requireCode(t, err, 409, "request_id_in_use")
	}
	second, err := start(k.as[1], t, b, e, other)
	require.NoError(t, err, "another tenant's call with the id is no conflict")
	theirs := see(t, second)
	theirs.until(10)
	require.NoError(t, a.Cancel(k.as[1], second.Call().ID))
	require.Contains(t, theirs.until(0), "error cancelled")
	again, err := b.Attach(k.as[2], first.Call().ID)
	require.NoError(t, err, "another key of the tenant")
	defer again.Close()
	there := see(t, again)
	g.open(1 << 30)
	want := undisturbed(t, first.Call())
	require.Equal(t, want, mine.until(0))
	require.Equal(t, want, there.until(0))
	require.Len(t, e.Requests(), 2)
}

// TestARefusedCallWritesNothing checks that no record of a refused call is ever written.
func TestARefusedCallWritesNothing(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1 << 30))
	e.Refuse = func(*api.Request) error { return &api.Error{Code: api.CodeOverloaded, Message: "full"} }
	a := newGateway(t, natsServer(t).ClientURL(), e, calls.Options{})
	text := strings.Replace(body, "one", strings.Repeat("x", 1<<20), 1) + `,"request_id":"mine"}`
	for range 3 {
		_, err := start(t.Context(), t, a, e, text)
		requireCode(t, err, api.CodeOverloaded, "")
	}
	require.Zero(t, a.count(t, "journal_bytes_total"))
	info, err := logs(t, a).Info(t.Context())
	require.NoError(t, err)
	require.Zero(t, info.State.LastSeq)
	e.Refuse = nil
	r, err := start(t.Context(), t, a, e, text)
	require.NoError(t, err)
	require.Equal(t, undisturbed(t, r.Call()), see(t, r).until(0))
}

// TestOfTwoGatewaysWithOneIDOneRuns has two gateways that find no log and admit the same call before
// either of them writes its record.
func TestOfTwoGatewaysWithOneIDOneRuns(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(5)
	e := deterministic(g)
	both := make(chan struct{}, 2)
	met := make(chan struct{})
	e.Refuse = func(*api.Request) error {
		both <- struct{}{}
		if len(both) == 2 {
			close(met)
		}
		<-met
		return nil
	}
	url := natsServer(t).ClientURL()
	text := body + `,"request_id":"mine"}`
	type started struct {
		r   call.Answer
		err error
	}
	results := make(chan started)
	for range 2 {
		gw := newGateway(t, url, e, calls.Options{})
		decoded := decode(t, e, text)
		go func() {
			r, err := gw.Run(t.Context(), decoded)
			results <- started{r, err}
		}()
	}
	var views []*view
	for range 2 {
		s := <-results
		require.NoError(t, s.err)
		t.Cleanup(s.r.Close)
		views = append(views, see(t, s.r))
	}
	g.open(1 << 30)
	require.Equal(t, views[0].until(0), views[1].until(0))
	require.Len(t, e.Requests(), 2)
	e.WaitIdle()
}

// TestATakenOverCallRunsWithTheKeyThatStartedIt checks that the reader's key is charged only if the key
// that started the call is gone.
func TestATakenOverCallRunsWithTheKeyThatStartedIt(t *testing.T) {
	t.Parallel() // it waits most of its time
	for _, gone := range []bool{false, true} {
		t.Run(fmt.Sprintf("gone %t", gone), func(t *testing.T) {
			g := newGate(5)
			e := &contexts{Engine: deterministic(g)}
			url := natsServer(t).ClientURL()
			k := newKeys(t, "one", "one")
			a, b := newGateway(t, url, e, calls.Options{Keys: k.ring}), newGateway(t, url, e, calls.Options{Keys: k.ring})
			r, err := start(k.as[0], t, a, e, body+`}`)
			require.NoError(t, err)
			see(t, r).until(5)
			if gone {
				k.write(k.text[1])
				_, err = k.ring.Reload(time.Now())
				require.NoError(t, err)
			}
			a.kill()
			g.open(1 << 30)
			again, err := b.Attach(k.as[1], r.Call().ID)
			require.NoError(t, err)
			defer again.Close()
			require.Equal(t, undisturbed(t, r.Call()), see(t, again).until(0))
			payer := k.as[0]
			if gone {
				payer = k.as[1]
			}
			require.Equal(t, api.CallerFrom(k.as[0]).KeyID(), api.CallerFrom(e.submitted[0]).KeyID())
			require.Equal(t, api.CallerFrom(payer).KeyID(), api.CallerFrom(e.submitted[1]).KeyID())
		})
	}
}

// TestAReaderOfAReplacedLogHasExpired evicts the log of a call and uses its id again. Readers of the
// first call get no token of the second.
func TestAReaderOfAReplacedLogHasExpired(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(10)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a, b, c := newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{}), newGateway(t, url, e, calls.Options{})
	r := begin(t, a, e, body+`,"request_id":"mine"}`)
	here, there := see(t, r), see(t, attach(t, b, r.Call().ID))
	here.until(10)
	there.until(10)
	require.NoError(t, logs(t, a).Purge(t.Context()))
	second := begin(t, c, e, body+`,"request_id":"mine","seed":9}`)
	g.open(1 << 30)
	require.Contains(t, there.until(0), "error stream_expired")
	require.Contains(t, here.until(0), "error stream_expired")
	require.Equal(t, undisturbed(t, second.Call()), see(t, second).until(0))
}

// TestATenantTakesNoMoreOfTheLogsThanItsShare has a tenant that uses its share and all that can be
// borrowed. The logs of the other tenant stay, and it can begin new ones.
func TestATenantTakesNoMoreOfTheLogsThanItsShare(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(2)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	k := newKeys(t, "greedy", "modest")
	opts := calls.Options{Keys: k.ring, MaxBytes: 2 << 20} // 1 MiB for the logs: shares of 256 KiB, and 512 KiB to borrow
	a, b := newGateway(t, url, e, opts), newGateway(t, url, e, opts)
	modest, err := start(k.as[1], t, a, e, body+`}`)
	require.NoError(t, err)
	see(t, modest).until(2)
	large := func(i int, how string) string {
		return fmt.Sprintf(`{"prompt":"%s","max_tokens":40,"stream":true,"stream_resume":%s,"request_id":"big-%d"}`,
			strings.Repeat("x", 64<<10),
			how, i)
	}
	n := 0
	for ; ; n++ {
		if _, err = start(k.as[0], t, a, e, large(n, "true")); err != nil {
			break
		}
	}
	require.Greater(t, n, 3, "more than its share, because the rest is free")
	require.Less(t, n, 13)
	requireCode(t, err, api.CodeOverloaded, "stream_logs_full")
	require.NotZero(t, api.AsError(err).RetryAfter)
	for _, gw := range []gateway{a, b} {
		require.Eventually(t, func() bool {
			r, err := start(k.as[0], t, gw, e, large(n, `"auto"`))
			n++
			return err == nil && !r.Resumable()
		}, wait, 10*time.Millisecond, "at every gateway")
	}
	require.Less(t, n, 15)
	for i := range 3 {
		more, err := start(k.as[1], t, b, e, large(i, "true"))
		require.NoError(t, err, "within its own share")
		see(t, more).until(2)
	}
	there, err := b.Attach(k.as[1], modest.Call().ID)
	require.NoError(t, err, "its log is whole")
	defer there.Close()
	g.open(1 << 30)
	require.Equal(t, undisturbed(t, modest.Call()), see(t, there).until(0))
	require.Zero(t, a.count(t, "rewritten_total")+a.count(t, "closed_total"))
}

// TestAnAnswerThatOutgrowsItsShareContinuesWithoutALog checks that its readers get every event, and that
// other gateways return an error instead of half an answer.
func TestAnAnswerThatOutgrowsItsShareContinuesWithoutALog(t *testing.T) {
	t.Parallel() // it waits most of its time
	const events = 3000
	e := apitest.New(func(_ *api.Request, s *apitest.Stream) {
		for i := range events {
			s.Send(api.Event{Text: fmt.Sprintf("%0100d", i), Tokens: []int32{int32(i)}})
		}
		<-s.Closed()
	})
	url := natsServer(t).ClientURL()
	opts := calls.Options{MaxBytes: 256 << 10}
	a, b := newGateway(t, url, e, opts), newGateway(t, url, e, opts)
	r := begin(t, a, e, body+`}`)
	here := see(t, r)
	here.until(events)
	require.Equal(t, 1.0, a.count(t, "closed_total"))
	require.LessOrEqual(t, a.count(t, "journal_bytes_total"), 128.0*(1<<10), "at most the quota of all logs")
	_, err := b.Attach(t.Context(), r.Call().ID)
	requireCode(t, err, 410, "stream_expired")
	info, err := logs(t, a).Info(t.Context())
	require.NoError(t, err)
	require.Less(t, info.State.Bytes, uint64(1<<10))
	require.NoError(t, a.Cancel(t.Context(), r.Call().ID))
	require.Contains(t, here.until(0), "error cancelled")
	e.WaitIdle()
}

// pinned is an engine whose answers have a pin.
type pinned struct{ *apitest.Engine }

func (p pinned) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	s, err := p.Engine.Submit(ctx, r)
	return &pinnedStream{Stream: s, pin: &api.Pin{Numerics: "n", Text: "t", Prompt: r.Prompt}}, err
}

type pinnedStream struct {
	api.Stream
	pin *api.Pin
}

func (s *pinnedStream) Next(ctx context.Context) (api.Event, error) {
	ev, err := s.Stream.Next(ctx)
	if err == nil {
		ev.Pin, s.pin = s.pin, nil
	}
	return ev, err
}

func (s *pinnedStream) Poll() (api.Event, bool, error) {
	ev, ok, err := s.Stream.Poll()
	if ok {
		ev.Pin, s.pin = s.pin, nil
	}
	return ev, ok, err
}

// TestACallContinuesWithItsDigestsAndItsClock checks that a taken-over call has the pins of its prompts,
// and its own arrival as the clock of the template.
func TestACallContinuesWithItsDigestsAndItsClock(t *testing.T) {
	t.Parallel() // it waits most of its time
	g := newGate(5)
	e := deterministic(g)
	url := natsServer(t).ClientURL()
	a, b := newGateway(t, url, pinned{e}, calls.Options{}), newGateway(t, url, pinned{e}, calls.Options{})
	r := begin(t, a, e, `{"prompt":["one","two"],"max_tokens":40,"stream":true,"stream_resume":true,"n":2}`)
	see(t, r).until(20)
	a.kill()
	g.open(1 << 30)
	after := see(t, attach(t, b, r.Call().ID)).until(0)
	requireSame(t, undisturbed(t, r.Call()), strings.ReplaceAll(after, `"fp_n"`, `"fp"`))
	requests := e.Requests()
	require.Len(t, requests, 4)
	for _, again := range requests[2:] {
		require.Equal(t, requests[0].Arrival.UnixNano(), again.Arrival.UnixNano())
		require.Equal(t, api.Pin{Numerics: "n", Text: "t", Prompt: again.Prompt}, again.Takeover.Pin)
	}
}

// TestTheRoomOfALogGoesBackWithIt: a call that has ended keeps its room while its log is there, and gives it back then.
func TestTheRoomOfALogGoesBackWithIt(t *testing.T) {
	t.Parallel() // it waits most of its time
	e := deterministic(newGate(1 << 30))
	text := `{"prompt":"` + strings.Repeat("x", 40<<10) + `","max_tokens":1,"stream":true,"stream_resume":true}`
	const most = 3 // logs that 128 KiB hold
	keeping := newGateway(t, natsServer(t).ClientURL(), e, calls.Options{MaxBytes: 256 << 10, Keep: time.Hour})
	var err error
	for n := 0; err == nil; n++ {
		require.LessOrEqual(t, n, most, "logs of calls that have ended")
		var r call.Answer
		if r, err = start(t.Context(), t, keeping, e, text); err == nil {
			see(t, r).until(0)
		}
	}
	requireCode(t, err, api.CodeOverloaded, "stream_logs_full")
	require.NotZero(t, metricstest.Sum(t, keeping.Calls, "millrace_resume_unlogged_total"))
	giving := newGateway(t, natsServer(t).ClientURL(), e, calls.Options{MaxBytes: 256 << 10, Keep: 50 * time.Millisecond})
	for range 3 * most {
		var r call.Answer
		require.Eventually(t, func() (ok bool) {
			var err error
			r, err = start(t.Context(), t, giving, e, text)
			return err == nil
		}, wait, 5*time.Millisecond)
		see(t, r).until(0)
	}
}
