package cluster

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/metrics"
)

// BeatSubject is where every node says what it is, signed. Processes from before the
// signatures use another subject: they and those after them do not see each other.
const BeatSubject = "millrace.registry.v2.beat"

// Each node listens at its name behind aliveSubject, and answers nothing: a node whose
// beat is late is asked there, and the NATS server knows at once whether anybody
// listens. Its word that nobody does comes to who asked behind goneSubject, with the random
// word of the question: nobody else can say it who was not asked.
const (
	aliveSubject = "millrace.registry.alive." // + node
	goneSubject  = "millrace.registry.gone."  // + who asks, the node and the word
)

// Defaults of Config.
const (
	DefaultBeat = 250 * time.Millisecond
	DefaultDead = time.Second
)

// Config of a registry.
type Config struct {
	Conn    *nats.Conn    // nil: this node is alone
	Beat    time.Duration // between two beats; 0: DefaultBeat
	Dead    time.Duration // a node is taken for dead after so much silence; 0: DefaultDead
	Key     Key           // of this node, see NewKey
	Self    func() Member // is called for every beat, from any goroutine; its Node is the Key's
	Metrics *metrics.Cluster
	Log     zerolog.Logger
}

// Registry is this node's view of the cluster.
type Registry struct {
	cfg  Config
	self string
	subs []*nats.Subscription
	quit chan struct{}
	done sync.WaitGroup
	once sync.Once
	lies zerolog.Logger // of beats that are none or are forged: some of them

	saying sync.Mutex // held over a beat of ours: they go out in order
	said   uint64     // beats

	mu      sync.RWMutex
	table   *table
	signers *signers
	left    bool
}

// Join begins to beat and to listen.
func Join(cfg Config) (*Registry, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Dead == 0 {
		cfg.Dead = DefaultDead
	}
	self := cfg.Key.Node().String()
	r := &Registry{
		cfg: cfg, self: self, quit: make(chan struct{}), table: newTable(self, cfg.Dead, time.Now()), signers: newSigners(),
		lies: cfg.Log.Sample(&zerolog.BurstSampler{Burst: 3, Period: 10 * time.Second}),
	}
	if cfg.Conn == nil {
		return r, nil
	}
	for subject, handle := range map[string]nats.MsgHandler{
		BeatSubject: r.hear, aliveSubject + self: func(*nats.Msg) {}, goneSubject + self + ".*.*": r.gone,
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
	const looks = 5 // within a beat, for those that are late
	beat, look := time.NewTicker(r.cfg.Beat), time.NewTicker(max(r.cfg.Beat/looks, time.Millisecond))
	defer beat.Stop()
	defer look.Stop()
	for {
		select {
		case <-r.quit:
			return
		case now := <-beat.C:
			r.Beat()
			r.judge(now)
		case now := <-look.C:
			r.ask(now)
		}
	}
}

// ask asks whether the nodes whose beat is late are still there.
func (r *Registry) ask(now time.Time) {
	r.mu.Lock()
	late := r.table.late(now, rand.Text)
	r.mu.Unlock()
	for _, q := range late {
		err := r.cfg.Conn.PublishRequest(aliveSubject+q.node, goneSubject+r.self+"."+q.node+"."+q.word, nil)
		if err != nil {
			r.cfg.Log.Debug().Err(err).Str("member", q.node).Msg("a late node was not asked") // its silence will tell
		}
	}
}

// gone takes the NATS server's word that nobody listens for a node any more: its
// process has ended, or has lost its connection.
func (r *Registry) gone(m *nats.Msg) {
	const nobody = "503"
	if m.Header.Get("Status") != nobody {
		return
	}
	node, word, _ := strings.Cut(strings.TrimPrefix(m.Subject, goneSubject+r.self+"."), ".")
	r.mu.Lock()
	was := r.table.gone(time.Now(), question{node, word})
	r.mu.Unlock()
	if was {
		r.cfg.Log.Warn().Str("member", node).Msg("a node is gone")
	}
}

// Beat says what this node is, now: after a change that others should know soon.
func (r *Registry) Beat() {
	if r.cfg.Conn == nil {
		return
	}
	r.saying.Lock()
	defer r.saying.Unlock()
	m := r.cfg.Self()
	r.mu.RLock()
	m.Node, m.BeatsEvery, m.Left = r.self, r.cfg.Beat, r.left
	r.mu.RUnlock()
	data, err := json.Marshal(&m)
	if err == nil {
		r.said++
		err = r.cfg.Conn.PublishMsg(r.cfg.Key.sign(r.said, data))
	}
	if err != nil {
		r.cfg.Log.Debug().Err(err).Msg("a beat was not sent") // others will notice, and so do we: no echo
	}
}

func (r *Registry) hear(m *nats.Msg) {
	now := time.Now()
	r.mu.Lock()
	member, err := hear(now, r.table, r.signers, m)
	r.mu.Unlock()
	switch {
	case err == nil && member != nil:
		r.cfg.Log.Info().Str("member", member.Node).Any("roles", member.Roles).Str("model", member.Model).Msg("a node is there")
	case errors.Is(err, errNoBeat):
		r.cfg.Metrics.Dropped("beat", 1)
		r.lies.Warn().Err(err).Int("bytes", len(m.Data)).Msg("a beat that is none")
	case err != nil:
		r.cfg.Metrics.Dropped("forged_beat", 1)
		r.lies.Warn().Err(err).Msg("a beat that its node did not send, or not now")
	}
}

// hear takes what came on the beats' subject. It returns the member if it has joined.
func hear(now time.Time, t *table, s *signers, m *nats.Msg) (joined *Member, err error) {
	b, err := readBeat(m)
	if err != nil {
		return nil, err
	}
	member, err := s.open(now, b)
	if err != nil || !t.hear(now, member) {
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
	self := r.cfg.Self()
	byRole := make(map[string]int)
	for _, role := range Roles() {
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

// Others lists the other live nodes. The list is shared: nobody changes it, nor the members.
func (r *Registry) Others() []*Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.table.live()
}

// Alive says whether a node was heard lately; this one always is.
func (r *Registry) Alive(node string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.alive(node)
}

// Died says whether a node was heard and is gone without a goodbye. It is not known for long.
func (r *Registry) Died(node string) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.died(node)
}

// Deaf says that this node does not even hear itself: nobody can be judged.
func (r *Registry) Deaf() bool {
	if r.cfg.Conn == nil {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.table.deaf || time.Since(r.table.echo) > r.cfg.Dead/2
}

// Leave says goodbye. The others forget this node at once.
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
