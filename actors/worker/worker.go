// Package worker computes sequences: the process that gets them, the loop that owns the device and
// makes the steps, the table of what is in flight, and the recovery from a failure of the device.
// It is the compute role's; package compute is the model that it runs.
//
// It must not know requests, text or placement: a sequence's tokens go to the detokenizer that
// its Generate names.
package worker

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/grammar"
	"github.com/millrace/millrace/compute/sched"
	"github.com/millrace/millrace/metrics"
)

// Worker computes the sequences of this process's device: an inbox that gets them, a
// goroutine that owns the device, and a table of what is in flight.
type Worker struct {
	loop     *loop
	hung     chan struct{} // closed when the device does not return
	watchdog sync.WaitGroup
}

// Config is what a worker needs.
type Config struct {
	Node          string // name of this process
	Root          *actor.RootContext
	KV            *actor.PID
	Inherits      func() bool     // whether dead workers of this host left keys and values; nil: never
	Runner        compute.Runner  // not closed
	Drafter       compute.Drafter // its first layers, which make draft tokens; nil: these are looked up
	Encoder       bool            // the Runner's program is one: texts are in one step each, and keep nothing after it
	OwnThread     bool            // the Runner computes on the thread of its caller, which then runs no other goroutines
	Grammars      *grammar.Compiler
	Sched         sched.Config
	Numerics      string        // digest, see api.Pin
	AdmitPatience time.Duration // see loop.hold; 0: its default
	MaskPatience  time.Duration // see loop.awaitMasks; 0: its default
	MapTime       time.Duration // see loop.remap; 0: its default
	MapSlabs      int           // see loop.piece; 0: its default
	GiveUpAfter   time.Duration // no step for this time is a failure for good; 0: never
	Faults        Faults
	Metrics       *metrics.Model
	Stage         *metrics.Stage // of this worker
	Detok         *metrics.Stage // of the detokenizers of this process
	Tracer        trace.Tracer
	Log           zerolog.Logger
}

// Faults gets what goes wrong with the device.
type Faults interface {
	// Down says that the device failed and is being loaded again, until up is called with the time that it took.
	Down(err error) (up func(took time.Duration))
	// Fail says that the worker failed for good. A call after the first one changes nothing.
	Fail(err error)
}

// New registers the inbox as msg.ComputeActor; Start starts the goroutine.
func New(cfg Config) (*Worker, error) {
	s, err := sched.New(cfg.Sched)
	if err != nil {
		return nil, err
	}
	w := &Worker{loop: newLoop(cfg, s), hung: make(chan struct{})}
	var added bool
	if w.loop.self, added = cfg.Root.ActorSystem().ProcessRegistry.Add(w.loop.inbox, msg.ComputeActor); !added {
		return nil, fmt.Errorf("worker: found a process %q, expected none", msg.ComputeActor)
	}
	return w, nil
}

// PID is that of the inbox.
func (w *Worker) PID() *actor.PID { return w.loop.self }

// Start starts the goroutine that owns the device.
func (w *Worker) Start() {
	go w.loop.run()
	if w.loop.GiveUpAfter > 0 {
		w.watchdog.Go(w.giveUpOnAStep)
	}
}

// Stop ends the goroutine after its step. It fails when the step does not end.
func (w *Worker) Stop() error {
	close(w.loop.quit)
	select {
	case <-w.loop.stopped:
		w.watchdog.Wait()
		return nil
	case <-w.hung:
		return errors.New("worker: the device did not end its step")
	}
}

// InFlight is the number of sequences that are here.
func (w *Worker) InFlight() int { return w.loop.inFlight.len() }

// Cancelled is when a sequence was cancelled last: another worker may be about to fetch its keys and values.
func (w *Worker) Cancelled() time.Time { return w.loop.inFlight.cancelledAt() }

// Rest reports that there was no sequence for some time. Then Begun receives a value with the next one.
func (w *Worker) Rest(quiet time.Duration) bool { return w.loop.inFlight.rest(quiet) }

// Begun is for one reader, see Rest.
func (w *Worker) Begun() <-chan struct{} { return w.loop.inFlight.idle.Woken() }

// Owners counts them by the node of their gateway.
func (w *Worker) Owners() map[string]int { return w.loop.inFlight.owners() }

// Running is the number of those that hold KV.
func (w *Worker) Running() int { return int(w.loop.running.Load()) }

// Steps is the number of steps so far.
func (w *Worker) Steps() uint64 { return w.loop.steps.Load() }

// Stalled is the time since the last progress with work at hand.
func (w *Worker) Stalled(now time.Time) time.Duration { return w.loop.stalled(now) }

// Sequences lists what is in flight.
func (w *Worker) Sequences() []Sequence { return w.loop.inFlight.list() }

// Report sends a Progress to the owner of each sequence.
func (w *Worker) Report(now time.Time) {
	for _, r := range w.loop.inFlight.report(w.loop.Node, w.loop.stalled(now)) {
		w.loop.Root.Send(r.to, r.progress)
	}
}

// SweepOrphans cancels the sequences of nodes that have been dead for a long time.
func (w *Worker) SweepOrphans(now time.Time, alive func(node string) bool) {
	for _, seq := range w.loop.inFlight.orphans(now, alive) {
		w.loop.Root.Send(w.loop.self, &msg.Cancel{Seq: seq})
	}
}
