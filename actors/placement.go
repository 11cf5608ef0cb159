package actors

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/metrics"
	"github.com/millrace/millrace/tracing"
)

// router chooses where things are served, and remembers the models that were.
type router struct {
	mu     sync.Mutex
	route  *route.Router
	cfg    route.Config
	start  time.Time
	models map[string]*model
	series map[string]*metrics.Model
}

// model is what a gateway has to know of one. It is the least that its workers
// offer.
type model struct {
	id         string
	created    time.Time
	context    int
	slabs      int
	slabTokens int
	vocab      int
	capacity   int
	eos        []int32
	sampling   sample.Params
}

func (r *router) init(cfg Config) {
	r.cfg = route.Default()
	r.cfg.StallAfter = cfg.StallAfter
	r.route = route.New(r.cfg, rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())))
	r.start = time.Now()
	r.models = make(map[string]*model)
	r.series = make(map[string]*metrics.Model)
}

// members are this process and the other live ones.
func (p *Pipeline) members() []*cluster.Member {
	own := p.offer()
	return append(p.registry.Others(), &own)
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
			Node: m.Node, Model: m.Model, Local: local,
			Draining:  m.Draining && !local, // what is in this process finishes here
			Suspected: w.Down != "", Busy: w.InStep > 0, LastStep: now - w.InStep,
			Running: w.Running, Waiting: max(w.Waiting, p.watch.sequences(m.Node)-w.Running),
			Capacity: w.Capacity, FreeSlabs: w.FreeSlabs,
		})
	}
	return list
}

// placeCompute chooses the worker of a sequence; nil if there is none.
func (p *Pipeline) placeCompute(q route.Query) *actor.PID {
	workers := p.workers(p.members())
	p.router.mu.Lock()
	i := p.router.route.Compute(time.Since(p.router.start), q, workers)
	p.router.mu.Unlock()
	switch {
	case i < 0:
		return nil
	case workers[i].Local:
		return p.compute
	}
	return actor.NewPID(workers[i].Node, computeName)
}

// workersOf are the compute actors that serve a model.
func (p *Pipeline) workersOf(model string) (list []*actor.PID) {
	for _, w := range p.workers(p.members()) {
		switch {
		case w.Model != model:
		case w.Local:
			list = append(list, p.compute)
		default:
			list = append(list, actor.NewPID(w.Node, computeName))
		}
	}
	return list
}

// elsewhere says whether a worker other than the given one could take a sequence.
func (p *Pipeline) elsewhere(model, than string) bool {
	now := time.Since(p.router.start)
	workers := p.workers(p.members())
	return slices.ContainsFunc(workers, func(w route.Worker) bool {
		return w.Node != than && p.router.cfg.Usable(now, model, &w)
	})
}

// placeTokenizer chooses a tokenizer; nil if there is none.
func (p *Pipeline) placeTokenizer(model string) *actor.PID {
	if len(p.tokenizers) > 0 && model == p.cfg.ModelID {
		p.tokenizing.Add(1)
		p.stages.tokenize.Enqueued()
		return p.tokenizers[p.turn.Add(1)%uint64(len(p.tokenizers))]
	}
	return p.placeStage(model, func(m *cluster.Member) *cluster.Pool {
		if m.Tokenizer == nil {
			return nil
		}
		return &m.Tokenizer.Pool
	})
}

// placeDetokenizer chooses a detokenizer; nil if there is none.
func (p *Pipeline) placeDetokenizer(model string) *actor.PID {
	if len(p.detokenizers) > 0 && model == p.cfg.ModelID {
		return p.detokenizers[p.turn.Add(1)%uint64(len(p.detokenizers))]
	}
	// Its own news would be old: all that starts within a beat would go to one node.
	return p.placeStage(model, func(m *cluster.Member) *cluster.Pool {
		if m.Detok == nil {
			return nil
		}
		return &cluster.Pool{Actors: m.Detok.Actors, Load: p.watch.texts(m.Node)}
	})
}

func (p *Pipeline) placeStage(model string, pool func(*cluster.Member) *cluster.Pool) *actor.PID {
	var stages []route.Stage
	var at []*cluster.Member
	members := p.registry.Others()
	for _, m := range members {
		if x := pool(m); x != nil && len(x.Actors) > 0 && m.Model == model && !m.Draining {
			stages = append(stages, route.Stage{Load: x.Load})
			at = append(at, m)
		}
	}
	p.router.mu.Lock()
	i := p.router.route.Stage(stages)
	p.router.mu.Unlock()
	if i < 0 {
		return nil
	}
	names := pool(at[i]).Actors
	return actor.NewPID(at[i].Node, names[p.turn.Add(1)%uint64(len(names))])
}

// series are a model's, for the requests of this gateway.
func (p *Pipeline) series(model string) *metrics.Model {
	if model == p.cfg.ModelID {
		return p.metrics
	}
	p.router.mu.Lock()
	defer p.router.mu.Unlock()
	s := p.router.series[model]
	if s == nil {
		s = p.cfg.Metrics.Model(model)
		p.router.series[model] = s
	}
	return s
}

// refreshModels brings the models up to date with the members. One whose workers
// are gone stays known: its requests are told to come later, not that it does not
// exist.
func (p *Pipeline) refreshModels() {
	fresh := make(map[string]*model)
	members := p.members()
	for _, m := range members {
		w := m.Worker
		if w == nil {
			continue
		}
		x := fresh[m.Model]
		if x == nil {
			fresh[m.Model] = &model{
				id: m.Model, created: w.Created, context: w.Context, slabs: w.Slabs, slabTokens: w.SlabTokens,
				vocab: w.Vocab, capacity: w.Capacity, sampling: w.Sampling,
			}
			continue
		}
		x.context, x.slabs = min(x.context, w.Context), min(x.slabs, w.Slabs)
		x.vocab, x.capacity = min(x.vocab, w.Vocab), min(x.capacity, w.Capacity)
		if w.Created.Before(x.created) {
			x.created, x.sampling = w.Created, w.Sampling
		}
	}
	p.router.mu.Lock()
	defer p.router.mu.Unlock()
	for id, x := range fresh {
		if old := p.router.models[id]; old != nil {
			x.eos = old.eos
		}
		p.router.models[id] = x
	}
	for _, m := range members {
		if x := p.router.models[m.Model]; x != nil && m.Tokenizer != nil {
			known := *x
			known.eos = m.Tokenizer.EOS
			p.router.models[x.id] = &known
		}
	}
}

// model finds a model. The watch keeps what is known of it up to date; before its first
// look nothing is.
func (p *Pipeline) model(id string) (*model, error) {
	m, known := p.router.find(id)
	if m == nil {
		p.refreshModels()
		m, known = p.router.find(id)
	}
	if m != nil {
		return m, nil
	}
	expected := "no model yet: no worker is there"
	if len(known) > 0 {
		expected = fmt.Sprintf("expected %q", known[0])
		for _, id := range known[1:] {
			expected += fmt.Sprintf(" or %q", id)
		}
	}
	return nil, &api.Error{Code: api.CodeNotFound, Reason: "model_not_found", Param: "model",
		Message: fmt.Sprintf("model %q does not exist, %s", id, expected)}
}

// find returns a model, or the names of those that there are.
func (r *router) find(id string) (m *model, known []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m = r.models[id]; m == nil {
		known = slices.Sorted(maps.Keys(r.models))
	}
	return m, known
}

// Models lists what the cluster serves.
func (p *Pipeline) Models() []api.Model {
	p.router.mu.Lock()
	none := len(p.router.models) == 0
	p.router.mu.Unlock()
	if none {
		p.refreshModels()
	}
	p.router.mu.Lock()
	defer p.router.mu.Unlock()
	list := make([]api.Model, 0, len(p.router.models))
	for _, m := range p.router.models {
		list = append(list, api.Model{ID: m.id, Created: m.created, ContextLength: m.context, Sampling: m.sampling})
	}
	slices.SortFunc(list, func(a, b api.Model) int { return a.Created.Compare(b.Created) })
	return list
}

// serves is nil when every stage of a model is there.
func (p *Pipeline) serves(model string) error {
	if p.isClosed() {
		return errShutdown()
	}
	if !p.elsewhere(model, "") {
		if p.has(cluster.Compute) && model == p.cfg.ModelID {
			if err := p.computes(); err != nil {
				return err
			}
		}
		return unavailable(fmt.Errorf("no worker for model %q is there", model))
	}
	local := model == p.cfg.ModelID
	if (!local || len(p.tokenizers) == 0) && !p.hasStage(model, func(m *cluster.Member) bool { return m.Tokenizer != nil }) {
		return unavailable(fmt.Errorf("no tokenizer for model %q is there", model))
	}
	if (!local || len(p.detokenizers) == 0) && !p.hasStage(model, func(m *cluster.Member) bool { return m.Detok != nil }) {
		return unavailable(fmt.Errorf("no detokenizer for model %q is there", model))
	}
	return nil
}

func (p *Pipeline) hasStage(model string, has func(*cluster.Member) bool) bool {
	return slices.ContainsFunc(p.registry.Others(), func(m *cluster.Member) bool { return m.Model == model && !m.Draining && has(m) })
}

// servesAny is nil when at least one model can be served.
func (p *Pipeline) servesAny() error {
	p.refreshModels()
	err := unavailable(fmt.Errorf("no worker is there"))
	for _, m := range p.Models() {
		if err = p.serves(m.ID); err == nil {
			return nil
		}
	}
	return err
}

// mostRequests is what this gateway holds at most, and how many of them run at
// once: what the workers that are there can. size 0: no bound.
func (p *Pipeline) mostRequests() (size, batch int) {
	if p.has(cluster.Compute) {
		size, batch = p.cfg.MaxRequests, p.cfg.Sched.MaxBatchSize
	}
	for _, m := range p.registry.Others() {
		if w := m.Worker; w != nil && !m.Draining {
			size, batch = size+w.Capacity+w.Queue, batch+w.Capacity
		}
	}
	if p.cfg.MaxRequests == 0 {
		return 0, batch
	}
	return max(size, 1), batch
}

// callTimeout bounds a call to a tokenizer.
const callTimeout = 10 * time.Second

// Tokenize turns text or messages into ids, at a tokenizer of the pool.
func (p *Pipeline) Tokenize(ctx context.Context, r *api.TokenizeRequest) ([]int32, error) {
	model, err := p.modelOr(r.Model)
	if err != nil {
		return nil, err
	}
	leave, err := p.texting.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	answer, err := call[*msg.Tokenized](ctx, p, model, func(reply *actor.PID) any {
		return &msg.Tokenize{Reply: reply, Input: r, Trace: tracing.Of(ctx)}
	})
	if err != nil {
		return nil, err
	}
	return answer.Tokens, answer.Err
}

// Detokenize turns ids into text.
func (p *Pipeline) Detokenize(ctx context.Context, model string, tokens []int32) (string, error) {
	model, err := p.modelOr(model)
	if err != nil {
		return "", err
	}
	leave, err := p.texting.enter(ctx)
	if err != nil {
		return "", err
	}
	defer leave()
	answer, err := call[*msg.Detokenized](ctx, p, model, func(reply *actor.PID) any { return &msg.Detokenize{Reply: reply, Tokens: tokens} })
	if err != nil {
		return "", err
	}
	return answer.Text, answer.Err
}

// modelOr is a model by name, or without one the one that there is.
func (p *Pipeline) modelOr(id string) (string, error) {
	if id == "" && p.cfg.ModelID != "" {
		return p.cfg.ModelID, nil
	}
	if id == "" {
		if list := p.Models(); len(list) == 1 {
			return list[0].ID, nil
		}
	}
	m, err := p.model(id)
	if err != nil {
		return "", err
	}
	return m.id, nil
}

// call asks a tokenizer.
func call[Answer any](ctx context.Context, p *Pipeline, model string, question func(*actor.PID) any) (none Answer, err error) {
	to := p.placeTokenizer(model)
	if to == nil {
		return none, unavailable(fmt.Errorf("no tokenizer for model %q is there", model))
	}
	wait := callTimeout
	if d, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(d))
	}
	future := actor.NewFuture(p.system, max(wait, 0))
	p.system.Root.Send(to, question(future.PID()))
	got, err := future.Result()
	if err != nil {
		return none, unavailable(fmt.Errorf("the tokenizer at %s did not answer: %w", to.Address, err))
	}
	if a, ok := got.(Answer); ok {
		return a, nil
	}
	if a, ok := got.(*msg.Tokenized); ok { // of a tokenizer that failed
		return none, a.Err
	}
	return none, unavailable(fmt.Errorf("the tokenizer at %s answered with a %T", to.Address, got))
}
