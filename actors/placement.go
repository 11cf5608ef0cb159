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
	eos        map[string][]int32 // by text digest
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
			x.knows(m.Text, m.Tokenizer.EOS)
		}
	}
}

// mostTextDigests bounds the text digests of a model whose end-of-sequence tokens are remembered.
const mostTextDigests = 64

// knows notes the end-of-sequence tokens of a text digest.
func (m *model) knows(text string, eos []int32) {
	if had, known := m.eos[text]; known && slices.Equal(had, eos) {
		return
	}
	fresh := make(map[string][]int32, len(m.eos)+1) // others read the old one
	if len(m.eos) < mostTextDigests {
		maps.Copy(fresh, m.eos)
	}
	fresh[text] = eos
	m.eos = fresh
}

// eos are the end-of-sequence tokens of a model's tokenizers of a text digest; false if none
// of them was heard.
func (p *Pipeline) eos(model, text string) (eos []int32, known bool) {
	if eos, known = p.router.eos(model, text); !known {
		p.refreshModels() // it may be new
		eos, known = p.router.eos(model, text)
	}
	return eos, known
}

func (r *router) eos(model, text string) (eos []int32, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.models[model]; m != nil {
		eos, known = m.eos[text]
	}
	return eos, known
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

// servesAny is nil when at least one model can be served.
func (p *Pipeline) servesAny() error {
	p.refreshModels()
	var err error = api.Unavailable(fmt.Errorf("no worker is there"))
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
	to := p.placeTokenizer(model, route.Bond{})
	if to == nil {
		return none, api.Unavailable(fmt.Errorf("no tokenizer for model %q is there", model))
	}
	wait := callTimeout
	if d, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(d))
	}
	future := actor.NewFuture(p.system, max(wait, 0))
	p.system.Root.Send(to, question(future.PID()))
	got, err := future.Result()
	if err != nil {
		return none, api.Unavailable(fmt.Errorf("the tokenizer at %s did not answer: %w", to.Address, err))
	}
	if a, ok := got.(Answer); ok {
		return a, nil
	}
	if a, ok := got.(*msg.Tokenized); ok { // of a tokenizer that failed
		return none, a.Err
	}
	return none, api.Unavailable(fmt.Errorf("the tokenizer at %s answered with a %T", to.Address, got))
}
