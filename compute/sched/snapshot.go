package sched

import (
	"errors"
	"fmt"
)

// Running counts the sequences that hold KV.
func (s *Scheduler) Running() int { return s.running.len() }

// Waiting counts the sequences that were accepted and hold no KV yet.
func (s *Scheduler) Waiting() int { return s.shared.Inside() - s.running.len() - s.away.len() }

// Away counts the sequences whose KV is in the tier.
func (s *Scheduler) Away() int { return s.away.len() }

// Rows counts the decode rows of all sequences, with those that wait.
func (s *Scheduler) Rows() int { return s.running.rows + s.waiting.rows + s.away.rows }

// Idle says that every sequence has ended and no answer of the KV manager is
// awaited.
func (s *Scheduler) Idle() bool { return len(s.byID) == 0 && len(s.reserving) == 0 }

// SequenceState is a live sequence as Snapshot sees it.
type SequenceState struct {
	ID        ID
	State     State
	Priority  int
	Tenant    string
	Arrival   Time
	Deadline  Time
	Prompt    int  // tokens
	MaxNew    int  // tokens
	Generated int  // tokens sampled
	Computed  int  // tokens in the KV cache after the last plan
	Promised  int  // tokens whose slabs are promised
	Denied    bool // its last growth was
	Leased    int  // tokens backed by slabs
	Denials   int  // times its reservation was denied
}

// Snapshot copies the state of all live sequences: running, away, waiting,
// each in the order of service.
func (s *Scheduler) Snapshot() []SequenceState {
	out := make([]SequenceState, 0, s.shared.Inside())
	for _, q := range [...]*queue{&s.running, &s.away, &s.waiting} {
		for _, seq := range q.seqs {
			out = append(out, SequenceState{
				ID: seq.ID, State: seq.state, Priority: seq.Priority, Tenant: seq.Tenant,
				Arrival: seq.Arrival, Deadline: seq.Deadline,
				Prompt: seq.PromptTokens, MaxNew: seq.MaxNewTokens, Generated: seq.generated,
				Computed: seq.computed, Promised: seq.promised, Denied: seq.denied, Leased: seq.leased, Denials: seq.denials,
			})
		}
	}
	return out
}

// Check reports the first contradiction in the scheduler's state and in its last plan. It
// costs O(sequences).
func (s *Scheduler) Check() error {
	live, migrated := 0, 0
	for _, q := range [...]struct {
		state State
		*queue
	}{{Waiting, &s.waiting}, {Running, &s.running}, {Away, &s.away}} {
		rows := 0
		for i, seq := range q.seqs {
			rows += seq.rows()
			if seq.state != q.state || s.byID[seq.ID] != seq {
				return fmt.Errorf("sched: check: sequence %d is %v, found among the %v", seq.ID, seq.state, q.state)
			}
			if i > 0 && !q.seqs[i-1].before(seq) {
				return fmt.Errorf("sched: check: sequence %d is after its place among the %v", q.seqs[i-1].ID, q.state)
			}
			if err := s.checkSequence(seq); err != nil {
				return err
			}
			live++
			if seq.Migrated {
				migrated++
			}
		}
		if rows != q.rows {
			return fmt.Errorf("sched: check: %d rows among the %v, the count says %d", rows, q.state, q.rows)
		}
	}
	queued, batch := s.waiting.len()+s.running.len()+s.away.len(), s.running.rows
	if s.returning != nil {
		batch += s.returning.rows()
	}
	switch {
	case s.leaving != nil && s.leaving.state != Running || s.returning != nil && s.returning.state != Away:
		return errors.New("sched: check: a sequence on its way to the tier does not run, or one on its way back is not there")
	case queued != len(s.byID):
		return fmt.Errorf("sched: check: %d sequences in the queues, %d known", queued, len(s.byID))
	case live != s.shared.Inside():
		return fmt.Errorf("sched: check: %d sequences live, the count says %d", live, s.shared.Inside())
	case batch > s.cfg.MaxBatchSize:
		return fmt.Errorf("sched: check: %d sequences and beams hold KV, expected at most %d", batch, s.cfg.MaxBatchSize)
	case live-migrated > 2*(s.cfg.MaxBatchSize+s.cfg.MaxWaiting):
		return fmt.Errorf("sched: check: %d sequences accepted, expected at most %d", live-migrated,
			2*(s.cfg.MaxBatchSize+s.cfg.MaxWaiting))
	case len(s.planned) > 0 || s.plannedRows != 0 || len(s.reserving) > s.cfg.MaxBatchSize:
		return fmt.Errorf("sched: check: %d sequences have a reservation on its way, %d of them in the plan, expected at most %d and 0",
			len(s.reserving), len(s.planned), s.cfg.MaxBatchSize)
	}
	if err := s.checkFlows(); err != nil {
		return err
	}
	return s.checkPlan()
}

// checkFlows compares the counts of the flows with the sequences.
func (s *Scheduler) checkFlows() error {
	type counts struct{ live, backlog, pending, rows int }
	want := map[*flow]counts{}
	for _, seq := range s.byID {
		if s.flows[seq.Tenant] != seq.flow {
			return fmt.Errorf("sched: check: sequence %d is in a flow that is not its tenant's", seq.ID)
		}
		n := want[seq.flow]
		n.live++
		if seq.state == Running {
			n.rows += seq.rows()
		}
		if seq.prefilling() {
			n.backlog++
			if seq.state == Running {
				n.pending += seq.PromptTokens - seq.computed
			}
		}
		want[seq.flow] = n
	}
	for tenant, f := range s.flows {
		if found := (counts{f.live, f.backlog, f.pending, f.rows}); found != want[f] {
			return fmt.Errorf("sched: check: tenant %q has %+v, the count says %+v", tenant, want[f], found)
		}
	}
	return nil
}

func (s *Scheduler) checkSequence(q *sequence) error {
	held := q.state == Running
	switch {
	case q.generated >= q.MaxNewTokens:
		return fmt.Errorf("sched: check: sequence %d made %d tokens, expected less than %d", q.ID, q.generated, q.MaxNewTokens)
	case q.computed > q.known()+q.drafted || q.computed > max(q.leased, q.leaseWanted) || q.leased > q.promised ||
		q.promised > q.promising ||
		q.promising > q.total():
		return fmt.Errorf("sched: check: sequence %d computed %d tokens, known %d, leased %d, reserved %d",
			q.ID, q.computed, q.known(), q.leased, q.total())
	case held != (q.leased > 0):
		return fmt.Errorf("sched: check: sequence %d is %v with a lease of %d tokens", q.ID, q.state, q.leased)
	case q.Deadline != 0 && (s.wake == 0 || s.wake > q.Deadline):
		return fmt.Errorf("sched: check: sequence %d is due at %v, wake is %v", q.ID, q.Deadline, s.wake)
	}
	return nil
}

// checkPlan checks that the last plan's rows are whole and inside the budgets.
func (s *Scheduler) checkPlan() error {
	p := &s.plan
	rows, outputs, fresh, draftTokens, forced := 0, 0, 0, 0, 0
	for i, c := range p.Chunks {
		seq := s.byID[c.ID]
		if seq == nil || seq.state != Running || c.Row != rows || c.Rows < 1 || c.end() != seq.computed ||
			c.Beams > 0 && (c.Beams != seq.Beams || c.Rows != c.Beams) {
			return fmt.Errorf("sched: check: chunk %d of step %d does not fit its sequence: %+v", i, p.Step, c)
		}
		if c.Output != seq.open() || c.Drafts != seq.drafted {
			return fmt.Errorf("sched: check: chunk %d of step %d: output %t, computed %d of %d tokens, %d of %d draft tokens",
				i, p.Step, c.Output, seq.computed, seq.known(), c.Drafts, seq.drafted)
		}
		draftTokens += c.Drafts - c.Forced
		forced += c.Forced
		rows += c.Rows
		outputs += c.outputs()
		if c.Start < seq.PromptTokens && !seq.Migrated {
			fresh += c.Rows
		}
	}
	switch {
	case rows != p.Rows || p.DecodeRows+p.PromptRows != rows || outputs != p.Outputs:
		return fmt.Errorf("sched: check: step %d has %d rows and %d outputs, the plan says %d (%d + %d) and %d",
			p.Step, rows, outputs, p.Rows, p.DecodeRows, p.PromptRows, p.Outputs)
	case rows > s.cfg.MaxBatchTokens:
		return fmt.Errorf("sched: check: step %d has %d rows, the budget is %d", p.Step, rows, s.cfg.MaxBatchTokens)
	case draftTokens > 0 && (p.PromptRows > 0 || rows-forced > s.cfg.DraftRows):
		return fmt.Errorf("sched: check: step %d has %d draft tokens among %d rows, %d of prompts, expected at most %d rows and no prompts",
			p.Step, draftTokens, rows-forced, p.PromptRows, s.cfg.DraftRows)
	case p.DecodeRows > 0 && s.cfg.ChunkTokens > 0 && fresh > s.cfg.ChunkTokens:
		return fmt.Errorf("sched: check: step %d has %d rows of new prompts beside %d decode rows, expected at most %d",
			p.Step, fresh, p.DecodeRows, s.cfg.ChunkTokens)
	}
	return nil
}
