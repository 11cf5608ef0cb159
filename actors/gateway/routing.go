package gateway

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/kvmgr/chain"
)

// routing chooses where things are served.
type routing struct {
	node    string
	cluster Membership
	local   *Local
	watch   *watch // counts what this gateway has sent
	caches  *prefixes
	cfg     route.Config
	start   time.Time
	turn    atomic.Uint64

	mu    sync.Mutex
	route *route.Router
}

func newRouting(cfg *Config, w *watch, caches *prefixes) *routing {
	c := route.Default()
	c.StallAfter = cfg.StallAfter
	return &routing{
		node: cfg.Node, cluster: cfg.Cluster, local: &cfg.Local, watch: w, caches: caches, cfg: c, start: time.Now(),
		route: route.New(c, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))),
	}
}

// seat is where a sequence can run.
type seat struct {
	worker         *actor.PID
	numerics, text string // digests
	duty           route.Duty
}

// workers are the members that compute, as package route sees them.
func (r *routing) workers(members []*cluster.Member) []route.Worker {
	list := make([]route.Worker, 0, len(members))
	now := time.Since(r.start)
	for _, m := range members {
		w := m.Worker
		if w == nil {
			continue
		}
		local := m.Node == r.node
		sequences := r.sequences(m)
		running := min(w.Running, sequences)
		list = append(list, route.Worker{
			Node: m.Node, Model: m.Model, Numerics: w.Numerics, Text: m.Text, Local: local, Duty: duty(m),
			Draining:  m.Draining && !local, // what is in this process finishes here
			Suspected: w.Down != "", Busy: w.InStep > 0, LastStep: now - w.InStep,
			Running: running, Waiting: sequences - running,
			Capacity: w.Capacity, FreeSlabs: w.FreeSlabs, KV: w.Need,
		})
	}
	return list
}

// duty is which sequences a member's worker should have. Members of earlier versions have both.
func duty(m *cluster.Member) route.Duty {
	switch {
	case m.Has(cluster.Prefill):
		return route.Prefill
	case m.Has(cluster.Decode):
		return route.Decode
	}
	return route.Both
}

// sequences counts those of a worker: this gateway's own as it knows them now, and those of others as of the worker's last beat.
func (r *routing) sequences(m *cluster.Member) int {
	own := r.watch.sequences(m.Node)
	before, counted := m.Worker.Gateways[r.node], len(m.Worker.Gateways) > 0
	if !counted { // this process, or a worker of an earlier version: some of them may be this gateway's
		before = own
	}
	return own + max(0, m.Worker.Running+m.Worker.Waiting-before)
}

// compute chooses the worker of a sequence that begins with the slabs of prompt; nil if there is none.
func (r *routing) compute(q route.Query, prompt []chain.Hash) *seat {
	workers := r.workers(r.cluster.Members())
	r.caches.fill(&q, workers, prompt, r.watch)
	return r.choose(q, workers)
}

// whole chooses a worker that has tokenizers and detokenizers of its text digest beside
// it: a request can begin with it. Nil if there is none.
func (r *routing) whole(q route.Query) *seat {
	return r.choose(q, r.wholes(r.cluster.Members(), q.Model))
}

func (r *routing) wholes(members []*cluster.Member, model string) []route.Worker {
	tokenizers, _ := r.pools(members, model, memberTokenizers)
	detokenizers, _ := r.pools(members, model, memberDetokenizers)
	return route.Whole(r.workers(members), tokenizers, detokenizers)
}

func (r *routing) choose(q route.Query, workers []route.Worker) *seat {
	r.mu.Lock()
	i := r.route.Compute(time.Since(r.start), q, workers)
	r.mu.Unlock()
	if i < 0 {
		return nil
	}
	w := &workers[i]
	if q.ByOverlap {
		r.caches.metrics.Placed(q.Blocks, w.Overlap)
	}
	return &seat{r.computeOf(w.Node), w.Numerics, w.Text, w.Duty}
}

func (r *routing) computeOf(node string) *actor.PID {
	if node == r.node {
		return r.local.Worker
	}
	return actor.NewPID(node, msg.ComputeActor)
}

// workersOf are the compute actors that serve a model.
func (r *routing) workersOf(model string) (list []*actor.PID) {
	for _, w := range r.workers(r.cluster.Members()) {
		if w.Model == model {
			list = append(list, r.computeOf(w.Node))
		}
	}
	return list
}

// takes says whether a worker could take a sequence.
func (r *routing) takes(q *route.Query, node string) bool {
	now := time.Since(r.start)
	return slices.ContainsFunc(r.workers(r.cluster.Members()),
		func(w route.Worker) bool { return w.Node == node && r.cfg.Usable(now, q, &w) })
}

// elsewhere says whether a worker other than the given one could take a sequence.
func (r *routing) elsewhere(q *route.Query, than string) bool {
	return r.usable(q, than, r.workers(r.cluster.Members()))
}

func (r *routing) usable(q *route.Query, than string, workers []route.Worker) bool {
	now := time.Since(r.start)
	return slices.ContainsFunc(workers, func(w route.Worker) bool { return w.Node != than && r.cfg.Usable(now, q, &w) })
}

func memberTokenizers(m *cluster.Member) *cluster.Pool {
	if m.Tokenizer == nil {
		return nil
	}
	return &m.Tokenizer.Pool
}

func memberDetokenizers(m *cluster.Member) *cluster.Pool { return m.Detok }

// pools are those of a stage that take something new, each with its member.
func (r *routing) pools(members []*cluster.Member, model string,
	pool func(*cluster.Member) *cluster.Pool) (list []route.Stage, at []*cluster.Member) {
	for _, m := range members {
		local := m.Node == r.node
		if x := pool(m); x != nil && len(x.Actors) > 0 && m.Model == model && (local || !m.Draining) {
			list = append(list, route.Stage{Text: m.Text, Local: local, Load: x.Load})
			at = append(at, m)
		}
	}
	return list, at
}

// crowded is how many texts a process has in hand when its gateway sends the next one to another process, if that has fewer.
const crowded = 8

// tokenizer chooses a tokenizer; nil if there is none. It is one of this process unless that has many texts in hand.
func (r *routing) tokenizer(model string, text route.Bond) *actor.PID {
	reported := func(_ string, load int) int { return load }
	own := r.local.Tokenizers
	if own == nil || !r.isLocal(model, text) {
		return r.stage(model, text, memberTokenizers, reported)
	}
	if load := own.Load(); load >= crowded {
		less := func(m *cluster.Member) *cluster.Pool {
			if p := memberTokenizers(m); p != nil && p.Load < load {
				return p
			}
			return nil
		}
		if to := r.stage(model, text, less, reported); to != nil {
			return to
		}
	}
	return own.Next()
}

// detokenizer chooses a detokenizer; nil if there is none.
func (r *routing) detokenizer(model string, text route.Bond) *actor.PID {
	if r.local.Detokenizers != nil && r.isLocal(model, text) {
		return r.local.Detokenizers.Next()
	}
	// Its own news would be old: all that starts within a beat would go to one node.
	return r.stage(model, text, memberDetokenizers, func(node string, _ int) int { return r.watch.texts(node) })
}

// isLocal says whether this process serves the model with its text digest.
func (r *routing) isLocal(model string, text route.Bond) bool {
	return model == r.local.Model && text.Holds(r.local.Text)
}

func (r *routing) stage(model string, text route.Bond, pool func(*cluster.Member) *cluster.Pool,
	load func(node string, reported int) int) *actor.PID {
	equals := slices.DeleteFunc(slices.Clone(r.cluster.Others()), func(m *cluster.Member) bool { return !text.Holds(m.Text) })
	list, at := r.pools(equals, model, pool)
	for i := range list {
		list[i].Load = load(at[i].Node, list[i].Load)
	}
	r.mu.Lock()
	i := r.route.Stage(list)
	r.mu.Unlock()
	if i < 0 {
		return nil
	}
	names := pool(at[i]).Actors
	return actor.NewPID(at[i].Node, names[r.turn.Add(1)%uint64(len(names))])
}

// serves is nil when a model has one complete set: a worker, a tokenizer and a detokenizer
// of one text digest.
func (r *routing) serves(model string) error {
	members, q := r.cluster.Members(), &route.Query{Model: model}
	switch {
	case r.usable(q, "", r.wholes(members, model)):
		return nil
	case !r.usable(q, "", r.workers(members)):
		if r.local.Worker != nil && model == r.local.Model {
			if err := r.local.Computes(); err != nil {
				return err
			}
		}
		return api.Unavailable(fmt.Errorf("no worker for model %q is there", model))
	}
	for what, pool := range map[string]func(*cluster.Member) *cluster.Pool{"tokenizer": memberTokenizers,
		"detokenizer": memberDetokenizers} {
		if list, _ := r.pools(members, model, pool); len(list) == 0 {
			return api.Unavailable(fmt.Errorf("no %s for model %q is there", what, model))
		}
	}
	return api.Unavailable(fmt.Errorf("no worker for model %q is there with a tokenizer and a detokenizer of its text digest: found %s",
		model,
		cluster.KindsOf(members)[model].Texts()))
}

// noEqual ends an answer that cannot continue: what it needs, and what there is.
func (r *routing) noEqual(model, what string, pin api.Pin, waited time.Duration) error {
	kinds := cluster.KindsOf(r.cluster.Members())[model]
	digest, found := "numerics digest "+api.ShortDigest(pin.Numerics), kinds.Workers()
	if what != "worker" {
		digest, found = "text digest "+api.ShortDigest(pin.Text), kinds.Texts()
	}
	return unequal("no %s was there for %s that equals the one that the answer began with: expected %s, found %s; the text would not be the same: send the request again",
		what, waited.Round(100*time.Millisecond), digest, found)
}

// unequal is the error of an answer for which no equal process is there.
func unequal(format string, args ...any) error {
	return &api.Error{Code: api.CodeUnavailable, Reason: reasonNoEqual, RetryAfter: 5 * time.Second, Message: fmt.Sprintf(format, args...)}
}

// equals is nil if processes with the digests of a pin are there.
func (r *routing) equals(model string, pin *api.Pin) error {
	kinds := cluster.KindsOf(r.cluster.Members())[model]
	const refused = "no process has the %s digest of the answer: expected %s, found %s"
	switch {
	case kinds == nil || kinds.Numerics[pin.Numerics] == 0:
		return unequal(refused, "numerics", api.ShortDigest(pin.Numerics), kinds.Workers())
	case kinds.Text[pin.Text] == 0:
		return unequal(refused, "text", api.ShortDigest(pin.Text), kinds.Texts())
	}
	return nil
}

// takers says who else could take over what a worker has.
func (r *routing) takers(node string) (t takers) {
	members := r.cluster.Members()
	i := slices.IndexFunc(members, func(m *cluster.Member) bool { return m.Node == node })
	if i < 0 || members[i].Worker == nil {
		return t
	}
	m := members[i]
	return takers{
		any:   r.usable(&route.Query{Model: m.Model}, node, r.wholes(members, m.Model)),
		equal: r.elsewhere(&route.Query{Model: m.Model, Numerics: route.To(m.Worker.Numerics)}, node),
	}
}

// leaves is takers for a worker of another process that drains, nobody for others.
func (r *routing) leaves(node string) (none takers) {
	if !slices.ContainsFunc(r.cluster.Others(), func(m *cluster.Member) bool { return m.Node == node && m.Draining }) {
		return none
	}
	return r.takers(node)
}

// moves says whether sequences of a worker continue at a decode worker after their first token.
func (r *routing) moves(node string) bool {
	return r.cfg.Moves(time.Since(r.start), node, r.workers(r.cluster.Members()))
}
