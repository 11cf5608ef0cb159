package log

import (
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/tracing"
)

func records() []*Record {
	node := "node"
	half := api.TokenLogprob{Token: math.MaxInt32, Text: "\xe2\x80", Bytes: []byte{0xe2, 0x80}, Logprob: float32(math.Inf(-1))}
	outer := half
	outer.Top = []api.TokenLogprob{half, {Token: 0, Text: "a", Logprob: -0.1}}
	return []*Record{
		{Token: 7, Log: ID{2}, Call: &CallRecord{Encoded: []byte("x"), ID: "cmpl-1", Tenant: "t", Key: "0123456789ab", Owner: node,
			Trace: tracing.Decode("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b")}},
		{Token: math.MaxUint64, Log: ID{1, 15: 2}, Owner: &node},
		{Token: 3, Log: ID{3}, Closed: true},
		{Token: 1, Owner: new(string)},
		{Token: 2, Events: []api.Event{
			{Seq: 1, Choice: 3, Text: "é", Reasons: true, Pin: &api.Pin{Numerics: "n", Text: "t", Prompt: "p"},
				Tokens:   []int32{0, 5, math.MaxInt32},
				Logprobs: []api.TokenLogprob{outer}},
			{Seq: 2, Usage: &api.Usage{PromptTokens: 1, CompletionTokens: 2, CachedTokens: 3}, Finish: api.FinishStop, Stop: "\n\n",
				Ended: 1_700_000_000},
			{Seq: 3, Finish: api.FinishError, Done: true, Err: &api.Error{Code: 429, Param: "p", Message: "m", Reason: "r",
				RetryAfter: time.Second}},
		}},
	}
}

func TestARecordComesBackAsItWas(t *testing.T) {
	for _, r := range records() {
		got, err := decodeRecord(r.encode())
		require.NoError(t, err)
		require.Equal(t, r, got)
	}
}

func TestADamagedRecordIsAnError(t *testing.T) {
	for _, r := range records() {
		body := r.encode()
		for n := range body[:len(body)-1] {
			if got, err := decodeRecord(body[:n]); err == nil { // cut between two fields
				require.NotEqual(t, r, got)
			} else {
				require.ErrorIs(t, err, errRecord)
			}
		}
	}
}

func FuzzRecord(f *testing.F) {
	for _, r := range records() {
		f.Add(r.encode())
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := decodeRecord(body)
		if err != nil {
			require.ErrorIs(t, err, errRecord)
			return
		}
		again, err := decodeRecord(r.encode()) // a decoded record can be encoded
		require.NoError(t, err)
		require.Equal(t, r.encode(), again.encode())
		s := State{Tenant: "t", ID: "cmpl-1"}
		_, err = s.Apply(Entry{Record: records()[0], first: 1, last: 1})
		require.NoError(t, err)
		if _, err := s.Apply(Entry{Record: r, last: 2}); err != nil { // no record breaks the state
			require.True(t, errors.Is(err, ErrReplaced) || errors.Is(err, ErrNotOurs) || errors.Is(err, ErrOutgrown), "%v", err)
		}
	})
}

func TestAStateCountsWhatTheOwnerWroteOnce(t *testing.T) {
	events := func(from, to uint64) (all []api.Event) {
		for seq := from; seq <= to; seq++ {
			all = append(all, api.Event{Seq: seq})
		}
		return all
	}
	a, b := "a", "b"
	first := &CallRecord{ID: "x", Owner: a}
	s := State{ID: "x"}
	for i, step := range []struct {
		record *Record
		added  int
		known  uint64
		owner  string
	}{
		{&Record{Token: 1, Events: events(1, 2)}, 0, 0, ""}, // rest of an expired log
		{&Record{Token: 1, Call: first}, 0, 0, a},
		{&Record{Token: 1, Events: events(1, 3)}, 3, 3, a},
		{&Record{Token: 9, Events: events(4, 5)}, 0, 3, a}, // not the owner
		{nil, 0, 3, a}, // part of a record
		{&Record{Token: 2, Owner: &b}, 0, 3, b},
		{&Record{Token: 1, Events: events(4, 4)}, 0, 3, b}, // of the previous owner
		{&Record{Token: 2, Events: events(4, 4)}, 1, 4, b},
		{&Record{Token: 2, Call: &CallRecord{ID: "x", Owner: b}}, 0, 4, b}, // rewritten
		{&Record{Token: 2, Events: events(1, 4)}, 0, 4, b},
		{&Record{Token: 2, Events: events(4, 6)}, 2, 6, b},
	} {
		added, err := s.Apply(Entry{Record: step.record, first: uint64(i + 1), last: uint64(i + 1)})
		require.NoError(t, err)
		require.Len(t, added, step.added, "step %d", i)
		require.Equal(t, step.known, s.Known, "step %d", i)
		require.Equal(t, step.owner, s.Owner, "step %d", i)
		require.Equal(t, uint64(i+1), s.Last)
	}
	require.NoError(t, s.whole())
	added, err := s.Apply(Entry{Record: &Record{Token: 2, Events: events(8, 9)}, last: 20})
	require.NoError(t, err)
	require.Empty(t, added)
	require.ErrorIs(t, s.whole(), ErrGap)
	for _, r := range []*Record{{Token: 2, Call: &CallRecord{ID: "x", Owner: b}}, {Token: 2, Events: events(1, 7)}} { // rewritten
		added, err = s.Apply(Entry{Record: r, first: 21, last: 21})
		require.NoError(t, err)
	}
	require.Len(t, added, 1)
	require.NoError(t, s.whole())
	require.Equal(t, uint64(7), s.Known)
}

func TestPartsOfARecordAreJoinedAndBrokenOnesDropped(t *testing.T) {
	var x assembly
	for _, step := range []struct {
		part, body, whole string
		first             uint64
	}{
		{"", "a", "a", 1}, {"1/2", "b", "", 0}, {"2/2", "c", "bc", 2}, {"2/2", "d", "", 0}, {"1/3", "e", "", 0},
		{"1/2", "f", "", 0}, {"2/2", "g", "fg", 6}, {"1/2", "h", "", 0}, {"", "i", "i", 9}, {"2/2", "j", "", 0},
		{"x", "k", "", 0}, {"0/2", "l", "", 0}, {"3/2", "m", "", 0}, {"1/1", "n", "n", 14},
	} {
		body, first, ok := x.join(step.part, []byte(step.body), uint64(step.body[0]-'a'+1))
		require.Equal(t, step.whole != "", ok, step.body)
		require.Equal(t, step.whole, string(body[:len(step.whole)]), step.body)
		if ok {
			require.Equal(t, step.first, first, step.body)
		}
	}
}

// TestEndedLogsOfLateAreBoundedInBytes checks that above the limit older logs lose their records, but
// stay in the window.
func TestEndedLogsOfLateAreBoundedInBytes(t *testing.T) {
	r := newRecent(time.Hour, 100)
	log := func(id string, n int) *endedLog { return &endedLog{log: id, records: [][]byte{make([]byte, n)}} }
	a, b, c := log("a", 40), log("b", 40), log("c", 30)
	r.add(a)
	r.add(b)
	require.Equal(t, []*endedLog{a, b}, r.all())
	r.add(c)
	require.Equal(t, []*endedLog{b, c}, r.all())
	require.Nil(t, r.get("a"))
	require.Nil(t, r.records(a))
	require.Same(t, b, r.get("b"))
	require.Empty(t, r.expired(time.Now()))
	r.add(log("d", 101)) // more than the limit
	require.Empty(t, r.all())
	require.Zero(t, r.bytes)
	d := log("d", 1)
	r.add(d) // the same call again
	require.Equal(t, []*endedLog{d}, r.all())
	old := r.expired(time.Now().Add(2 * time.Hour))
	require.Len(t, old, 5)
	require.Same(t, a, old[0])
	require.Zero(t, r.bytes+len(r.byTenant)+len(r.logs)+len(r.byLog))
}

// TestATenantsEndedLogsDoNotPushOutAnothers checks that above the limit the tenant with the most bytes
// loses its oldest records.
func TestATenantsEndedLogsDoNotPushOutAnothers(t *testing.T) {
	r := newRecent(time.Hour, 100)
	log := func(tenant, id string, n int) *endedLog {
		return &endedLog{log: Name(tenant, id), initial: State{Tenant: tenant, ID: id}, records: [][]byte{make([]byte, n)}}
	}
	modest := log("modest", "1", 30)
	r.add(modest)
	var last *endedLog
	for i := range 10 {
		last = log("greedy", strconv.Itoa(i), 35)
		r.add(last)
	}
	all := r.all()
	require.Len(t, all, 3)
	require.Same(t, modest, all[0])
	require.Same(t, last, all[2])
}
