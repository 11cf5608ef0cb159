package gateway

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/internal/idle"
	"github.com/millrace/millrace/kvmgr/chain"
)

// Bounds of the watch. Messages between processes are not acknowledged; what is
// missing shows within these times.
const (
	watchEvery = 50 * time.Millisecond
	// restEvery is the time between two ticks of a process that is alone and had no request for as long.
	restEvery = time.Second
	// stopped is a time between two ticks that says that this process did not run.
	stopped = 500 * time.Millisecond
	// lostAfter is how long a worker's report and the text of a sequence may
	// contradict each other: longer than a message is on its way, even in a queue.
	lostAfter = time.Second
	// A worker that drains works on, so that its sequences leave a few at each look: all at
	// once would wait for each other's prompts at the next worker.
	leaveLeast = 4
	leaveShare = 16 // of those that are there
	// leaveTime is how long its keys and values may take to the next worker.
	leaveTime = 10 * time.Second
	// fullTime is how long a sequence stays whose next worker had no room: a beat, which says where there is some.
	fullTime = 250 * time.Millisecond
	// tokenizeFirst is when a prompt that another process did not answer is sent again: the
	// message may be lost. Each further wait is twice as long, up to tokenizeMost: a busy
	// tokenizer need not get it many times.
	tokenizeFirst = time.Second
	tokenizeMost  = 10 * time.Second
	// eventsLate is how long the event of a computed slab may take from its worker. The next turn of an agent comes earlier.
	eventsLate = 100 * time.Millisecond
)

// Reasons for which a sequence has to continue elsewhere; label values of a metric.
const (
	workerDead     = "worker_dead"     // left the cluster, or silent there
	workerSilent   = "worker_silent"   // no report of its sequences
	workerStalled  = "worker_stalled"  // reports, but a step does not end
	workerDraining = "worker_draining" //
	prefillDone    = "prefill_done"    // its worker does prefills, and another one decodes
	workerForgot   = msg.WorkerForgot  // reports, but not of this sequence
	workerFailed   = "worker_failed"   // its device failed
	startedAgain   = "started_again"   // no equal is there, and nothing of the answer was shown
	textLost       = "text_lost"       // the worker is ahead of its text, or a token is missing
	detokDead      = "detok_dead"
)

// watch knows where every sequence of this process runs and notices when nothing
// comes any more: from a killed process, a stopped one, a cut network and a lost
// message alike. It is a state machine with a lock: time comes from outside.
type watch struct {
	self    string
	silence time.Duration // without a report of a sequence
	stall   time.Duration // of a step

	mu      sync.Mutex
	workers map[string]map[msg.SeqID]*watched // by node
	detoks  map[string]int                    // sequences by the node of their detokenizer
	waiting map[*actor.PID]*waiting           // requests, see wait
	ended   []ended                           // sequences of the last ticks, in their order
	ticked  time.Time
	idle    *idle.State // used when a sequence or a wait begins
}

// watched is a sequence that runs.
type watched struct {
	request       *actor.PID
	prompt        []chain.Hash // slabs that its worker has or computes
	detok         string       // node
	local         bool         // worker and detok are here
	bound         *atomic.Bool // its request continues at equals only
	received      atomic.Int64
	had           int64     // received at the beginning
	lastReport    time.Time // of a report that has it
	mismatchSince time.Time // since when report and received contradict each other, unchanged
	at            int64     // received then
	leaves        time.Time // when it is to leave a worker that drains, if it has not by then
	reported      bool      // of its trouble; until its request ends it here it is no stranger
}

// ended is a sequence whose slabs its worker's events may not have yet.
type ended struct {
	worker string // node
	prompt []chain.Hash
	at     time.Time // of the tick before
}

// waiting is a request that waits for another process, or for one to appear.
type waiting struct {
	nodes    []string // that have its prompt, the last one at the end; none: it waits for any
	since    time.Time
	patience time.Duration
}

func newWatch(self string, silence, stall time.Duration) *watch {
	return &watch{
		self: self, silence: silence, stall: stall,
		workers: make(map[string]map[msg.SeqID]*watched), detoks: make(map[string]int), waiting: make(map[*actor.PID]*waiting),
		idle: idle.New(),
	}
}

// lostSequence is a sequence that has to continue elsewhere.
type lostSequence struct {
	request *actor.PID
	lost    *msg.Lost
}

// begin notes a sequence and the number of its tokens that were received before. bound says, from now on, whether
// its request continues at equals only. A sequence that is noted there already, whose text moves, is known at every
// moment: a report in between would have it cancelled as a stranger.
func (w *watch) begin(now time.Time, seq msg.SeqID, worker, detok string, request *actor.PID, bound *atomic.Bool, received int) *watched {
	s := &watched{request: request, detok: detok, local: worker == w.self && detok == w.self, bound: bound, lastReport: now,
		had: int64(received)}
	s.received.Store(int64(received))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.use(now)
	w.forget(seq, worker)
	if w.workers[worker] == nil {
		w.workers[worker] = make(map[msg.SeqID]*watched)
	}
	w.workers[worker][seq] = s
	w.detoks[detok]++
	return s
}

// rest reports that there is nothing to watch until idle wakes.
func (w *watch) rest(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.workers)+len(w.waiting)+len(w.ended) == 0 && w.idle.Rest(now, restEvery)
}

// use ends a rest. The time since the last tick is no pause of this process then.
func (w *watch) use(now time.Time) {
	if w.idle.Use(now) {
		w.ticked = now
	}
}

func (w *watch) end(seq msg.SeqID, worker string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.forget(seq, worker)
}

// forget needs the lock.
func (w *watch) forget(seq msg.SeqID, worker string) {
	seqs := w.workers[worker]
	s := seqs[seq]
	if s == nil {
		return
	}
	delete(seqs, seq)
	if len(s.prompt) > 0 {
		w.ended = append(w.ended, ended{worker, s.prompt, w.ticked})
	}
	if w.detoks[s.detok]--; w.detoks[s.detok] == 0 {
		delete(w.detoks, s.detok)
	}
	if len(seqs) == 0 {
		delete(w.workers, worker)
	}
}

// prompts notes the slabs of a sequence's tokens before its first step.
func (w *watch) prompts(seq msg.SeqID, worker string, prompt []chain.Hash) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.workers[worker][seq]; s != nil {
		s.prompt = prompt
	}
}

// overlap is how many of a prompt's first slabs the sequences of a worker have, will have, or had when they ended lately.
func (w *watch) overlap(worker string, prompt []chain.Hash) (most int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.workers[worker] {
		most = max(most, chain.Common(s.prompt, prompt))
	}
	for i := range w.ended {
		if w.ended[i].worker == worker {
			most = max(most, chain.Common(w.ended[i].prompt, prompt))
		}
	}
	return most
}

// leave keeps a sequence whose request has left this process: its worker is not to cancel it.
func (w *watch) leave(seq msg.SeqID, worker string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.workers[worker][seq]; s != nil {
		s.reported = true
	}
}

// stays keeps a sequence at a worker that drains until the next ticks: there was no room for it elsewhere.
func (w *watch) stays(seq msg.SeqID, worker string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.workers[worker][seq]; s != nil {
		s.leaves = w.ticked.Add(fullTime)
	}
}

// sequences counts those of a worker.
func (w *watch) sequences(worker string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.workers[worker])
}

// texts counts those of a node with detokenizers.
func (w *watch) texts(node string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.detoks[node]
}

// wait makes a request try again when one of the nodes is gone or the last one has not
// answered within patience; without nodes each tick.
func (w *watch) wait(now time.Time, request *actor.PID, nodes []string, patience time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.use(now)
	w.waiting[request] = &waiting{slices.Clone(nodes), now, patience}
}

// over says whether a request has waited long enough, or for a node that is gone.
func (w *watch) over(x *waiting, now time.Time, v view) bool {
	n := len(x.nodes)
	if n == 0 || x.nodes[n-1] != w.self && now.Sub(x.since) > x.patience {
		return true
	}
	return slices.ContainsFunc(x.nodes, func(node string) bool { return node != w.self && !v.Alive(node) })
}

func (w *watch) waitNoMore(request *actor.PID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, request)
}

// report takes a worker's. Strangers are sequences that the worker need not
// continue: their requests have ended or moved.
func (w *watch) report(now time.Time, p *msg.Progress, others takers) (losses []lostSequence, strangers []msg.SeqID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seqs := w.workers[p.Node]
	generated := make(map[msg.SeqID]int, len(p.Seqs))
	for i, seq := range p.Seqs {
		generated[seq] = p.Generated[i]
		if seqs[seq] == nil {
			strangers = append(strangers, seq)
		}
	}
	stalled := p.InStep > w.stall
	for seq, s := range seqs {
		if s.reported {
			continue
		}
		n, known := generated[seq]
		received := s.received.Load()
		why := textLost
		if known {
			s.lastReport = now
		} else {
			why = workerForgot
		}
		switch {
		case stalled && others.take(s):
			why = workerStalled
		case s.local:
			continue // nothing is lost inside a process, however late it is
		case known && int64(n) <= received:
			s.mismatchSince = time.Time{}
			continue
		case !s.late(now):
			continue
		}
		losses = s.tell(losses, seq, why)
	}
	return losses, strangers
}

// late says that nothing came of a sequence for lostAfter, although its worker says that something was sent.
func (s *watched) late(now time.Time) bool {
	if received := s.received.Load(); s.mismatchSince.IsZero() || received != s.at {
		s.mismatchSince, s.at = now, received
		return false
	}
	return now.Sub(s.mismatchSince) >= lostAfter
}

func (s *watched) tell(list []lostSequence, seq msg.SeqID, why string) []lostSequence {
	s.reported = true
	return append(list, lostSequence{s.request, &msg.Lost{Seq: seq, Why: why}})
}

// nodes are the other processes that the sequences of this one need.
func (w *watch) nodes() (list []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for node := range w.workers {
		list = append(list, node)
	}
	for node := range w.detoks {
		if w.workers[node] == nil {
			list = append(list, node)
		}
	}
	return slices.DeleteFunc(list, func(node string) bool { return node == w.self })
}

// view is what a tick needs of the cluster.
type view interface {
	Partitioned() bool         // this node reaches nobody: judge nobody
	Alive(node string) bool    //
	Finished(node string) bool // it left, and had none of this process's sequences in hand
	leave(node string) takers  // who can take over what a worker that drains has; none if it does not
	moves(node string) bool    // whether what has a token from a worker continues at another one
}

// takers are the workers that could take over sequences of another one.
type takers struct {
	any   bool // one that can begin them again
	equal bool // one that can continue them
}

func (t takers) take(s *watched) bool {
	if s.bound.Load() {
		return t.equal
	}
	return t.any
}

// tick checks for silence. again lists the requests that should try again.
func (w *watch) tick(now time.Time, v view) (losses []lostSequence, again []*actor.PID) {
	draining, moving := w.leaving(v)
	w.mu.Lock()
	defer w.mu.Unlock()
	pause := now.Sub(w.ticked)
	w.ticked = now
	w.ended = slices.DeleteFunc(w.ended, func(e ended) bool { return now.Sub(e.at) > eventsLate })
	if v.Partitioned() || pause > stopped { // this process was cut off, or stopped: it has to listen first
		w.resetTimers(now)
		return nil, nil
	}
	for worker, seqs := range w.workers {
		local := worker == w.self
		dead := !local && !v.Alive(worker)
		finished := dead && v.Finished(worker)
		leave := max(leaveLeast, len(seqs)/leaveShare)
		for seq, s := range seqs {
			var why string
			switch {
			case s.reported:
				continue
			case finished && !s.late(now): // its end is on its way
				continue
			case dead:
				why = workerDead
			case leave > 0 && draining[worker].equal && now.After(s.leaves): // without one it finishes what it has
				leave--
				s.leaves = now.Add(leaveTime)
				losses = append(losses, lostSequence{s.request, &msg.Lost{Seq: seq, Why: workerDraining}})
				continue // it runs on
			case leave > 0 && moving[worker] && now.After(s.leaves) && s.received.Load() > s.had:
				leave--
				s.leaves = now.Add(leaveTime)
				losses = append(losses, lostSequence{s.request, &msg.Lost{Seq: seq, Why: prefillDone}})
				continue // as above
			case !local && now.Sub(s.lastReport) > w.silence:
				why = workerSilent
			case s.detok != w.self && !v.Alive(s.detok):
				why = detokDead
			default:
				continue
			}
			losses = s.tell(losses, seq, why)
		}
	}
	for request, x := range w.waiting {
		if w.over(x, now, v) {
			again = append(again, request)
		}
	}
	return losses, again
}

// leaving lists the workers that sequences should leave because they drain, and those where they end with prefill, without
// the lock: the answer depends on how many sequences each has.
func (w *watch) leaving(v view) (draining map[string]takers, moving map[string]bool) {
	w.mu.Lock()
	nodes := slices.Collect(maps.Keys(w.workers))
	w.mu.Unlock()
	draining, moving = make(map[string]takers), make(map[string]bool)
	for _, node := range nodes {
		if node != w.self {
			draining[node] = v.leave(node)
		}
		moving[node] = v.moves(node)
	}
	return draining, moving
}

// resetTimers counts everything as reported now.
func (w *watch) resetTimers(now time.Time) {
	for _, seqs := range w.workers {
		for _, s := range seqs {
			s.lastReport, s.mismatchSince = now, time.Time{}
		}
	}
	for _, x := range w.waiting {
		x.since = now
	}
}
