package log

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/durable"
)

// A world has the parts of three gateways that decide between tenants: the limiter of keys, ids, records
// and quotas. These are the program's own. NATS and the engine are a few maps, and the clock is virtual.
// The world knows the true content of every call and compares it with the results of each tenant.

const (
	worldTenants  = 8
	worldGateways = 3
	worldLimit    = 1 << 20 // limit of the quotas, in bytes: a share of 64 KiB for each tenant
	// For takeovers: one counts a log by its size, up to reserveStep away from what the dead gateway had reserved.
	worldSpare     = worldLimit / 4
	worldRetention = 2 * time.Minute  // lifetime of records and of reports
	worldKeep      = 30 * time.Second // lifetime of a log after its call's end
)

// truth is the true content of one call.
type truth struct {
	serial          int
	tenant, id, key string
	body            string
	encoded         []byte
	damaged         bool // records of its log were lost
}

// worldLog is one log in the stream.
type worldLog struct {
	entries []Entry
	calls   []*truth // call of each entry
	bytes   int64
	touched time.Time
}

// worldSession is a session without its goroutine and its buffer.
type worldSession struct {
	truth     *truth
	name      string // of the Log: the key of the session
	st        State
	token     uint64
	reserved  int64
	leads     bool
	logClosed bool
	until     time.Time // if it has ended: when its log is removed
	run       api.Stream
}

type worldGateway struct {
	node     string
	quota    *quota
	sessions map[string]*worldSession
	ended    []*worldSession
}

// deadReport is the last report of a dead gateway on a tenant. It counts until its records expire.
type deadReport struct {
	node, tenant string
	bytes        int64
	until        time.Time
}

type world struct {
	disabled string // name of the check that is disabled
	rng      *rand.Rand
	now      time.Time
	guard    api.Engine
	keys     map[string][]*auth.Key // by tenant
	seq      uint64
	bytes    int64

	stream      map[string]*worldLog
	gateways    []*worldGateway
	deadReports []*deadReport
	serial      int
	calls       map[string]*truth      // by serial
	admitted    map[string][]time.Time // by key, within the last minute
	running     map[string]int         // by key
	counts      map[string]int         // of events, to check that the operations reach them
	err         error                  // the first broken promise
}

func (w *world) broken(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

func (w *world) gateway() *worldGateway {
	w.serial++
	return &worldGateway{node: "g" + strconv.Itoa(w.serial), quota: func() *quota {
		l := newQuota(worldLimit)
		l.tenants = worldTenants
		if w.disabled == "a share belongs to its tenant" {
			l.tenants = 1
		}
		return l
	}(), sessions: map[string]*worldSession{}}
}

// silentEngine is an engine without answers. The world writes them itself.
type silentEngine struct{ api.Engine }

func (silentEngine) Submit(context.Context, *api.Request) (api.Stream, error) {
	return silentEngine{}, nil
}
func (silentEngine) Next(context.Context) (api.Event, error) { return api.Event{}, io.EOF }
func (silentEngine) Poll() (api.Event, bool, error)          { return api.Event{}, false, io.EOF }
func (silentEngine) Wake() <-chan struct{}                   { return nil }
func (silentEngine) Close()                                  {}

// admit runs a request with a key, and checks that only the use of this key decides.
func (w *world) admit(key *auth.Key) (api.Stream, bool) {
	id := key.ID
	w.admitted[id] = slices.DeleteFunc(w.admitted[id], func(at time.Time) bool { return w.now.Sub(at) >= time.Minute })
	lately := len(w.admitted[id])
	var s api.Stream = silentEngine{}
	if w.disabled != "the limiter" {
		var err error
		if s, err = w.guard.Submit(api.WithCaller(context.Background(), key), &api.Request{N: 1}); err != nil {
			if lately < key.RequestsPerMinute && w.running[id] < key.Concurrent {
				w.broken("429 for key %s, which had %d requests in the last minute and %d running: %v", id, lately, w.running[id], err)
			}
			w.counts["refused by the limiter"]++
			return nil, false
		}
	}
	w.admitted[id] = append(w.admitted[id], w.now)
	if w.running[id]++; lately+1 > 2*key.RequestsPerMinute || w.running[id] > key.Concurrent {
		w.broken("key %s had %d requests in a minute, and %d running: its limits are %d and %d", id, lately+1, w.running[id],
			key.RequestsPerMinute, key.Concurrent)
	}
	return s, true
}

func (w *world) stop(s *worldSession) {
	if s.run != nil {
		s.run.Close()
		s.run = nil
		w.running[s.truth.key]--
	}
}

// name returns the log's name, without the tenant if that check is disabled. A record's tenant is the second check: it is needed where two
// tenants have one token.
func (w *world) name(tenant, id string) string {
	if w.disabled == "a log's name has its tenant" || w.disabled == "the tenant of a call's record" {
		tenant = ""
	}
	return Name(tenant, id)
}

// write appends a record on the condition that last is the log's last sequence, as JetStream does.
func (w *world) write(s *worldSession, r *Record, bytes int64, last uint64) error {
	l := w.stream[s.name]
	var found uint64
	if l != nil && len(l.entries) > 0 {
		found = l.entries[len(l.entries)-1].last
	}
	switch {
	case found != last:
		return ErrFenced
	case w.bytes+bytes > 2*worldLimit:
		if w.within(s.truth.tenant, bytes) {
			w.broken("the stream is full for tenant %s, which is within its share", s.truth.tenant)
		}
		return ErrFull
	case l == nil:
		l = &worldLog{}
		w.stream[s.name] = l
	}
	w.seq++
	if w.disabled != "the identity of a log" {
		r.Log = s.st.Log
	}
	l.entries = append(l.entries, Entry{Record: r, first: w.seq, last: w.seq, bytes: bytes})
	l.calls = append(l.calls, s.truth)
	l.bytes += bytes
	l.touched = w.now
	if w.bytes += bytes; w.bytes > worldLimit+worldSpare {
		w.broken("found logs of %d bytes, expected at most %d", w.bytes, worldLimit+worldSpare)
	}
	s.st.Last = w.seq
	return nil
}

// purge removes the first n records of a log.
func (w *world) purge(log string, n int) {
	l := w.stream[log]
	if l == nil {
		return
	}
	for _, e := range l.entries[:n] {
		l.bytes -= e.bytes
		w.bytes -= e.bytes
	}
	l.entries, l.calls = slices.Delete(l.entries, 0, n), slices.Delete(l.calls, 0, n)
	if len(l.entries) == 0 {
		delete(w.stream, log)
	}
}

// sweep removes the log of an ended call, if no other log has its name.
func (w *world) sweep(g *worldGateway, s *worldSession) {
	w.free(g, s)
	if l := w.stream[s.name]; l != nil && l.entries[len(l.entries)-1].writer() == s.token {
		w.remove(s.name)
	}
}

func (w *world) remove(log string) {
	if l := w.stream[log]; l != nil {
		w.purge(log, len(l.entries))
	}
}

// within reports whether a tenant stays within its share with more bytes in addition. It counts the
// tenant's logs, the logs that gateways can write again, and the reservations of dead gateways.
func (w *world) within(tenant string, more int64) bool {
	sum := more
	used := map[string]int64{}
	for log, l := range w.stream {
		if l.calls[0].tenant == tenant {
			used[log] = reservedFor(l.bytes)
		}
	}
	for _, g := range w.gateways {
		for _, s := range g.sessions {
			if s.leads && s.truth.tenant == tenant {
				used[s.st.quotaKey(s.name)] = s.reserved
				delete(used, s.name)
			}
		}
		for _, s := range g.ended {
			if s.truth.tenant == tenant {
				used[s.st.quotaKey(s.name)] = s.st.Bytes
			}
		}
	}
	for _, bytes := range used {
		sum += bytes
	}
	for _, g := range w.deadReports {
		if g.tenant == tenant {
			sum += g.bytes
		}
	}
	return sum <= worldLimit/2/worldTenants
}

// reserve does the work of session.reserve.
func (w *world) reserve(g *worldGateway, s *worldSession, bytes int64, check string) bool {
	if bytes <= s.reserved {
		return true
	}
	token := durable.TenantToken(s.truth.tenant)
	if w.disabled == check {
		g.quota.set(s.st.quotaKey(s.name), token, bytes)
		return true
	}
	if n, ok := g.quota.reserveLog(s.st.quotaKey(s.name), token, bytes); ok {
		s.reserved = n
		w.report(g, token)
		return true
	}
	if w.within(s.truth.tenant, bytes) {
		w.broken("found no quota of %d bytes for tenant %s, expected them within its share", bytes, s.truth.tenant)
	}
	w.counts["refused by the quota"]++
	return false
}

func (w *world) report(g *worldGateway, token string) {
	for _, other := range w.gateways {
		if other != g && w.disabled != "gateways report" {
			other.quota.receive(w.now, g.node, map[string]int64{token: g.quota.own[token]}, false)
		}
	}
}

// reports sends the reports with all tenants.
func (w *world) reports() {
	for _, g := range w.gateways {
		for _, other := range w.gateways {
			if other == g || w.disabled == "gateways report" {
				continue
			}
			other.quota.receive(w.now, g.node, g.quota.own, true)
			for node, r := range g.quota.silent(w.now.Add(-silentAfter)) {
				if w.disabled != "a gateway inherits reports" {
					other.quota.inherit(r.reported, node, r.bytes)
				}
			}
		}
	}
}

// free does the work of session.freeReservation.
func (w *world) free(g *worldGateway, s *worldSession) {
	s.reserved = 0
	if w.disabled != "a reservation is freed" {
		g.quota.free(s.st.quotaKey(s.name))
		w.report(g, durable.TenantToken(s.truth.tenant))
	}
}

// apply does state.apply, without the disabled check.
func (w *world) apply(st *State, e Entry) ([]api.Event, error) {
	r := *e.Record
	if r.Call != nil {
		call := *r.Call
		if w.disabled == "the tenant of a call's record" {
			call.Tenant, call.ID = st.Tenant, st.ID
		}
		r.Call = &call
	}
	e.Record = &r
	return st.Apply(e)
}

// load does the work of session.load and, with its queries to the owner, of session.read.
func (w *world) load(tenant, id string, lost bool) (st *State, of *truth, err error) {
	st, of, err = w.loadOne(tenant, id)
	again := errors.Is(err, ErrGap) || lost && errors.Is(err, ErrNoLog)
	if owner := w.owner(w.name(tenant, id)); again && owner != nil && w.disabled != "the owner is queried" {
		w.rewrite(owner)
		return w.loadOne(tenant, id)
	} else if again && owner != nil && errors.Is(err, ErrGap) && owner.truth.tenant == tenant {
		w.broken("410 for tenant %s, and the gateway that has call %d in memory is alive", tenant, owner.truth.serial)
	}
	return st, of, err
}

func (w *world) loadOne(tenant, id string) (st *State, of *truth, err error) {
	st = &State{Tenant: tenant, ID: id}
	l := w.stream[w.name(tenant, id)]
	if l == nil {
		return st, nil, ErrNoLog
	}
	for i, e := range l.entries {
		events, err := w.apply(st, e)
		if err != nil {
			return st, l.calls[i], err
		}
		if e.Call != nil {
			of = l.calls[i]
		}
		w.shown(of, events)
	}
	return st, of, st.whole()
}

// shown checks that events belong to the call that is read.
func (w *world) shown(of *truth, events []api.Event) {
	for _, ev := range events {
		if from := w.calls[ev.Text]; from != of {
			w.broken("a reader of call %+v gets an event of %+v", of, from)
		}
	}
	w.counts["events read"] += len(events)
}

// owner returns the session that has the call of a log in memory, because it leads or has just ended.
func (w *world) owner(log string) *worldSession {
	for _, g := range w.gateways {
		for _, s := range g.sessions {
			if s.leads && s.name == log && !s.logClosed {
				return s
			}
		}
		for _, s := range g.ended {
			if s.name == log && !s.logClosed {
				return s
			}
		}
	}
	return nil
}

// rewrite does the work of session.resync: the owner writes its log again, unless another one owns it.
func (w *world) rewrite(s *worldSession) {
	l := w.stream[s.name]
	if l != nil && l.entries[len(l.entries)-1].writer() != s.token {
		return
	}
	known := s.st.Known
	w.remove(s.name)
	call := *s.st.Call
	err := w.write(s, &Record{Token: s.token, Call: &call}, s.st.Bytes, 0)
	for seq := uint64(1); err == nil && seq <= known; seq++ {
		err = w.write(s, &Record{Token: s.token, Events: []api.Event{{Seq: seq, Text: strconv.Itoa(s.truth.serial)}}}, 0, s.st.Last)
	}
	w.counts["written again"]++
}

func (e Entry) writer() uint64 { return e.Token }

func newWorld(check string, seed uint64, now time.Time, keys map[string][]*auth.Key) *world {
	w := &world{disabled: check, rng: rand.New(rand.NewPCG(seed, 1)), now: now, keys: keys, stream: map[string]*worldLog{},
		calls:    map[string]*truth{},
		admitted: map[string][]time.Time{}, running: map[string]int{}, counts: map[string]int{}}
	w.guard = auth.GuardAt(silentEngine{}, func() time.Time { return w.now })
	for range worldGateways {
		w.gateways = append(w.gateways, w.gateway())
	}
	return w
}
