package cluster

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/metrics"
)

// ear is what a node knows of others, at a time that the test sets.
type ear struct {
	now     time.Time
	table   *table
	signers *signers
}

func newEar() *ear {
	at := time.Unix(1000, 0)
	return &ear{at, newTable("me", time.Second, at), newSigners()}
}

func (e *ear) receives(m *nats.Msg) error {
	_, err := receive(e.now, e.table, e.signers, m)
	return err
}

func TestNobodySpeaksInTheNameOfAnotherNode(t *testing.T) {
	honest, liar := newSpeaker(), newSpeaker()
	goodbye := func(change func(m *nats.Msg)) *nats.Msg {
		m := honest.sign(99, []byte(`{"node":"`+honest.name+`","left":true}`))
		change(m)
		return m
	}
	for name, forged := range map[string]*nats.Msg{
		"unsigned":                {Subject: BeatSubject, Data: []byte(`{"node":"` + honest.name + `","left":true}`)},
		"signed by another":       liar.sign(99, []byte(`{"node":"`+honest.name+`","left":true}`)),
		"another key under it":    goodbye(func(m *nats.Msg) { m.Header[keyHeader] = liar.sign(1, nil).Header[keyHeader] }),
		"other words":             goodbye(func(m *nats.Msg) { m.Data = append(m.Data, ' ') }),
		"another number":          goodbye(func(m *nats.Msg) { m.Header.Set(countHeader, "100") }),
		"no number":               goodbye(func(m *nats.Msg) { m.Header.Set(countHeader, "-1") }),
		"a key of another length": goodbye(func(m *nats.Msg) { m.Header.Set(keyHeader, "AAAA") }),
		"a key that is none":      goodbye(func(m *nats.Msg) { m.Header.Set(keyHeader, strings.Repeat("*", 43)) }),
		"no signature":            goodbye(func(m *nats.Msg) { m.Header.Del(signatureHeader) }),
		"too long": honest.sign(99, append([]byte(`{"node":"`+honest.name+`","left":true}`),
			make([]byte, largestBeat)...)),
		"a name that is not its own":   liar.sign(1, []byte(`{"node":"me"}`)),
		"of its own name, but no JSON": honest.sign(99, []byte(`{`)),
	} {
		t.Run(name, func(t *testing.T) {
			for _, known := range []bool{true, false} { // before its first beat, too
				e := newEar()
				if known {
					honest.sent = 0
					require.NoError(t, e.receives(honest.beats(t, Member{})))
				}
				require.Error(t, e.receives(forged))
				require.Equal(t, known, e.table.alive(honest.name))
				honest.sent = 1
				require.NoError(t, e.receives(honest.beats(t, Member{})), "its beat is accepted")
			}
		})
	}
}

func TestAnOldBeatNeitherRevivesANodeNorEndsIt(t *testing.T) {
	e, s := newEar(), newSpeaker()
	first, second := s.beats(t, Member{Requests: 1}), s.beats(t, Member{Requests: 2})
	require.NoError(t, e.receives(second))
	for _, old := range []*nats.Msg{first, second} {
		require.ErrorContains(t, e.receives(old), "came after beat 2")
	}
	require.Equal(t, 2, e.table.live()[0].Requests)
	left := s.beats(t, Member{Left: true})
	require.NoError(t, e.receives(left))
	require.Error(t, e.receives(second))
	require.False(t, e.table.alive(s.name), "it has gone")
	e.now = e.now.Add(10 * forget)
	e.table.echo = e.now
	e.table.tick(e.now)
	e.signers.forget(e.now, remember)
	require.Empty(t, e.table.members)
	require.Error(t, e.receives(second), "its name is remembered for longer")
}

func TestTheNamesThatAreRememberedAreBounded(t *testing.T) {
	e, s := newEar(), newSpeaker()
	for i := range mostSigners {
		e.signers.known[fmt.Sprint(i)] = &signer{last: e.now}
	}
	require.ErrorContains(t, e.receives(s.beats(t, Member{})), "one node too many")
	e.now = e.now.Add(forget + 1)
	require.NoError(t, e.receives(s.beats(t, Member{})), "those that are gone make room")
	e.now = e.now.Add(remember + 1)
	e.signers.forget(e.now, remember)
	require.Empty(t, e.signers.known)
}

func TestAForgedGoodbyeEvictsNobodyAndIsCounted(t *testing.T) {
	const wait, beat = 20 * time.Second, 10 * time.Millisecond
	s := natsServer(t)
	m := metrics.New(metrics.Build{})
	join := func() *Registry {
		r, err := Join(Config{
			Conn: connect(t, s), Beat: beat, Dead: time.Hour, Key: NewKey(), Self: func() Member { return Member{} },
			Metrics: m.Cluster(), Log: zerolog.Nop(),
		})
		require.NoError(t, err)
		t.Cleanup(r.Leave)
		return r
	}
	a, b := join(), join()
	require.Eventually(t, func() bool { return a.Alive(b.self) }, wait, time.Millisecond)
	liar := connect(t, s)
	for i := range 20 {
		require.NoError(t, liar.PublishMsg(NewKey().sign(uint64(i+1), []byte(`{"node":"`+b.self+`","left":true}`))))
	}
	require.NoError(t, liar.Flush())
	count := func() uint64 { // of a's beats that a has received
		a.mu.RLock()
		defer a.mu.RUnlock()
		return a.signers.known[a.self].count
	}
	before := count()
	require.Eventually(t, func() bool { return count() > before+3 }, wait, time.Millisecond) // earlier beats are done
	require.True(t, a.Alive(b.self))
	require.Eventually(t, func() bool { // both received them
		page := httptest.NewRecorder()
		m.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		return strings.Contains(page.Body.String(), `millrace_remote_dropped_total{reason="forged_beat"} 40`)
	}, wait, time.Millisecond)
	b.Leave()
	require.Eventually(t, func() bool { return !a.Alive(b.self) }, wait, time.Millisecond)
	require.False(t, a.Died(b.self, 0))
}

func BenchmarkOpen(b *testing.B) {
	k, signers, now := NewKey(), newSigners(), time.Unix(1000, 0)
	data := []byte(`{"node":"` + k.Node().String() + `"}`)
	beats := make([]beat, b.N)
	for i := range beats {
		beats[i], _ = readBeat(k.sign(uint64(i+1), data))
	}
	b.ResetTimer()
	for i := range beats {
		if _, err := signers.open(now, beats[i]); err != nil {
			b.Fatal(err)
		}
	}
}
