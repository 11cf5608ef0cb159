package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/metrics"
)

// BeatSubject is where every node says what it is.
const BeatSubject = "millrace.registry.beat"

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
	sub  *nats.Subscription
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
	var err error
	if r.sub, err = cfg.Conn.Subscribe(BeatSubject, r.hear); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	r.Beat()
	r.done.Go(r.run)
	return r, nil
}

func (r *Registry) run() {
	tick := time.NewTicker(r.cfg.Beat)
	defer tick.Stop()
	for {
		select {
		case <-r.quit:
			return
		case now := <-tick.C:
			r.Beat()
			r.judge(now)
		}
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

// Others lists the other live nodes.
func (r *Registry) Others() []Member {
	r.mu.RLock()
	defer r.mu.RUnlock()
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
	_ = r.sub.Unsubscribe()                  // the connection may be gone
	_ = r.cfg.Conn.FlushTimeout(DefaultDead) // as above
}
