package stored

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/api/responses"
)

// run runs a call with fields and returns its ID, or its error.
func (w *world) run(g *gateway, key, fields string) (id, body string, err error) {
	c := w.decode(fields)
	a, err := g.Run(w.as(key), c)
	if err != nil {
		return "", "", err
	}
	defer a.Close()
	if b, ok := a.(call.Bodied); ok {
		return responses.IDOf(c), string(b.Body()), nil
	}
	_, err = call.Collect(w.as(key), c, a.Events(w.as(key)))
	return responses.IDOf(c), "", err
}

func requireInUse(t *testing.T, err error) {
	t.Helper()
	require.Error(t, err)
	e := api.AsError(err)
	require.Equal(t, 409, int(e.Code), e.Message)
	require.Equal(t, "request_id_in_use", e.Reason)
	require.Equal(t, "request_id", e.Param)
}

const named = `"stream_resume":true,"request_id":"my-1","background":true,"input":`

// TestOneIDIsOneResponseInTheBackground sends the same body twice, and another body, while it is queued or runs, after its end, and at
// another gateway.
func TestOneIDIsOneResponseInTheBackground(t *testing.T) {
	w := newWorld(t)
	g, other := w.gateway(), w.gateway()
	id, _, err := w.run(g, "a", named+`"wait"`)
	require.NoError(t, err)
	again := func() {
		for _, at := range []*gateway{g, other} {
			same, body, err := w.run(at, "a", named+`"wait"`)
			require.NoError(t, err)
			require.Equal(t, id, same)
			require.Contains(t, body, id)
			_, _, err = w.run(at, "a", named+`"other"`)
			requireInUse(t, err)
			_, _, err = w.run(at, "a", `"stream_resume":true,"request_id":"my-1","input":"wait"`)
			requireInUse(t, err)
		}
	}
	again()
	w.until(g, "a", id, "in_progress")
	again()
	close(w.gate)
	w.until(g, "a", id, "completed")
	again()
	_, body, err := w.run(other, "a", named+`"wait"`)
	require.NoError(t, err)
	require.Contains(t, body, "completed")
	require.EqualValues(t, 1, w.ran.Load())
	w.until(g, "b", w.background(g, "b", strings.TrimSuffix(named, `,"background":true,"input":`)+`,"input":"theirs"`), "completed")
}

// TestTwoResponsesWithOneIDAtOnceAreOne sends other bodies with one id at the same time at two gateways: one wins, and its answer is the
// one that is stored.
func TestTwoResponsesWithOneIDAtOnceAreOne(t *testing.T) {
	w := newWorld(t)
	gateways := []*gateway{w.gateway(), w.gateway()}
	for round := range 10 {
		var mu sync.Mutex
		var all sync.WaitGroup
		won := map[string]bool{}
		id := ""
		for i := range 8 {
			all.Go(func() {
				text := fmt.Sprintf("text %d", i/2)
				one, _, err := w.run(gateways[i%2], "a", fmt.Sprintf(`"stream_resume":true,"request_id":"r%d","background":true,"input":%q`,
					round,
					text))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won[text], id = true, one
				}
			})
		}
		all.Wait()
		require.Len(t, won, 1)
		r := w.until(gateways[0], "a", id, "completed")
		require.True(t, won[strings.TrimPrefix(r.Output[0].Content[0].Text, "user:")], r.Output)
	}
}

// TestADeletedIDIsFree uses the id of a response again that was cancelled, completed, or not in the background.
func TestADeletedIDIsFree(t *testing.T) {
	w := newWorld(t)
	g, other := w.gateway(), w.gateway()
	id, _, err := w.run(g, "a", named+`"wait"`)
	require.NoError(t, err)
	w.until(g, "a", id, "in_progress")
	_, err = other.CancelResponse(w.as("a"), id)
	require.NoError(t, err)
	w.until(g, "a", id, "cancelled")
	_, _, err = w.run(g, "a", named+`"two"`)
	requireInUse(t, err)
	for i, fields := range []string{named + `"two"`, named + `"three"`, named + `"two"`,
		`"stream_resume":true,"request_id":"my-1","input":"four"`, named + `"five"`} {
		require.NoError(t, other.Delete(w.as("a"), id))
		_, _, err = w.run(g, "a", fields)
		require.NoError(t, err, fields)
		r := w.until(other, "a", id, "completed")
		require.Contains(t, fields, strings.TrimPrefix(r.Output[0].Content[0].Text, "user:"), i)
	}
}

// TestAStoredResponseKeepsItsID refuses at once a response in the background that would replace it.
func TestAStoredResponseKeepsItsID(t *testing.T) {
	w := newWorld(t)
	g := w.gateway()
	id, _, err := w.run(g, "a", `"stream_resume":true,"request_id":"my-1","input":"one"`)
	require.NoError(t, err)
	_, _, err = w.run(g, "a", named+`"one"`)
	requireInUse(t, err)
	_, _, err = w.run(g, "a", `"stream_resume":true,"request_id":"my-1","input":"two"`)
	requireInUse(t, err)
	_, body, err := w.run(g, "a", `"stream_resume":true,"request_id":"my-1","input":"one"`)
	require.NoError(t, err)
	require.Contains(t, body, "user:one")
	require.Equal(t, "completed", w.until(g, "a", id, "completed").Status)
	require.EqualValues(t, 1, w.ran.Load())
}
