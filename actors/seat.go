package actors

import (
	"fmt"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
)

// seat is where a sequence can run.
type seat struct {
	worker         *actor.PID
	numerics, text string // digests
}

// workers are the members that compute, as package route sees them. What this
// gateway has sent to a worker counts although the worker's own news is older.
func (p *Pipeline) workers(members []*cluster.Member) []route.Worker {
	list := make([]route.Worker, 0, len(members))
	now := time.Since(p.router.start)
	for _, m := range members {
		w := m.Worker
		if w == nil {
			continue
		}
		local := m.Node == p.name
		list = append(list, route.Worker{
			Node: m.Node, Model: m.Model, Numerics: w.Numerics, Text: m.Text, Local: local,
			Draining:  m.Draining && !local, // what is in this process finishes here
			Suspected: w.Down != "", Busy: w.InStep > 0, LastStep: now - w.InStep,
			Running: w.Running, Waiting: max(w.Waiting, p.watch.sequences(m.Node)-w.Running),
			Capacity: w.Capacity, FreeSlabs: w.FreeSlabs,
		})
	}
	return list
}

// placeCompute chooses the worker of a sequence; nil if there is none.
func (p *Pipeline) placeCompute(q route.Query) *seat { return p.choose(q, p.workers(p.members())) }

// placeWhole chooses a worker that has tokenizers and detokenizers of its text digest beside
// it: a request can begin with it. Nil if there is none.
func (p *Pipeline) placeWhole(q route.Query) *seat { return p.choose(q, p.whole(p.members(), q.Model)) }

func (p *Pipeline) whole(members []*cluster.Member, model string) []route.Worker {
	tokenizers, _ := p.pools(members, model, memberTokenizers)
	detokenizers, _ := p.pools(members, model, memberDetokenizers)
	return route.Whole(p.workers(members), tokenizers, detokenizers)
}

func (p *Pipeline) choose(q route.Query, workers []route.Worker) *seat {
	p.router.mu.Lock()
	i := p.router.route.Compute(time.Since(p.router.start), q, workers)
	p.router.mu.Unlock()
	if i < 0 {
		return nil
	}
	w := &workers[i]
	return &seat{p.computeOf(w.Node), w.Numerics, w.Text}
}

func (p *Pipeline) computeOf(node string) *actor.PID {
	if node == p.name {
		return p.worker.PID()
	}
	return actor.NewPID(node, computeName)
}

// workersOf are the compute actors that serve a model.
func (p *Pipeline) workersOf(model string) (list []*actor.PID) {
	for _, w := range p.workers(p.members()) {
		if w.Model == model {
			list = append(list, p.computeOf(w.Node))
		}
	}
	return list
}

// elsewhere says whether a worker other than the given one could take a sequence.
func (p *Pipeline) elsewhere(q *route.Query, than string) bool {
	return p.usable(q, than, p.workers(p.members()))
}

func (p *Pipeline) usable(q *route.Query, than string, workers []route.Worker) bool {
	now := time.Since(p.router.start)
	return slices.ContainsFunc(workers, func(w route.Worker) bool { return w.Node != than && p.router.cfg.Usable(now, q, &w) })
}

func memberTokenizers(m *cluster.Member) *cluster.Pool {
	if m.Tokenizer == nil {
		return nil
	}
	return &m.Tokenizer.Pool
}

func memberDetokenizers(m *cluster.Member) *cluster.Pool { return m.Detok }

// pools are those of a stage that take something new, each with its member.
func (p *Pipeline) pools(members []*cluster.Member, model string, pool func(*cluster.Member) *cluster.Pool) (list []route.Stage, at []*cluster.Member) {
	for _, m := range members {
		local := m.Node == p.name
		if x := pool(m); x != nil && len(x.Actors) > 0 && m.Model == model && (local || !m.Draining) {
			list = append(list, route.Stage{Text: m.Text, Local: local, Load: x.Load})
			at = append(at, m)
		}
	}
	return list, at
}

// placeTokenizer chooses a tokenizer; nil if there is none.
func (p *Pipeline) placeTokenizer(model string, text route.Bond) *actor.PID {
	if p.tokenizers != nil && p.isLocal(model, text) {
		return p.tokenizers.Next()
	}
	return p.placeStage(model, text, memberTokenizers, func(_ string, load int) int { return load })
}

// placeDetokenizer chooses a detokenizer; nil if there is none.
func (p *Pipeline) placeDetokenizer(model string, text route.Bond) *actor.PID {
	if p.detokenizers != nil && p.isLocal(model, text) {
		return p.detokenizers.Next()
	}
	// Its own news would be old: all that starts within a beat would go to one node.
	return p.placeStage(model, text, memberDetokenizers, func(node string, _ int) int { return p.watch.texts(node) })
}

// isLocal says whether this process serves what is asked.
func (p *Pipeline) isLocal(model string, text route.Bond) bool {
	return model == p.cfg.ModelID && text.Holds(p.cfg.Text)
}

func (p *Pipeline) placeStage(model string, text route.Bond, pool func(*cluster.Member) *cluster.Pool, load func(node string, told int) int) *actor.PID {
	equals := slices.DeleteFunc(slices.Clone(p.registry.Others()), func(m *cluster.Member) bool { return !text.Holds(m.Text) })
	list, at := p.pools(equals, model, pool)
	for i := range list {
		list[i].Load = load(at[i].Node, list[i].Load)
	}
	p.router.mu.Lock()
	i := p.router.route.Stage(list)
	p.router.mu.Unlock()
	if i < 0 {
		return nil
	}
	names := pool(at[i]).Actors
	return actor.NewPID(at[i].Node, names[p.turn.Add(1)%uint64(len(names))])
}

// serves is nil when a model has one complete set: a worker, a tokenizer and a detokenizer
// of one text digest.
func (p *Pipeline) serves(model string) error {
	if p.isClosed() {
		return errShutdown()
	}
	members, q := p.members(), &route.Query{Model: model}
	switch {
	case p.usable(q, "", p.whole(members, model)):
		return nil
	case !p.usable(q, "", p.workers(members)):
		if p.has(cluster.Compute) && model == p.cfg.ModelID {
			if err := p.computes(); err != nil {
				return err
			}
		}
		return api.Unavailable(fmt.Errorf("no worker for model %q is there", model))
	}
	for what, pool := range map[string]func(*cluster.Member) *cluster.Pool{"tokenizer": memberTokenizers, "detokenizer": memberDetokenizers} {
		if list, _ := p.pools(members, model, pool); len(list) == 0 {
			return api.Unavailable(fmt.Errorf("no %s for model %q is there", what, model))
		}
	}
	return api.Unavailable(fmt.Errorf("no worker for model %q is there with a tokenizer and a detokenizer of its text digest: found %s", model, cluster.KindsOf(members)[model].Texts()))
}

// noEqual ends an answer that cannot go on: what it needs, and what there is.
func (p *Pipeline) noEqual(model, what string, pin api.Pin, waited time.Duration) error {
	kinds := cluster.KindsOf(p.members())[model]
	digest, found := "numerics digest "+api.ShortDigest(pin.Numerics), kinds.Workers()
	if what != "worker" {
		digest, found = "text digest "+api.ShortDigest(pin.Text), kinds.Texts()
	}
	return &api.Error{Code: api.CodeUnavailable, Reason: reasonNoEqual, RetryAfter: 5 * time.Second, Message: fmt.Sprintf(
		"no %s was there for %s that equals the one that the answer began with: expected %s, found %s; the text would not be the same: send the request again",
		what, waited.Round(100*time.Millisecond), digest, found)}
}
