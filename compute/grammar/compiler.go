package grammar

import (
	"container/list"
	"errors"
	"fmt"
	"sync"
	"time"
)

// The bounds of a Compiler.
const (
	maxPrograms       = 256 // in all
	maxTenantPrograms = 32
	maxHeld           = 512 << 20 // bytes, in all
	maxTenantHeld     = 128 << 20
	maxCompiles       = 4   // at once; of a tenant 1
	maxQueued         = 256 // of a tenant
)

// refusalKept is how long a spec that could not be compiled is refused without another try. One that took too long on a busy
// machine may be compiled later.
const refusalKept = time.Minute

// ErrBusy means that too many grammars of a tenant wait to be compiled.
var ErrBusy = errors.New("grammar: too many wait to be compiled")

// Compiler compiles specs and keeps the latest programs of each tenant. It is safe for many goroutines at once.
type Compiler struct {
	open func() (Engine, error)

	mu       sync.Mutex
	engine   Engine
	failed   error                 // why there is no engine
	programs map[key]*list.Element // of *program
	latest   *list.List            // of *program, the latest use first
	markers  map[marks]*marker
	queues   map[string]*queue // by tenant
	slots    chan struct{}     // has a value for each that compiles
}

// queue is what a tenant compiles and is about to.
type queue struct {
	turn    chan struct{} // has a value while one compiles
	waiting int           // with that one
}

// key is a tenant and what decides the program of a spec.
type key struct {
	tenant     string
	kind       Kind
	source     string
	compact    bool
	whiteSpace string
}

func keyOf(tenant string, s *Spec) key { return key{tenant, s.Kind, s.Source, s.Compact, s.WhiteSpace} }

// program is one that is kept, or why there is none.
type program struct {
	key  key
	made Program
	err  error
	at   time.Time
}

func (p *program) held() int {
	if p.err != nil {
		return len(p.key.source) + len(p.err.Error())
	}
	return len(p.key.source) + p.made.Held()
}

// NewCompiler returns a Compiler that opens its engine when a grammar is first needed. An error of open holds from then
// on: a model without a vocabulary never gets one.
func NewCompiler(open func() (Engine, error)) *Compiler {
	return &Compiler{
		open: open, programs: make(map[key]*list.Element), latest: list.New(), markers: make(map[marks]*marker),
		queues: make(map[string]*queue), slots: make(chan struct{}, maxCompiles),
	}
}

// Check compiles a spec. The error is ErrSpec with the reason. It blocks while others compile.
func (c *Compiler) Check(tenant string, s *Spec) error {
	_, err := c.compile(tenant, s)
	return err
}

// Known reports whether Check needs no time: the program is kept.
func (c *Compiler) Known(tenant string, s *Spec) bool {
	return c.kept(keyOf(tenant, s)) != nil
}

// Matcher compiles a spec, and follows a sequence of a tenant that has some tokens already.
func (c *Compiler) Matcher(tenant string, s *Spec, o Options, tokens []int32) (*Matcher, error) {
	p, err := c.compile(tenant, s)
	if err != nil {
		return nil, err
	}
	m, err := newMatcher(s, c.engine, c.marker(marks{s.After, s.SkipFrom, s.SkipTo, s.Opening}), p, o)
	if err != nil {
		return nil, err
	}
	if err := m.Replay(tokens); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Forget drops the program of a spec, which may be broken.
func (c *Compiler) Forget(tenant string, s *Spec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at := c.programs[keyOf(tenant, s)]; at != nil {
		c.drop(at)
	}
}

// compile returns the program of a spec: the kept one, or a new one.
func (c *Compiler) compile(tenant string, s *Spec) (Program, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	k := keyOf(tenant, s)
	if p := c.kept(k); p != nil {
		return p.made, p.err
	}
	engine, err := c.opened()
	if err != nil {
		return nil, err
	}
	q, err := c.takeTurn(tenant)
	if err != nil {
		return nil, err
	}
	defer c.giveTurn(tenant, q)
	if p := c.kept(k); p != nil { // compiled by the one before
		return p.made, p.err
	}
	p := &program{key: k}
	kind, source, err := s.Program()
	if err == nil {
		p.made, err = engine.Compile(kind, source)
		err = s.explained(err)
	}
	p.err, p.at = err, time.Now()
	c.keep(p)
	return p.made, p.err
}

// opened returns the engine.
func (c *Compiler) opened() (Engine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engine == nil && c.failed == nil {
		if c.engine, c.failed = c.open(); c.failed != nil && !errors.Is(c.failed, ErrSpec) {
			c.failed = fmt.Errorf("%w: %w", ErrSpec, c.failed)
		}
	}
	return c.engine, c.failed
}

// takeTurn waits until a tenant may compile: one spec at a time, so that it cannot keep others waiting.
func (c *Compiler) takeTurn(tenant string) (*queue, error) {
	c.mu.Lock()
	q := c.queues[tenant]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1)}
		c.queues[tenant] = q
	}
	if q.waiting == maxQueued {
		c.mu.Unlock()
		return nil, ErrBusy
	}
	q.waiting++
	c.mu.Unlock()
	q.turn <- struct{}{}
	c.slots <- struct{}{}
	return q, nil
}

func (c *Compiler) giveTurn(tenant string, q *queue) {
	<-c.slots
	<-q.turn
	c.mu.Lock()
	defer c.mu.Unlock()
	if q.waiting--; q.waiting == 0 {
		delete(c.queues, tenant)
	}
}

func (c *Compiler) kept(k key) *program {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.programs[k]
	if at == nil {
		return nil
	}
	p := at.Value.(*program) //nolint:forcetypeassert // see latest
	if p.err != nil && time.Since(p.at) > refusalKept {
		c.drop(at)
		return nil
	}
	c.latest.MoveToFront(at)
	return p
}

// keep adds a program and drops those that were not used for the longest time, of its tenant and then of all.
func (c *Compiler) keep(p *program) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.programs[p.key] == nil {
		c.programs[p.key] = c.latest.PushFront(p)
	}
	c.shrink(func(of *program) bool { return of.key.tenant == p.key.tenant }, maxTenantPrograms, maxTenantHeld)
	c.shrink(func(*program) bool { return true }, maxPrograms, maxHeld)
}

// shrink drops the oldest of some programs until they are within the bounds. The latest stays.
func (c *Compiler) shrink(of func(*program) bool, most, held int) {
	for at := c.latest.Front(); at != nil; {
		next := at.Next()
		if p := at.Value.(*program); of(p) { //nolint:forcetypeassert // see latest
			most, held = most-1, held-p.held()
			if (most < 0 || held < 0) && at != c.latest.Front() {
				c.drop(at)
			}
		}
		at = next
	}
}

func (c *Compiler) drop(at *list.Element) {
	delete(c.programs, at.Value.(*program).key) //nolint:forcetypeassert // see latest
	c.latest.Remove(at)
}

// maxMarkers bounds the texts whose tables are kept. A model has one or two.
const maxMarkers = 64

func (c *Compiler) marker(text marks) *marker {
	if text.after == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.markers[text]
	if m == nil {
		if len(c.markers) >= maxMarkers {
			clear(c.markers)
		}
		m = newMarker(text)
		c.markers[text] = m
	}
	return m
}
