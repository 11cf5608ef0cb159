// Package simulate is the fleet simulator. It runs the scheduler, the KV allocator and the routing
// policy of the server for any number of workers, in virtual time. Steps take the time of sim.Timer, and
// copies of keys and values that of their bytes. Unlike in a cluster, the router always knows the current load of each worker,
// and messages, tokenizers and detokenizers take no time.
//
// The same Config gives the same Report, bit for bit. The package must not know of actors or of a
// real device.
package simulate

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/millrace/millrace/cluster/route"
	"github.com/millrace/millrace/compute/model"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/compute/sim"
)

// Errors of Run.
var (
	ErrConfig = errors.New("simulate: invalid configuration")
	ErrState  = errors.New("simulate: inconsistent state") // a fault of this program
)

// Config is what to simulate. The workers have equal devices.
type Config struct {
	Program *model.Program
	Device  sim.Device // of each worker
	Slabs   int        // of each worker's KV pool
	Slots   int        // of each worker's spill tier; for Spill only
	Sched   sched.Config
	// Admission decides Sched.Predict. "": Predicted where that is set, else Declared.
	Admission Admission
	// MaxQueueWait is that of the server: a request that would wait longer is refused. 0: none is.
	MaxQueueWait time.Duration
	Route        route.Config
	Workers      int
	Prefill      int    // of the workers; the others are decode workers. 0: all are compute workers
	Seed         uint64 // of the router
	Requests     Source
	SLO          SLO
	Price        float64 // of a worker, per hour
	// Slices cuts the report by arrival into as many equal numbers of requests. 0: 1.
	Slices   int
	Progress func(ended int) // called now and then; nil: nobody
}

// SLO bounds the latencies of a request that counts as good.
type SLO struct {
	TTFT time.Duration `json:"ttft"` // until the first token
	TPOT time.Duration `json:"tpot"` // mean of the further ones
}

// Request is a request of the workload.
type Request struct {
	At        time.Duration // arrival
	Prompt    int           // tokens, at least 1
	Output    int           // tokens that are made, at least 1
	MaxTokens int           // what the client allows, at least Output: KV is reserved for it
}

// Source gives the requests in the order of their arrival.
type Source interface {
	Len() int
	Next() (Request, bool)
}

// refusedForWait names the refusals of MaxQueueWait in a report.
const refusedForWait = "queue-wait"

// progressEvery is the number of ended requests between two calls of Progress.
const progressEvery = 10000

// fleet is a simulation under way.
type fleet struct {
	cfg     *Config
	workers []*worker
	news    []route.Worker // what the router knows of each
	router  *route.Router
	due     events
	tally   *tally
	line    *sched.WaitEstimator // of all workers
	started int                  // requests so far
}

// Run simulates all requests to their ends.
func Run(cfg Config) (*Report, error) {
	f, err := newFleet(&cfg)
	if err != nil {
		return nil, err
	}
	if err := f.run(); err != nil {
		return nil, err
	}
	if err := f.check(); err != nil {
		return nil, err
	}
	return f.tally.report(&cfg), nil
}

func newFleet(cfg *Config) (*fleet, error) {
	if cfg.Workers < 1 || cfg.Requests == nil || cfg.Requests.Len() < 1 || cfg.Slices < 0 {
		return nil, fmt.Errorf("%w: expected at least one worker and one request", ErrConfig)
	}
	if cfg.Prefill < 0 || cfg.Prefill >= cfg.Workers {
		return nil, fmt.Errorf("%w: %d prefill workers of %d, expected at least 0 and one decode worker", ErrConfig, cfg.Prefill,
			cfg.Workers)
	}
	if err := cfg.Device.Validate(); err != nil {
		return nil, err
	}
	if _, err := cfg.Device.Share(cfg.Program); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if cfg.Admission == "" {
		if cfg.Admission = Declared; cfg.Sched.Predict {
			cfg.Admission = Predicted
		}
	}
	f := &fleet{
		cfg: cfg, tally: newTally(cfg), line: sched.NewWaitEstimator(), news: make([]route.Worker, cfg.Workers),
		router: route.New(cfg.Route, rand.New(rand.NewPCG(cfg.Seed, 0x70757773))),
	}
	timer := sim.NewTimer(cfg.Program, cfg.Device, cfg.Sched.MaxBatchTokens, cfg.Sched.MaxBatchSize)
	for i := range cfg.Workers {
		w, err := newWorker(f, i, timer)
		if err != nil {
			return nil, err
		}
		f.news[i].Node, f.news[i].Capacity, f.news[i].Duty = strconv.Itoa(i), cfg.Sched.MaxBatchSize, cfg.duty(i)
		w.report()
		f.workers = append(f.workers, w)
	}
	return f, nil
}

// duty returns that of a worker.
func (c *Config) duty(worker int) route.Duty {
	switch {
	case c.Prefill == 0:
		return route.Both
	case worker < c.Prefill:
		return route.Prefill
	}
	return route.Decode
}

// run plays the events in the order of their times: a request that arrives, a
// step or a copy that ends. At equal times the request comes first, then the lower worker.
func (f *fleet) run() error {
	next, more := f.cfg.Requests.Next()
	ended := 0
	for more || len(f.due) > 0 {
		var err error
		if more && (len(f.due) == 0 || next.At <= f.due[0].at) {
			err = f.arrive(next)
			next, more = f.cfg.Requests.Next()
		} else {
			err = f.next()
		}
		if err != nil {
			return err
		}
		if f.cfg.Progress != nil && f.tally.ended()-ended >= progressEvery {
			ended = f.tally.ended()
			f.cfg.Progress(ended)
		}
	}
	return nil
}

func (f *fleet) arrive(r Request) error {
	if r.Prompt < 1 || r.Output < 1 || r.MaxTokens < r.Output {
		return fmt.Errorf("%w: request %d is %+v, expected at least one token each, and as many allowed", ErrConfig, f.started, r)
	}
	slice := f.tally.slice(f.started)
	f.tally.arrived(slice, r.At)
	f.started++
	if f.line.TooLong("", 1, f.cfg.MaxQueueWait, f.started-1-f.tally.ended(), f.cfg.Workers*f.cfg.Sched.MaxBatchSize) {
		f.tally.refused(slice, refusedForWait)
		return nil
	}
	w := f.place(r.At, &r, false)
	if w == nil {
		return fmt.Errorf("%w: request %d found no worker", ErrState, f.started-1)
	}
	w.submit(r, slice)
	return f.wake(w, r.At)
}

// place returns the worker for a sequence; nil if there is none.
func (f *fleet) place(now time.Duration, r *Request, begun bool) *worker {
	slabs := (r.Prompt + r.MaxTokens + f.cfg.Sched.KV.SlabTokens - 1) / f.cfg.Sched.KV.SlabTokens
	i := f.router.Compute(now, route.Query{Slabs: slabs, Begun: begun}, f.news)
	if i < 0 {
		return nil
	}
	return f.workers[i]
}

// next plays the event that is due first.
func (f *fleet) next() error {
	e := heap.Pop(&f.due).(event) //nolint:errcheck // nothing else is there
	w := f.workers[e.worker]
	if e.do == nil {
		w.endStep(e.at)
		return f.round(w, e.at)
	}
	if err := e.do(e.at); err != nil {
		return fmt.Errorf("%w: worker %d at %v: %w", ErrState, w.index, e.at, err)
	}
	return f.wake(w, e.at)
}

// wake makes a worker take its events up: now, or after its step.
func (f *fleet) wake(w *worker, now time.Duration) error {
	if w.busy {
		w.report()
		return nil
	}
	return f.round(w, now)
}

// round plans the worker's next step, if it has any.
func (f *fleet) round(w *worker, now time.Duration) error {
	took, err := w.round(now)
	if err != nil {
		return fmt.Errorf("%w: worker %d at %v: %w", ErrState, w.index, now, err)
	}
	if w.busy {
		heap.Push(&f.due, event{at: now + took, worker: w.index})
	}
	w.report()
	return nil
}

// check: every request has ended once, and every slab is free again.
func (f *fleet) check() error {
	if f.tally.ended() != f.started {
		return fmt.Errorf("%w: %d requests, %d ends", ErrState, f.started, f.tally.ended())
	}
	for _, w := range f.workers {
		if s := w.kv.Stats(); !w.sched.Idle() || s.Free != s.Slabs || s.Spilled > 0 || len(w.spare) != len(w.live) {
			return fmt.Errorf("%w: worker %d ends with %+v", ErrState, w.index, s)
		}
		if err := errors.Join(w.sched.Check(), w.kv.Check()); err != nil {
			return fmt.Errorf("%w: worker %d: %w", ErrState, w.index, err)
		}
	}
	return nil
}

// event is the end of a step or of a copy.
type event struct {
	at     time.Duration
	worker int
	do     func(now time.Duration) error // nil: the worker's step ends
}

// events are a heap, the first one on top.
type events []event

func (s *events) Len() int      { return len(*s) }
func (s *events) Swap(i, j int) { (*s)[i], (*s)[j] = (*s)[j], (*s)[i] }
func (s *events) Less(i, j int) bool {
	a, b := (*s)[i], (*s)[j]
	return a.at < b.at || a.at == b.at && a.worker < b.worker
}
func (s *events) Push(x any) { *s = append(*s, x.(event)) } //nolint:errcheck // nothing else is pushed
func (s *events) Pop() any {
	n := len(*s) - 1
	last := (*s)[n]
	(*s)[n] = event{}
	*s = (*s)[:n]
	return last
}
