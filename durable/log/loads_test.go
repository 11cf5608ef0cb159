package log

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
)

// TestLogsThatAreReadAtOnceComeWholeWithFewConsumers writes the records of many logs in turn, some in parts.
func TestLogsThatAreReadAtOnceComeWholeWithFewConsumers(t *testing.T) {
	j := newJournal(t)
	const logs, records = 2*mostLoads + 20, 5
	name := func(i int) string { return fmt.Sprint("t.", i) }
	last := make([]uint64, logs)
	var err error
	for n := range records {
		for i := range logs {
			r := &Record{Log: ID{byte(i)}, Token: 1, Events: []api.Event{{Seq: uint64(n), Text: strings.Repeat(name(i), 1+n*20)}}}
			if n == 0 {
				r = &Record{Log: r.Log, Token: 1, Call: &CallRecord{Encoded: []byte{}, ID: name(i), Tenant: "t"}}
			}
			_, last[i], err = j.publish(t.Context(), name(i), r, last[i])
			require.NoError(t, err)
		}
	}
	var all sync.WaitGroup
	for i := range logs {
		for range 1 + i%2 { // some are read twice at once
			all.Go(func() {
				s := &State{Tenant: "t", ID: name(i)}
				if i == 7 {
					s.ID = "another"
				}
				events, err := j.load(t.Context(), name(i), s)
				if i == 7 {
					assert.ErrorIs(t, err, ErrNotOurs)
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				assert.Equal(t, last[i], s.Last)
				assert.False(t, s.Created.IsZero())
				assert.Len(t, events, records-1)
				for n, ev := range events {
					assert.Equal(t, strings.Repeat(name(i), 1+(n+1)*20), ev.Text)
				}
			})
		}
	}
	all.Wait()
	_, err = j.load(t.Context(), "t.none", &State{})
	require.ErrorIs(t, err, ErrNoLog)
	s, err := j.js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	require.Positive(t, s.CachedInfo().State.Consumers)
	require.Less(t, s.CachedInfo().State.Consumers, logs/4)

	require.NoError(t, j.purge(t.Context(), name(3), last[3]))
	_, err = j.load(t.Context(), name(3), &State{Tenant: "t", ID: name(3)})
	require.ErrorIs(t, err, ErrGap)
}
