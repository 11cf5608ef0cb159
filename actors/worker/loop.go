package worker

import (
	"cmp"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/compute/draft"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/compute/sched"
)

// loop owns the device: one goroutine, one round per step. What a round finds
// goes out by mailbox, so that tokens are detokenized and sent while the next
// step runs.
type loop struct {
	Config
	self      *actor.PID // of the inbox
	sched     *sched.Scheduler
	inbox     *inbox
	inFlight  *inFlight
	sequences map[sched.ID]*sequence
	start     time.Time
	quit      chan struct{}
	stopped   chan struct{}
	failed    error // for good: everything is refused
	restarts  restarts

	// These are of the round, and reused.
	arrived    []any
	events     []sched.Event
	commits    []msg.Commit   // of the last step
	forget     bool           // the KV memory lost its contents
	unanswered int            // KVRounds that the KV manager has
	lending    int            // snapshots whose slabs it was requested for
	states     bool           // sequences have states
	rows       int            // of the last one
	rounds     []*msg.KVRound // that the KV manager does not have
	mapping    mapping
	ahead      compute.Ahead // nil: the device takes one step at a time
	flight     *flight       // the step in the air; nil: none is
	flights    [2]flight     // in turn
	landed     time.Time     // the last one of them
	fault      error         // of the device, in the effects of the last plan
	took       time.Duration // the last step
	batch      []compute.Rows
	outputs    []output
	pools      []pooled  // of the step: the rows whose hidden states are read, in the order of the batch
	drafting   []*output // of the step: those whose sequences get draft tokens of the first layers
	outbox     outbox
	logits     stepRows
	draws      []sample.Draw // of the step: those that the device makes
	tokens     []int32       // what it has drawn
	samplers   []*sampler    // one per sampling goroutine, the first is the loop's own
	stride     int           // samplers that share the step's outputs
	sampling   sync.WaitGroup
	masked     chan struct{} // receives a value when masks are computed

	running   atomic.Int64 // sequences that hold KV
	steps     atomic.Uint64
	generated atomic.Uint64 // see Counts
	recent    recentSteps
	busy      atomic.Bool
	progress  atomic.Int64 // UnixNano of the last step, or of the first work after none
}

// sequence is one that the scheduler knows.
type sequence struct {
	gen       *msg.Generate
	tokens    []int32         // prompt and generated tokens; nil before the grant
	sampler   *sample.Sampler // nil with beams, and before the grant
	scores    scores          // of its tokens that were sampled here, with Sampling.Logprobs
	beams     *beams          // nil without
	pool      *pool           // nil without, and before the grant
	scored    []sample.Scored // of the prompt's tokens after the first one, with Generate.Scored
	guide     *guide          // nil without a grammar, and before the grant
	postponed *postponed      // its output, whose masks are late; nil: none
	region    compute.Region  // nil before the grant
	unmapped  []int32         // slabs that are leased and not mapped yet
	first     int             // leading slabs that are not mapped any more, or never were
	mapped    int             // slabs that are, and those before them
	leased    int             // tokens that all of them hold
	backed    int             // of these, those that the scheduler knows
	closes    bool            // its region is being unmapped
	released  bool            // its KV is released then
	entry     *entry
	started   bool
	cached    int32 // leading tokens that were computed before its first step
	drafter   draft.Drafter
	flying    [1]int32        // the token after tokens: it stands for the one that the step in the air draws
	draft     []int32         // draft tokens of the next step
	forced    int             // of them, the first ones that the grammar forces
	choices   []sample.Choice // of the step: a token, and one for each draft token that was accepted
	next      []int32         // tokens that the grammar forces after choices
	decodes   bool            // its first token is there
	committed int             // tokens whose slabs were offered to others
	head      []int32         // slabs of its state; nil without
	stands    int             // tokens that its state is of
	lacks     msg.Denied      // why it ends for sched.ReasonNoMemory
	spilled   int             // tokens that were computed when it was spilled, until it is back
	cancelled bool            // its end is to come
	endIsSent bool
}

func (s *sequence) id() sched.ID { return sched.ID(s.gen.Seq) }

// answer is the tokens that follow the prompt; those of beams are sent at their end, so there are none.
func (s *sequence) answer() []int32 {
	if s.tokens == nil {
		return s.gen.Generated
	}
	return s.tokens[min(len(s.gen.Prompt), len(s.tokens)):]
}

func (s *sequence) generated() int { return len(s.answer()) }

// answered is what there is of the answer now.
func (s *sequence) answered(finish api.Finish) *answered {
	return &answered{tokens: s.answer(), scored: s.gen.Sampling.Logprobs, scores: s.scores, cached: s.cached, finish: finish}
}

// output is a row of logits to sample from, with one for each draft token after it, or a row for
// each beam.
type output struct {
	id     sched.ID
	seq    *sequence
	row    int // the first
	drafts int
	forced int // of drafts, those without logits
	wanted int // draft tokens of the next step that the first layers are to make
	// The scheduler has counted its token before it was known, see flight.
	assumed bool
	late    bool // its masks are not there: it is sampled later
	scores  int  // place of the token of the prompt that the row predicts; 0: it is sampled
	err     error
}

func newLoop(cfg Config, s *sched.Scheduler) *loop {
	l := &loop{
		Config: cfg, sched: s, states: cfg.Sched.KV.Snapshots(), inFlight: newInFlight(cfg.Tracer),
		sequences: make(map[sched.ID]*sequence), start: time.Now(),
		quit: make(chan struct{}), stopped: make(chan struct{}), masked: make(chan struct{}, 1),
	}
	if ahead, ok := cfg.Runner.(compute.Ahead); ok && ahead.RunsAhead() {
		l.ahead = ahead
	}
	l.inbox = newInbox(l)
	for i := range runtime.GOMAXPROCS(0) {
		l.samplers = append(l.samplers, l.newSampler(i))
	}
	return l
}

func (l *loop) run() {
	if l.OwnThread { // else it would lose the time of the goroutines that its thread ran
		runtime.LockOSThread()
	}
	defer close(l.stopped)
	wake := time.Duration(-1) // do not wait
	for l.wait(wake) {
		plan := l.round()
		switch {
		case l.mapping.unfinished():
			wake = -1
		case plan == nil || plan.Rows == 0 && plan.Wake == 0:
			wake = 0
		case plan.Rows == 0:
			wake = max(plan.Wake-time.Since(l.start), 1)
		default:
			wake = -1
		}
	}
	l.settle()
	for _, s := range l.sequences {
		l.closeRegion(s)
	}
}

// settle releases what ended in the last step: what it computed is the KV manager's, and its disk's, before the process ends.
func (l *loop) settle() {
	defer func() { l.panicked(recover()) }()
	if err := l.land(); err != nil {
		l.Log.Error().Err(err).Msg("the last step failed")
		return
	}
	if l.failed == nil && len(l.events) > 0 {
		l.planned()
	}
}

// wait blocks until there is something to do: for at most d, for ever when d
// is 0, not at all when it is negative. False when the loop is to end.
func (l *loop) wait(d time.Duration) bool {
	if d < 0 {
		select {
		case <-l.quit:
			return false
		default:
			return true
		}
	}
	var timeout <-chan time.Time
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-l.inbox.wake:
	case <-timeout:
	case <-l.quit:
		return false
	}
	return true
}

// round takes the messages, plans and runs one step. A failure of the device,
// or a panic, ends every sequence with an error: no caller is left waiting.
func (l *loop) round() (plan *sched.Plan) {
	defer func() {
		if l.panicked(recover()) {
			plan = nil
		}
	}()
	l.takeAll()
	if l.lending > 0 {
		l.awaitLent()
	}
	if err := l.remap(); err != nil {
		l.deviceFailed(err)
	}
	if l.failed == nil {
		plan = l.planned()
	}
	if l.failed == nil && plan.Rows == 0 && l.flight != nil {
		if err := l.land(); err != nil {
			l.deviceFailed(err)
		}
		l.flush()
		return l.round()
	}
	if l.failed == nil && plan.Hold {
		plan = l.hold()
	}
	if err := l.fault; err != nil {
		l.fault = nil
		l.deviceFailed(err)
		l.flush()
		return nil
	}
	if l.failed != nil {
		l.flush()
		return nil
	}
	l.noteProgress(plan)
	if plan.Rows == 0 {
		return plan
	}
	if err := l.step(plan); err != nil {
		l.deviceFailed(err)
		plan = nil
	}
	l.flush()
	return plan
}

// takeAll takes the messages.
func (l *loop) takeAll() {
	l.arrived = l.inbox.drain(l.arrived)
	for _, m := range l.arrived {
		begin := time.Now()
		if err := l.take(m); err != nil {
			l.deviceFailed(err)
		}
		l.Stage.Served(time.Since(begin)) // the steps have a series of their own
	}
}

// planned hands the events to the scheduler and sends the effects of its plan.
func (l *loop) planned() *sched.Plan {
	plan, err := l.sched.Step(time.Since(l.start), l.events)
	if err != nil {
		l.Log.Error().Err(err).Msg("the scheduler ignored an event")
	}
	l.events = l.events[:0]
	if touches(plan) {
		l.fault = cmp.Or(l.fault, l.land())
	}
	l.effects(plan)
	l.flush()
	return plan
}

// take turns a message into an event for the scheduler.
func (l *loop) take(m any) error {
	switch m := m.(type) {
	case *msg.Generate:
		l.submit(m)
	case *msg.Cancel:
		if s := l.sequences[sched.ID(m.Seq)]; s != nil {
			if s.cancelled = true; l.states && s.postponed != nil { // its state is a token ahead of it until then
				return nil
			}
		}
		l.events = append(l.events, sched.Cancel(sched.ID(m.Seq)))
	case *msg.Redirect:
		l.redirect(m)
	case *latelySampled:
		l.sampleLate(m.seq)
	case *msg.KVRound:
		return l.answer(m)
	case *msg.KVMoved:
		return l.moved(m)
	case *msg.KVReady:
		for _, seq := range m.Seqs {
			l.events = append(l.events, sched.Ready(sched.ID(seq)))
		}
		if m.Freed {
			l.events = append(l.events, sched.Freed())
		}
	}
	return nil
}

func (l *loop) submit(g *msg.Generate) {
	id := sched.ID(g.Seq)
	if l.sequences[id] != nil {
		l.Log.Warn().Uint64("seq", uint64(g.Seq)).Msg("a sequence came twice")
		return
	}
	s := &sequence{gen: g, entry: l.inFlight.get(g.Seq)}
	if l.failed != nil {
		l.lose(s, api.Unavailable(l.failed))
		return
	}
	q := &sched.Sequence{
		ID: id, PromptTokens: len(g.Prompt) + len(g.Generated), MaxNewTokens: g.MaxTokens - len(g.Generated), Answered: len(g.Generated),
		Scored: g.Scored != nil, AtOnce: l.Encoder, Priority: g.Priority, Tenant: g.Tenant, Weight: g.Weight, Migrated: g.Migrated,
		Copied: g.Source != nil && !g.Source.Dead, Arrival: g.Arrival.Sub(l.start),
	}
	if l.Encoder != g.Pool.Encodes() { // likewise
		l.end(s, api.FinishError, api.Invalid("pooling", "a sequence for an encoder: found %t, expected %t", g.Pool.Encodes(), l.Encoder))
		return
	}
	if most := len(g.Prompt); g.Second < 0 || g.Second > most || g.Second > 0 && !l.Encoder { // likewise
		l.end(s, api.FinishError, api.Invalid("prompt", "a second text from token %d on, expected one of an encoder from 0 to %d on",
			g.Second, most))
		return
	}
	if g.Beams != nil && g.Grammar != nil { // likewise
		l.end(s, api.FinishError, api.GrammarWithBeams(g.Grammar.Param))
		return
	}
	if g.Beams != nil && !l.Sched.KV.Beams { // likewise, unless it is of an earlier version
		l.end(s, api.FinishError, api.LossyWithBeams())
		return
	}
	if g.Beams != nil {
		var err error
		if s.beams, err = newBeams(g, l.Runner.Vocab()); err != nil {
			l.end(s, api.FinishError, err)
			return
		}
		q.Beams = g.Beams.Width
	}
	l.sequences[id] = s
	if !g.Deadline.IsZero() {
		q.Deadline = max(g.Deadline.Sub(l.start), 1)
	}
	l.events = append(l.events, sched.Submit(q))
}

// begin makes what a sequence needs from its grant on. One that waits, or is refused, has no copy of its prompt.
func (l *loop) begin(s *sequence) {
	g := s.gen
	s.tokens = append(make([]int32, 0, len(g.Prompt)+len(g.Generated)+min(g.MaxTokens, 256)), g.Prompt...)
	s.tokens = append(s.tokens, g.Generated...)
	if g.Scored != nil {
		s.scored = make([]sample.Scored, len(g.Prompt)-1)
	}
	switch {
	case g.Pool != nil:
		s.pool = newPool(g.Pool, l.Runner.HiddenWidth())
	case g.Beams == nil:
		s.sampler = sample.New(g.Sampling, l.Runner.Vocab(), g.Prompt)
		s.sampler.Ends(g.StopTokens, len(g.Prompt))
		s.sampler.Replay(g.Generated)
	}
	if g.Grammar != nil && !s.endIsSent {
		s.guide = l.newGuide(g)
		s.guide.compute(nil, 0)
	}
}

// redirect sends a sequence's tokens to another detokenizer, the last ones again, and to another
// owner, it may be. One that has ended here ends again.
func (l *loop) redirect(m *msg.Redirect) {
	s := l.sequences[sched.ID(m.Seq)]
	runs := s != nil && !s.cancelled && !s.endIsSent
	var a *answered
	if runs {
		a = s.answered(api.FinishNone)
	} else if e := l.inFlight.end(m.Seq); e != nil {
		a = e.answered
	}
	if a == nil || !a.has(m.From) {
		l.Root.Send(m.Reply, &msg.Lost{Seq: m.Seq, Why: msg.WorkerForgot})
		return
	}
	if runs {
		s.gen.Reply, s.gen.Detok = m.Reply, m.Detok
	}
	for _, t := range a.from(m.From, m.Seq) { // none of a beam search: its answers are sent at its end
		l.outbox.add(m.Detok, t)
	}
}

// effects sends the effects of the plan, in their order.
func (l *loop) effects(plan *sched.Plan) {
	for _, e := range plan.Ended {
		s := l.sequences[e.ID]
		if s == nil {
			continue
		}
		finish, err := ending(e, s.lacks)
		l.end(s, finish, err)
		if s.region == nil {
			delete(l.sequences, e.ID)
		}
	}
	l.askKV(plan)
}

func (l *loop) flush() { l.outbox.flush(&l.Config) }

func (l *loop) noteProgress(plan *sched.Plan) {
	l.running.Store(int64(l.sched.Running() + l.mapping.ended()))
	l.Metrics.Paused(plan.Paused)
	if busy := len(l.sequences) > 0; busy != l.busy.Load() || plan.Rows > 0 {
		l.progress.Store(time.Now().UnixNano())
		l.busy.Store(busy)
	}
}

// stalled is the time since the last progress with work at hand.
func (l *loop) stalled(now time.Time) time.Duration {
	if !l.busy.Load() {
		return 0
	}
	return now.Sub(time.Unix(0, l.progress.Load()))
}
