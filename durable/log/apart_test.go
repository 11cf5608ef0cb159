package log

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/callpb"
)

// step does a random operation with a key of a random tenant.
func (w *world) step() {
	w.now = w.now.Add(time.Duration(w.rng.IntN(100)) * time.Millisecond)
	g := w.gateways[w.rng.IntN(len(w.gateways))]
	n := w.rng.IntN(worldTenants)
	if w.rng.IntN(3) == 0 {
		n = w.rng.IntN(2)
	}
	tenant, id := "t"+strconv.Itoa(n), "order-"+strconv.Itoa(w.rng.IntN(3))
	if greedy(tenant) || tenant == "t2" || tenant == "t3" {
		id = "order-" + strconv.Itoa(w.rng.IntN(400))
	}
	key := w.keys[tenant][w.rng.IntN(2)]
	switch p := w.rng.IntN(1000); {
	case p < 250:
		w.start(g, key, id)
	case p < 600:
		w.emit(g)
	case p < 750:
		w.read(g, key, id)
	case p < 800:
		w.end(g)
	case p < 830:
		w.cancel(key, id)
	case p < 831:
		w.die(w.rng.IntN(len(w.gateways)))
	case p < 845:
		w.lose()
	default:
		w.tick()
	}
}

// greedy reports whether a tenant sends more calls than others, and larger ones.
func greedy(tenant string) bool { return tenant == "t0" || tenant == "t1" }

// start does the work of Calls.Run.
func (w *world) start(g *worldGateway, key *auth.Key, id string) {
	w.serial++
	body := fmt.Sprint("body ", w.rng.IntN(2))
	encoded, err := callpb.Encode(&call.Call{N: 1, Created: time.Unix(1, 0), Requests: []*api.Request{{Prompt: body}}})
	if err != nil {
		w.broken("%v", err)
	}
	t := &truth{serial: w.serial, tenant: key.Tenant, id: id, key: key.ID, body: body, encoded: encoded}
	w.calls[strconv.Itoa(t.serial)] = t
	if s := g.sessions[w.name(t.tenant, id)]; s != nil {
		w.join(s.truth, &s.st, t)
		return
	}
	st, of, err := w.load(t.tenant, id, false)
	switch {
	case err == nil:
		w.join(of, st, t)
		g.sessions[w.name(t.tenant, id)] = &worldSession{truth: of, name: w.name(t.tenant, id), st: *st}
		return
	case errors.Is(err, ErrGap):
		w.remove(w.name(t.tenant, id))
	case !errors.Is(err, ErrNoLog) && !errors.Is(err, ErrNotOurs):
		return // 410: its own log was closed
	}
	s := &worldSession{truth: t, name: w.name(t.tenant, id), token: w.rng.Uint64()}
	bytes := int64(1000 + w.rng.IntN(3000))
	if greedy(t.tenant) {
		bytes *= 15
	}
	s.st = State{Tenant: t.tenant, ID: id, Log: NewID(), Owner: g.node, Token: s.token, Bytes: bytes,
		Call: &CallRecord{Tenant: t.tenant, ID: id, Key: t.key, Encoded: encoded, Owner: g.node}}
	if w.disabled == "the identity of a log" {
		s.st.Log = ID{}
	}
	if !w.reserve(g, s, bytes, "new calls reserve quota") {
		return
	}
	first := func() error { return w.write(s, &Record{Token: s.token, Call: s.st.Call}, bytes, 0) }
	if w.disabled == "a call is admitted before it is written" {
		if first() != nil {
			w.free(g, s)
			return
		}
	}
	var ok bool
	if s.run, ok = w.admit(key); !ok {
		if w.stream[s.name] != nil {
			w.broken("the log has the record of a refused call")
		}
		w.free(g, s)
		return
	}
	if w.disabled != "a call is admitted before it is written" && first() != nil {
		w.stop(s)
		w.free(g, s)
		return
	}
	s.leads = true
	g.sessions[s.name] = s
	w.counts["started"]++
}

// join checks a request that joins an existing call.
func (w *world) join(of *truth, st *State, request *truth) {
	same := callpb.Same(st.Call.Encoded, request.encoded)
	if w.disabled == "the body of a request" {
		same = true
	}
	if of.tenant != request.tenant {
		w.broken("tenant %s joins the call of tenant %s", request.tenant, of.tenant)
	}
	if same != (of.body == request.body) {
		w.broken("a request is the same call: %t, expected the opposite", same)
	}
	if !same {
		w.counts["409"]++
	}
}

// any returns a random session that leads at a gateway, or nil.
func (w *world) any(g *worldGateway) *worldSession {
	var leads []string
	for _, name := range slices.Sorted(maps.Keys(g.sessions)) {
		if g.sessions[name].leads {
			leads = append(leads, name)
		}
	}
	if len(leads) == 0 {
		return nil
	}
	return g.sessions[leads[w.rng.IntN(len(leads))]]
}

// emit does the work of session.append.
func (w *world) emit(g *worldGateway) {
	s := w.any(g)
	if s == nil {
		return
	}
	ev := api.Event{Seq: s.st.Known + 1, Text: strconv.Itoa(s.truth.serial)}
	bytes := int64(messageOverhead + w.rng.IntN(500))
	if s.truth.tenant == "t0" {
		bytes *= 50
	}
	if !s.logClosed {
		var err error
		if !w.reserve(g, s, s.st.Bytes+bytes, "answers reserve quota") {
			err = ErrFull
		} else {
			err = w.write(s, &Record{Token: s.token, Events: []api.Event{ev}}, bytes, s.st.Last)
		}
		switch {
		case errors.Is(err, ErrFenced):
			if l := w.stream[s.name]; l == nil { // lost
				w.rewrite(s)
				return
			}
			w.stop(s)
			w.free(g, s)
			s.leads = false
			return
		case err != nil:
			s.logClosed = true
			w.remove(s.name)
			w.write(s, &Record{Token: s.token, Closed: true}, messageOverhead, 0) //nolint:errcheck // the quota always has space for this record
			w.free(g, s)
			w.counts["closed"]++
		default:
			s.st.Bytes += bytes
		}
	}
	s.st.Known++
}

// end ends a random answer. Its log is kept for worldKeep.
func (w *world) end(g *worldGateway) {
	if s := w.any(g); s != nil {
		w.finish(g, s)
	}
}

func (w *world) finish(g *worldGateway, s *worldSession) {
	w.stop(s)
	delete(g.sessions, s.name)
	s.leads, s.until = false, w.now.Add(worldKeep)
	if !s.logClosed {
		g.quota.reserve(s.st.quotaKey(s.name), durable.TenantToken(s.truth.tenant), s.st.Bytes)
		w.report(g, durable.TenantToken(s.truth.tenant))
	}
	if l := w.stream[s.name]; l == nil || l.entries[len(l.entries)-1].writer() == s.token {
		g.ended = append(g.ended, s)
	} else {
		w.free(g, s)
	}
}

// read does the work of Calls.Attach and reads the log. If the owner is dead, it takes the call over.
func (w *world) read(g *worldGateway, key *auth.Key, id string) {
	name := w.name(key.Tenant, id)
	s := g.sessions[name]
	if s == nil {
		st, of, err := w.load(key.Tenant, id, true)
		if err != nil {
			w.counts["not found"]++
			return
		}
		s = &worldSession{truth: of, name: name, st: *st}
		g.sessions[name] = s
	}
	if s.truth.tenant != key.Tenant {
		w.broken("tenant %s reads call %d of tenant %s", key.Tenant, s.truth.serial, s.truth.tenant)
	}
	if s.leads {
		return
	}
	if !w.follow(s) {
		delete(g.sessions, name)
		return
	}
	if w.owner(s.name) == nil {
		w.takeOver(g, s, key)
	}
}

// follow reads new records of the log. It returns false if the session ends.
func (w *world) follow(s *worldSession) bool {
	l := w.stream[s.name]
	if l == nil {
		return false // lost or expired
	}
	for _, e := range l.entries {
		if e.last <= s.st.Last {
			continue
		}
		events, err := w.apply(&s.st, e)
		w.shown(s.truth, events)
		if err != nil || s.st.Gap {
			w.counts["ended by another log"]++
			return false
		}
	}
	return true
}

// takeOver does the work of session.takeOver. The key that started the call is charged.
func (w *world) takeOver(g *worldGateway, s *worldSession, reader *auth.Key) {
	payer := reader
	for _, k := range w.keys[reader.Tenant] {
		if k.ID == s.st.Call.Key && w.disabled != "the key that started a call is charged" {
			payer = k
		}
	}
	run, ok := w.admit(payer)
	if !ok {
		return
	}
	if payer.ID != s.truth.key {
		w.broken("key %s is charged for a call of key %s", payer.ID, s.truth.key)
	}
	s.run, s.token, s.logClosed = run, w.rng.Uint64(), false
	node := g.node
	if w.write(s, &Record{Token: s.token, Owner: &node}, messageOverhead, s.st.Last) != nil {
		w.stop(s)
		delete(g.sessions, s.name)
		return
	}
	token := durable.TenantToken(s.truth.tenant)
	from := s.st.Owner
	s.st.Owner, s.st.Token, s.leads = g.node, s.token, true
	s.reserved = g.quota.takeOver(s.st.quotaKey(s.name), token, s.st.Bytes, from)
	s.st.Bytes += messageOverhead
	w.report(g, token)
	for _, other := range w.gateways {
		if other != g && w.disabled != "a log is counted once" {
			other.quota.transferred(token, s.reserved, from)
		}
	}
	for _, gh := range w.deadReports {
		if gh.node == from && gh.tenant == s.truth.tenant {
			gh.bytes = max(0, gh.bytes-s.reserved)
		}
	}
	w.counts["taken over"]++
}

// cancel does the work of Calls.Cancel at the gateway that runs the call.
func (w *world) cancel(key *auth.Key, id string) {
	st, of, err := w.load(key.Tenant, id, true)
	if err != nil || st.Call == nil {
		return
	}
	for _, g := range w.gateways {
		for _, s := range g.sessions {
			if s.leads && s.name == w.name(key.Tenant, id) {
				if of.tenant != key.Tenant || s.truth.tenant != key.Tenant {
					w.broken("tenant %s ends call %d of tenant %s", key.Tenant, s.truth.serial, s.truth.tenant)
				}
				w.finish(g, s)
				w.counts["cancelled"]++
				return
			}
		}
	}
}

// die replaces a gateway by a new one.
func (w *world) die(i int) {
	g := w.gateways[i]
	for tenant := range w.keys {
		w.deadReports = append(w.deadReports, &deadReport{g.node, tenant, g.quota.own[durable.TenantToken(tenant)],
			w.now.Add(worldRetention + time.Second)})
	}
	for _, s := range g.sessions {
		w.stop(s)
	}
	w.gateways[i] = w.gateway()
	w.counts["died"]++
	w.reports()
}

// lose removes records of a random log.
func (w *world) lose() {
	names := slices.Sorted(maps.Keys(w.stream))
	if len(names) == 0 {
		return
	}
	log := names[w.rng.IntN(len(names))]
	l := w.stream[log]
	l.calls[0].damaged = true
	w.purge(log, 1+w.rng.IntN(len(l.entries)))
}

// tick does the work that gateways do every second.
func (w *world) tick() {
	for _, g := range w.gateways {
		for len(g.ended) > 0 && w.now.After(g.ended[0].until) {
			w.sweep(g, g.ended[0])
			g.ended = g.ended[1:]
		}
		for _, s := range g.sessions {
			if l := w.stream[s.name]; s.leads && l != nil {
				l.touched = w.now
			}
		}
		g.quota.expire(w.now.Add(-worldRetention))
	}
	w.reports()
	for log, l := range w.stream {
		if w.now.Sub(l.touched) > worldRetention {
			w.remove(log)
		}
	}
	w.deadReports = slices.DeleteFunc(w.deadReports, func(g *deadReport) bool { return w.now.After(g.until) })
}

// worldKeys returns two keys for each tenant.
func worldKeys(t *testing.T) map[string][]*auth.Key {
	t.Helper()
	var lines strings.Builder
	secrets := map[string][]string{}
	for n := range 2 * worldTenants {
		tenant := "t" + strconv.Itoa(n%worldTenants)
		secret, entry := auth.NewKey(tenant)
		if entry.RequestsPerMinute, entry.Concurrent = 4, 3; greedy(tenant) {
			entry.RequestsPerMinute, entry.Concurrent = 40, 8
		}
		line, err := entry.Line()
		require.NoError(t, err)
		lines.WriteString(line)
		secrets[tenant] = append(secrets[tenant], secret)
	}
	path := filepath.Join(t.TempDir(), "keys.yaml")
	require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o600))
	ring, err := auth.Open(path)
	require.NoError(t, err)
	keys := map[string][]*auth.Key{}
	for tenant, all := range secrets {
		for _, secret := range all {
			caller, err := ring.Authenticate("Bearer " + secret)
			require.NoError(t, err)
			keys[tenant] = append(keys[tenant], ring.Key(caller.KeyID()))
		}
	}
	return keys
}

// explore does random operations until a promise is broken. check is disabled.
func explore(t *testing.T, check string, seed uint64) *world {
	t.Helper()
	w := newWorld(check, seed, time.Now().Add(time.Minute), worldKeys(t))
	for i := range operations {
		if w.step(); w.err != nil {
			w.err = fmt.Errorf("operation %d: %w", i, w.err)
			break
		}
	}
	return w
}

const operations = 100_000

// TestNoTenantReachesAnother checks that no tenant reads, ends or evicts another's call, or gets a 409,
// 410 or 429 within its own limits.
func TestNoTenantReachesAnother(t *testing.T) {
	for seed := range uint64(3) {
		w := explore(t, "", seed)
		require.NoError(t, w.err, "seed %d", seed)
		t.Log(w.counts)
		for _, event := range []string{"started", "events read", "409", "refused by the limiter", "refused by the quota", "closed",
			"taken over",
			"written again", "cancelled", "died", "ended by another log", "not found"} {
			require.NotZero(t, w.counts[event], event)
		}
	}
}

// TestEachCheckKeepsTenantsApart disables one check at a time: each time a promise must be broken.
func TestEachCheckKeepsTenantsApart(t *testing.T) {
	for _, check := range []string{
		"a log's name has its tenant", "the tenant of a call's record", "the identity of a log", "the body of a request",
		"the limiter", "a call is admitted before it is written", "the key that started a call is charged",
		"new calls reserve quota", "answers reserve quota", "a share belongs to its tenant", "gateways report",
		"a gateway inherits reports", "a log is counted once", "a reservation is freed",
		"the owner is queried",
	} {
		t.Run(check, func(t *testing.T) {
			w := explore(t, check, 1)
			t.Log(w.err)
			require.Error(t, w.err)
		})
	}
}
