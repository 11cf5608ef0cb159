package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/metrics"
)

// BeatSubject is the subject of the nodes' signed beats. Versions without signatures use another
// subject: they and later versions do not see each other.
const BeatSubject = "millrace.registry.v2.beat"

// Each node subscribes to aliveSubject with its name and answers nothing. Other nodes send a probe
// there when a beat is late, and gateways while they need the node. If the node has no subscription,
// the NATS server says so at once on goneSubject, with the probe's random nonce: no process can forge
// that without the probe.
const (
	aliveSubject = "millrace.registry.alive." // + node
	goneSubject  = "millrace.registry.gone."  // + the sender of the probe, the node, and nonce-number
)

// Default values of Config.
const (
	DefaultBeat = 250 * time.Millisecond
	DefaultDead = time.Second
)

// Config configures a Registry.
type Config struct {
	Conn    *nats.Conn    // nil: this node is alone
	Beat    time.Duration // between two beats; 0: DefaultBeat
	Dead    time.Duration // silence after which a node is considered dead; 0: DefaultDead
	Key     Key           // of this node, see NewKey
	Self    func() Member // called for every beat, from any goroutine; Join sets its Node
	Unheard func() bool   // reports that the NATS server works and nobody but this node receives its beats; nil: somebody may
	Metrics *metrics.Cluster
	Log     zerolog.Logger
}

// Registry is this node's view of the cluster.
type Registry struct {
	cfg      Config
	self     string
	subs     []*nats.Subscription
	quit     chan struct{}
	changed  chan struct{} // see Changed
	done     sync.WaitGroup
	once     sync.Once
	rejected zerolog.Logger // for malformed and forged beats, sampled
	gauged   time.Time      // when the metrics were set last

	sending sync.Mutex // held while a beat is sent, so that beats stay in order
	sent    uint64     // beats

	mu      sync.RWMutex
	table   *table
	signers *signers
	left    bool
}

// Join returns a Registry that sends and receives beats, or an error of the subscriptions.
func Join(cfg Config) (*Registry, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Dead == 0 {
		cfg.Dead = DefaultDead
	}
	self := cfg.Key.Node().String()
	r := &Registry{
		cfg: cfg, self: self, quit: make(chan struct{}), changed: make(chan struct{}, 1), table: newTable(self, cfg.Dead, time.Now()),
		signers:  newSigners(),
		rejected: cfg.Log.Sample(&zerolog.BurstSampler{Burst: 3, Period: 10 * time.Second}),
	}
	if cfg.Conn == nil {
		return r, nil
	}
	for subject, handle := range map[string]nats.MsgHandler{
		BeatSubject: r.receive, aliveSubject + self: func(*nats.Msg) {}, goneSubject + self + ".*.*": r.gone,
	} {
		sub, err := cfg.Conn.Subscribe(subject, handle)
		if err != nil {
			r.unsubscribe()
			return nil, fmt.Errorf("cluster: %w", err)
		}
		r.subs = append(r.subs, sub)
	}
	r.Beat()
	r.done.Go(r.run)
	return r, nil
}

func (r *Registry) unsubscribe() {
	for _, sub := range r.subs {
		_ = sub.Unsubscribe() // the connection may be gone
	}
}

func (r *Registry) run() {
	const probes = 5 // checks for late nodes in each beat interval
	lateEvery := max(r.cfg.Beat/probes, time.Millisecond)
	beat, late := time.NewTicker(r.cfg.Beat), time.NewTicker(lateEvery)
	defer beat.Stop()
	defer late.Stop()
	checks := true // for late nodes
	for {
		select {
		case <-r.quit:
			return
		case now := <-beat.C:
			if !r.rests(now) {
				r.Beat()
			}
			r.judge(now)
			switch alone := r.alone(); {
			case alone && checks:
				late.Stop()
				checks = false
			case !alone && !checks: // no beat is late before the time between two
				late.Reset(lateEvery)
				checks = true
			}
		case now := <-late.C:
			r.probeLate(now)
		}
	}
}

// rests reports that no beat is needed, because nobody but this node would receive it. That is as good as its echo.
func (r *Registry) rests(now time.Time) bool {
	if r.cfg.Unheard == nil || !r.cfg.Unheard() {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.table.receive(now, Member{Node: r.self})
	return true
}

// alone reports that no other node is known.
func (r *Registry) alone() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.table.members) == 0
}

// probeLate sends a probe to each node whose beat is late.
func (r *Registry) probeLate(now time.Time) {
	r.mu.Lock()
	late := r.table.late(now, rand.Text)
	r.mu.Unlock()
	for _, q := range late {
		r.send(q)
	}
}

// Probe sends a probe to another node and returns the probe's number, for Died.
func (r *Registry) Probe(node string) uint64 {
	r.mu.Lock()
	q := r.table.probe(node, rand.Text)
	r.mu.Unlock()
	if r.cfg.Conn != nil && q.nonce != "" {
		r.send(q)
	}
	return q.number
}

func (r *Registry) send(q probe) {
	reply := fmt.Sprintf("%s%s.%s.%s-%d", goneSubject, r.self, q.node, q.nonce, q.number)
	if err := r.cfg.Conn.PublishRequest(aliveSubject+q.node, reply, nil); err != nil {
		r.cfg.Log.Debug().Err(err).Str("member", q.node).Msg("no probe sent to a node") // its silence decides
	}
}

// gone receives the NATS server's message that a node has no subscription: its process has ended
// or has lost its connection.
func (r *Registry) gone(m *nats.Msg) {
	const noResponders = "503"
	if m.Header.Get("Status") != noResponders {
		return
	}
	node, id, _ := strings.Cut(strings.TrimPrefix(m.Subject, goneSubject+r.self+"."), ".")
	nonce, digits, _ := strings.Cut(id, "-")
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	was := r.table.gone(time.Now(), probe{node, nonce, number})
	r.mu.Unlock()
	if was {
		r.cfg.Log.Warn().Str("member", node).Msg("a node is gone")
		r.change()
	}
}

// Changed receives a value after a node has joined or was found dead by a probe. It is for one reader.
func (r *Registry) Changed() <-chan struct{} { return r.changed }

func (r *Registry) change() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Beat sends a beat now, for a change that others should know soon.
func (r *Registry) Beat() {
	if r.cfg.Conn == nil {
		return
	}
	r.sending.Lock()
	defer r.sending.Unlock()
	m := r.cfg.Self()
	r.mu.RLock()
	m.Node, m.BeatsEvery, m.Left = r.self, r.cfg.Beat, r.left
	r.mu.RUnlock()
	data, err := json.Marshal(&m)
	if err == nil {
		r.sent++
		err = r.cfg.Conn.PublishMsg(r.cfg.Key.sign(r.sent, data))
	}
	if err != nil {
		r.cfg.Log.Debug().Err(err).Msg("a beat was not sent") // other nodes see the silence, and this one gets no echo
	}
}

func (r *Registry) receive(m *nats.Msg) {
	now := time.Now()
	r.mu.Lock()
	member, err := receive(now, r.table, r.signers, m)
	r.mu.Unlock()
	switch {
	case err == nil && member != nil:
		r.cfg.Log.Info().Str("member", member.Node).Any("roles", member.Roles).Str("model", member.Model).Msg("a node has joined")
		r.change()
	case errors.Is(err, errNoBeat):
		r.cfg.Metrics.Dropped("beat", 1)
		r.rejected.Warn().Err(err).Int("bytes", len(m.Data)).Msg("dropped a malformed beat")
	case err != nil:
		r.cfg.Metrics.Dropped("forged_beat", 1)
		r.rejected.Warn().Err(err).Msg("dropped a forged or old beat")
	}
}

// receive applies a message on BeatSubject to the table. It returns the member if it has joined.
func receive(now time.Time, t *table, s *signers, m *nats.Msg) (joined *Member, err error) {
	b, err := readBeat(m)
	if err != nil {
		return nil, err
	}
	member, err := s.open(now, b)
	if err != nil || !t.receive(now, member) {
		return nil, err
	}
	return &member, nil
}

func (r *Registry) judge(now time.Time) {
	r.mu.Lock()
	silent := r.table.tick(now)
	r.signers.forget(now, remember)
	live, silentCount := r.table.live(), r.table.silentCount()
	r.mu.Unlock()
	for _, node := range silent {
		r.cfg.Log.Warn().Str("member", node).Dur("silence", r.cfg.Dead).Msg("a node is silent")
	}
	const aloneEvery = time.Second // between two changes of the metrics without another node
	if len(live)+silentCount == 0 && len(silent) == 0 && now.Sub(r.gauged) < aloneEvery {
		return
	}
	r.gauged = now
	self := r.cfg.Self()
	byRole := make(map[string]int)
	for _, role := range append(Roles(), Prefill, Decode) {
		byRole[string(role)] = 0
		for i := range live {
			if live[i].Has(role) {
				byRole[string(role)]++
			}
		}
		if self.Has(role) {
			byRole[string(role)]++
		}
	}
	r.cfg.Metrics.Nodes(byRole, silentCount)
	kinds := make(map[string]metrics.Kinds)
	for model, k := range KindsOf(append(live, &self)) {
		kinds[model] = metrics.Kinds{Numerics: len(k.Numerics), Text: len(k.Text)}
	}
	r.cfg.Metrics.Kinds(kinds)
}

// Others returns the other live nodes. The list and its members are shared and read-only.
func (r *Registry) Others() []*Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.live()
}

// Alive says whether a node has sent a beat lately. This node is always alive.
func (r *Registry) Alive(node string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.alive(node)
}

// Finished says whether a worker has left with none of this node's sequences in hand: their ends are sent. Nodes are forgotten after a
// minute.
func (r *Registry) Finished(node string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.finished(node)
}

// Died says whether a node was connected to NATS when it was sent the probe with a number, and has
// ended since without leaving. Nodes are forgotten after a minute.
func (r *Registry) Died(node string, probe uint64) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.died(node, probe)
}

// Partitioned says that this node does not receive its own beats. It cannot judge other nodes then.
func (r *Registry) Partitioned() bool {
	if r.cfg.Conn == nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.partitioned || time.Since(r.table.echo) > r.cfg.Dead/2
}

// Leave sends a last beat, after which other nodes forget this one at once.
func (r *Registry) Leave() {
	if r.cfg.Conn != nil {
		r.once.Do(r.leave)
	}
}

func (r *Registry) leave() {
	close(r.quit)
	r.done.Wait()
	r.mu.Lock()
	r.left = true
	r.mu.Unlock()
	r.Beat()
	r.unsubscribe()
	_ = r.cfg.Conn.FlushTimeout(DefaultDead) // the connection may be gone
}
