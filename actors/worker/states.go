package worker

import (
	"cmp"
	"slices"
	"time"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/compute/sched"
)

// lend requests slabs for the snapshots of the plan's step. They are there when it has run.
func (l *loop) lend(m *msg.KVRound, plan *sched.Plan) {
	for i := range plan.Chunks {
		if c := &plan.Chunks[i]; c.Snapshot {
			m.Lend = append(m.Lend, msg.Lend{Seq: msg.SeqID(c.ID), Tokens: c.Start + c.Rows})
		}
	}
	l.lending += len(m.Lend)
}

// awaitLent waits for the slabs of the last step's snapshots, for admitPatience at most: the next step changes the states.
func (l *loop) awaitLent() {
	patience := time.NewTimer(cmp.Or(l.AdmitPatience, admitPatience))
	defer patience.Stop()
	for l.lending > 0 && l.failed == nil {
		select {
		case <-l.inbox.wake:
			l.takeAll()
		case <-patience.C:
			return
		}
	}
}

// snapshot copies the state of a sequence to slabs that others may begin with. Now or never: the slabs may be others' in the next round,
// and the state is another one after the next step.
func (l *loop) snapshot(n *msg.Lent) error {
	s := l.sequences[sched.ID(n.Seq)]
	if s == nil || s.region == nil || s.closes || s.stands != n.Tokens {
		return nil
	}
	for i, to := range n.Slabs {
		if err := l.Runner.CopySlab(s.head[i], to, l.Sched.KV.SlabTokens); err != nil {
			return err
		}
	}
	i := slices.IndexFunc(l.commits, func(c msg.Commit) bool { return c.Seq == n.Seq && len(c.Tokens) == n.Tokens })
	if i < 0 { // it was sent before the wait for a grant
		i = len(l.commits)
		l.offer(s, n.Tokens, false)
	}
	l.commits[i].State = true
	return nil
}

// offerAll offers all that is computed of a sequence that ends, its state too: also of one that leaves before its first token.
func (l *loop) offerAll(s *sequence) {
	switch {
	case l.states && s.stands > 0 && s.stands <= len(s.tokens):
		l.offer(s, s.stands, true)
		l.commits[len(l.commits)-1].State = true
	case !l.states && s.decodes:
		l.offer(s, len(s.tokens)-1, true)
	}
}
