package cluster

import (
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

// BeatSubject is where every node says what it is.
const BeatSubject = "millrace.registry.beat"

// Each node listens at its name behind aliveSubject, and answers nothing: a node whose
// beat is late is asked there, and the NATS server knows at once whether anybody
// listens. Its word that nobody does comes to who asked behind goneSubject.
const (
	aliveSubject = "millrace.registry.alive." // + node
	goneSubject  = "millrace.registry.gone."  // + who asks, and the node
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
	Self    func() Member // is called for every beat, from any goroutine
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

	mu    sync.RWMutex
	table *table
	left  bool
}

// Join begins to beat and to listen.
func Join(cfg Config) (*Registry, error) {
	if cfg.Beat == 0 {
		cfg.Beat = DefaultBeat
	}
	if cfg.Dead == 0 {
		cfg.Dead = DefaultDead
	}
	self := cfg.Self().Node
	r := &Registry{cfg: cfg, self: self, quit: make(chan struct{}), table: newTable(self, cfg.Dead, time.Now())}
	if cfg.Conn == nil {
		return r, nil
	}
	for subject, handle := range map[string]nats.MsgHandler{
		BeatSubject: r.hear, aliveSubject + self: func(*nats.Msg) {}, goneSubject + self + ".*": r.gone,
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
	r.mu.RLock()
	late := r.table.late(now)
	r.mu.RUnlock()
	for _, node := range late {
		err := r.cfg.Conn.PublishRequest(aliveSubject+node, goneSubject+r.self+"."+node, nil)
		if err != nil {
			r.cfg.Log.Debug().Err(err).Str("member", node).Msg("a late node was not asked") // its silence will tell
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
	node := strings.TrimPrefix(m.Subject, goneSubject+r.self+".")
	r.mu.Lock()
	was := r.table.gone(time.Now(), node)
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
	m := r.cfg.Self()
	r.mu.RLock()
	m.BeatsEvery, m.Left = r.cfg.Beat, r.left
	r.mu.RUnlock()
	data, err := json.Marshal(&m)
	if err == nil {
		err = r.cfg.Conn.Publish(BeatSubject, data)
	}
	if err != nil {
		r.cfg.Log.Debug().Err(err).Msg("a beat was not sent") // others will notice, and so do we: no echo
	}
}

func (r *Registry) hear(m *nats.Msg) {
	member, err := parseBeat(m.Data)
	if err != nil {
		r.cfg.Metrics.Dropped("beat", 1)
		r.cfg.Log.Warn().Err(err).Int("bytes", len(m.Data)).Msg("a beat that is none")
		return
	}
	r.mu.Lock()
	joined := r.table.hear(time.Now(), member)
	r.mu.Unlock()
	if joined {
		r.cfg.Log.Info().Str("member", member.Node).Any("roles", member.Roles).Str("model", member.Model).Msg("a node is there")
	}
}

func parseBeat(data []byte) (m Member, err error) {
	if err = json.Unmarshal(data, &m); err == nil && m.Node == "" {
		err = errors.New("found no node, expected its name")
	}
	return m, err
}

func (r *Registry) judge(now time.Time) {
	r.mu.Lock()
	silent := r.table.tick(now)
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
