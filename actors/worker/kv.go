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
		switch {
		case d.NoMemory:
			if s := l.sequences[sched.ID(d.Seq)]; s != nil {
				s.lacks = d
			}
			l.events = append(l.events, sched.NoMemory(sched.ID(d.Seq), d.Need, d.Free))
		case d.Never:
			l.events = append(l.events, sched.NeverFits(sched.ID(d.Seq), d.Need, d.Pool))
		default:
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
	for i := range m.Lent {
		if l.lending--; m.Lent[i].Slabs != nil {
			copies++
			err = cmp.Or(err, l.snapshot(&m.Lent[i]))
		}
	}
	if copies > 0 {
		l.Root.Send(l.KV, &msg.KVCopied{Copies: copies})
	}
	m.Reset()
	l.rounds = append(l.rounds, m)
	return err
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

// askKV sends the plan's KV effects to the KV manager, in one message.
func (l *loop) askKV(plan *sched.Plan) {
	m := l.kvRound()
	for _, id := range plan.Release {
		if s := l.sequences[id]; s != nil && s.beams == nil { // all that a next prompt may begin with
			l.offerAll(s)
		}
	}
	m.Commit = append(m.Commit, l.commits...)
	clear(l.commits)
	l.commits = l.commits[:0]
	m.Forget, l.forget = l.forget, false
	for _, id := range plan.Release {
		if s := l.sequences[id]; s != nil {
			if s.released = true; !l.close(s) {
				continue
			}
			delete(l.sequences, id)
		}
		l.mapping.unspill(msg.SeqID(id))
		m.Release = append(m.Release, msg.SeqID(id))
	}
	for _, e := range plan.Spill {
		s := l.sequences[e.ID]
		s.draft, s.forced, s.committed, s.spilled = nil, 0, 0, e.Tokens
		if l.close(s) {
			l.closed(s)
		}
	}
	m.Release, l.mapping.released = append(m.Release, l.mapping.released...), l.mapping.released[:0]
	m.Spill, l.mapping.spills = append(m.Spill, l.mapping.spills...), l.mapping.spills[:0]
	for i := range plan.Restore {
		m.Restore = append(m.Restore, reserve(&plan.Restore[i]))
	}
	for i := range plan.Reserve {
		q := reserve(&plan.Reserve[i])
		if s := l.sequences[plan.Reserve[i].ID]; s != nil {
			if q.Space = s.gen.Space(); !s.gen.Whole() {
				q.Known = s.known()
			}
		}
		m.Reserve = append(m.Reserve, q)
	}
	for _, e := range plan.Lease {
		l.trim(e)
		m.Extend = append(m.Extend, msg.Extend{Seq: msg.SeqID(e.ID), UpTo: e.UpTo, Promise: e.Promise, From: e.From})
	}
	if l.states {
		l.lend(m, plan)
	}
	m.Rows = l.sched.Rows()
	if m.Empty() && m.Rows == l.rows {
		l.rounds = append(l.rounds, m)
		return
	}
	l.rows = m.Rows
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
