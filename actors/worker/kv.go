package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute/sched"
)

// admitPatience is how long a step waits at most for the KV manager's answers: longer than
// they take, unless the machine is short of processors.
const admitPatience = 500 * time.Microsecond

// hold waits for the KV manager's answer, for admitPatience at most, so that what waits begins in
// this step and not in the one after it. It returns the plan of the step, nil if the worker failed.
func (l *loop) hold() (plan *sched.Plan) {
	patience := time.NewTimer(cmp.Or(l.AdmitPatience, admitPatience))
	defer patience.Stop()
	late := false
	for {
		for l.unanswered > 0 && !late && l.failed == nil {
			select {
			case <-l.inbox.wake:
				l.takeAll()
			case <-patience.C:
				late = true
			}
		}
		if l.failed != nil {
			return nil
		}
		if plan = l.planned(); !plan.Hold {
			return plan
		}
	}
}

// answer takes what the KV manager did in a round.
func (l *loop) answer(m *msg.KVRound) (err error) {
	l.unanswered--
	copies := 0
	for i := range m.Granted {
		if m.Granted[i].CopyTokens > 0 {
			copies++
		}
		err = cmp.Or(err, l.granted(&m.Granted[i]))
	}
	for _, d := range m.Denied {
		if d.Never {
			l.events = append(l.events, sched.NeverFits(sched.ID(d.Seq), d.Need, d.Pool))
		} else {
			l.events = append(l.events, sched.Denied(sched.ID(d.Seq), d.Need, d.Free))
		}
	}
	for _, seq := range m.Kept {
		l.events = append(l.events, sched.Kept(sched.ID(seq)))
	}
	for _, seq := range m.Paused {
		l.events = append(l.events, sched.Paused(sched.ID(seq)))
	}
	for _, p := range m.Parked {
		l.events = append(l.events, sched.Parked(sched.ID(p.Seq), sched.ID(p.By)))
	}
	for _, seq := range m.Ready {
		l.events = append(l.events, sched.Ready(sched.ID(seq)))
	}
	if copies > 0 {
		l.Root.Send(l.KV, &msg.KVCopied{Copies: copies})
	}
	m.Reset()
	l.rounds = append(l.rounds, m)
	return err
}

func (l *loop) granted(g *msg.Granted) error {
	l.events = append(l.events, sched.GrantedPrefix(sched.ID(g.Seq), g.UpTo, g.Computed))
	return l.mapSlabs(g)
}

// moved takes what became of copies to and from the tier.
func (l *loop) moved(m *msg.KVMoved) (err error) {
	for _, seq := range m.Spilled {
		l.events = append(l.events, sched.Spilled(sched.ID(seq)))
	}
	for _, seq := range m.Lost {
		l.events = append(l.events, sched.Lost(sched.ID(seq)))
	}
	for i := range m.Granted {
		err = cmp.Or(err, l.granted(&m.Granted[i]))
	}
	return err
}

// mapSlabs backs a sequence's region with the slabs of its lease. A sequence
// that ended meanwhile needs none; its Release follows.
func (l *loop) mapSlabs(m *msg.Granted) error {
	s := l.sequences[sched.ID(m.Seq)]
	if s == nil {
		return nil
	}
	if s.tokens == nil {
		l.begin(s)
	}
	if s.region == nil {
		if err := l.openRegion(s); err != nil {
			return err
		}
		if s.spilled > 0 {
			l.Metrics.Recomputed(s.spilled-min(m.Computed, s.spilled), false)
			s.spilled = 0
		}
	}
	mapped := s.region.Append
	if s.beams != nil {
		mapped = func(slabs []int32) error { return s.beams.mapSlabs(s.region, slabs, l.Runner.SlabTokens()) }
	}
	if err := mapped(m.Slabs); err != nil || m.CopyTokens == 0 {
		return err
	}
	return l.Runner.CopySlab(m.CopyFrom, m.CopyTo, int(m.CopyTokens))
}

func (l *loop) openRegion(s *sequence) (err error) {
	if s.beams == nil {
		s.region, err = l.Runner.NewRegion(len(s.gen.Prompt) + s.gen.MaxTokens)
		return err
	}
	if s.region, err = l.Runner.NewRegion(len(s.gen.Prompt)); err != nil {
		return err
	}
	return s.beams.open(l.Runner, s.gen.MaxTokens)
}

func (l *loop) closeRegion(s *sequence) {
	if s.region != nil {
		s.region.Close()
		s.region = nil
	}
	if s.beams != nil {
		s.beams.close()
	}
}

// askKV sends the plan's KV effects to the KV manager, in one message.
func (l *loop) askKV(plan *sched.Plan) {
	m := l.kvRound()
	for _, id := range plan.Release {
		if s := l.sequences[id]; s != nil && s.decodes && s.beams == nil { // all that a next prompt may begin with
			l.offer(s, len(s.tokens)-1, true)
		}
	}
	m.Commit = append(m.Commit, l.commits...)
	clear(l.commits)
	l.commits = l.commits[:0]
	m.Forget, l.forget = l.forget, false
	for _, id := range plan.Release {
		if s := l.sequences[id]; s != nil {
			l.closeRegion(s)
			delete(l.sequences, id)
		}
		m.Release = append(m.Release, msg.SeqID(id))
	}
	for _, e := range plan.Spill {
		s := l.sequences[e.ID]
		l.closeRegion(s)
		s.draft, s.committed, s.spilled = nil, 0, e.Tokens
		m.Spill = append(m.Spill, msg.Spill{Seq: msg.SeqID(e.ID), Tokens: e.Tokens})
	}
	for i := range plan.Restore {
		m.Restore = append(m.Restore, reserve(&plan.Restore[i]))
	}
	for i := range plan.Reserve {
		q := reserve(&plan.Reserve[i])
		if s := l.sequences[plan.Reserve[i].ID]; s != nil {
			q.Known, q.Space = s.known(), s.gen.Space()
		}
		m.Reserve = append(m.Reserve, q)
	}
	for _, e := range plan.Lease {
		m.Extend = append(m.Extend, msg.Extend{Seq: msg.SeqID(e.ID), UpTo: e.UpTo, Promise: e.Promise})
	}
	if m.Empty() {
		l.rounds = append(l.rounds, m)
		return
	}
	l.unanswered++
	l.Root.Send(l.KV, m)
}

func reserve(r *sched.Reservation) msg.Reserve {
	return msg.Reserve{Seq: msg.SeqID(r.ID), Tokens: r.Tokens, Promise: r.Promise, Lease: r.Lease, Prompt: r.Prompt, Beams: r.Beams}
}

// known are the tokens of a sequence that is to begin, or to begin again here.
func (s *sequence) known() []int32 {
	if s.tokens != nil {
		return slices.Clip(s.tokens)
	}
	return s.gen.Known()
}

// offer offers the slabs of a sequence's first end tokens to others, with tail also the one that they do not fill.
func (l *loop) offer(s *sequence, end int, tail bool) {
	l.commits = append(l.commits, msg.Commit{Seq: s.gen.Seq, Tokens: s.tokens[:end:end], Tail: tail})
}

// kvRound returns an empty message.
func (l *loop) kvRound() *msg.KVRound {
	n := len(l.rounds)
	if n == 0 {
		return &msg.KVRound{Reply: l.self}
	}
	m := l.rounds[n-1]
	l.rounds = l.rounds[:n-1]
	return m
}
