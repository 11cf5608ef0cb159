package sched

import "slices"

// gather collects the sequences that can have rows in this step: those that decode, and the
// prompts that may run.
func (s *Scheduler) gather() {
	s.decodes, s.ready = s.decodes[:0], s.ready[:0]
	rows := 0
	for _, seq := range s.running.seqs {
		seq.position = seq.computed - seq.drafted
		switch {
		case seq == s.leaving:
			s.plan.Paused++
		case seq.prefilling():
			s.ready = append(s.ready, seq)
		case seq.open():
			s.plan.Awaiting++
		case seq.computed == seq.leased && seq.denied:
			s.plan.Paused++
		case seq.computed == seq.leased:
			s.plan.Stalled++
		default:
			s.decodes = append(s.decodes, seq)
			rows += seq.rows()
		}
	}
	s.openGate(rows)
	s.ready = slices.DeleteFunc(s.ready, func(seq *sequence) bool {
		switch {
		case seq.admission > s.gate:
			s.plan.Held++
		case seq.leased <= seq.computed:
			s.plan.Stalled++
		default:
			return false
		}
		return true
	})
}

// readTurns is the number of steps in which a decoding sequence has one row while takeTurns applies.
const readTurns = 8

// takeTurns leaves decoding sequences out of seven of eight steps while the prompts of migrated
// sequences do not fit into one step. Their readers wait the longest, and with every decode row in
// every step they would wait up to twice as long.
func (s *Scheduler) takeTurns() {
	again := 0
	for _, seq := range s.ready {
		if seq.Migrated {
			again += seq.PromptTokens - seq.computed
		}
	}
	if again <= s.cfg.MaxBatchTokens || s.plan.Yielded > 0 {
		return
	}
	s.turn++
	before := len(s.decodes)
	s.decodes = slices.DeleteFunc(s.decodes, func(seq *sequence) bool { return (seq.serial+s.turn)%readTurns != 0 })
	s.plan.Deferred = before - len(s.decodes)
}

// planDecode gives every decoding sequence its row, or one row for each of its beams. They always
// fit, because MaxBatchSize <= MaxBatchTokens. Forced tokens follow the row while the step has spare rows, and draft tokens while
// DraftRows are left.
func (s *Scheduler) planDecode() {
	free, sharers := s.draftRows()
	spare := s.cfg.MaxBatchTokens - max(free, 0)
	for _, seq := range s.decodes {
		spare -= seq.rows()
	}
	if len(s.ready) > 0 { // half of it is for prompts
		spare /= 2
	}
	for _, seq := range s.decodes {
		most := seq.mayDraft()
		forced := max(min(seq.forced, most, spare), 0)
		drafts := forced
		if spare -= forced; free > 0 && most > seq.forced && forced == seq.forced {
			more := min(most-forced, (free+sharers-1)/sharers)
			drafts, free, sharers = drafts+more, free-more, sharers-1
		}
		c := s.addChunk(seq)
		c.Rows, c.Beams, c.Drafts, c.Forced = seq.rows()+drafts, seq.Beams, drafts, forced
		s.count(seq, c)
		c.Snapshot = s.keepsState(seq)
	}
	s.plan.DecodeRows = s.plan.Rows
}

// keepsState says that the state after a sequence's rows is to be kept, for those who continue the answer when this process dies.
func (s *Scheduler) keepsState(seq *sequence) bool {
	every := s.cfg.StateTokens
	return every > 0 && s.cfg.KV.Snapshots() && seq.computed%every == 0
}

// draftRows returns the number of draft tokens that the step may hold, and of sequences that have
// some. A step with prompts has none, because its rows take longer than reading the weights. A step
// that leaves sequences out has none.
func (s *Scheduler) draftRows() (free, sharers int) {
	if s.cfg.DraftRows == 0 || len(s.ready)+s.plan.Yielded+s.plan.Deferred > 0 {
		return 0, 0
	}
	free = s.cfg.DraftRows
	for _, seq := range s.decodes {
		free -= seq.rows()
		if seq.mayDraft() > seq.forced {
			sharers++
		}
	}
	return free, sharers
}

// planPrompts gives the remaining rows to prompts, in the order of the queue, tenants in turn. A
// prompt that does not fit is cut. The next one gets rows only when this one is complete or its
// lease ends. Prompts of migrated sequences may fill the step, because their readers wait for the
// next token, too.
//
// A new prompt that would fit into a step of its own is not cut if others before it fill half of
// this step: the step ends before it. Its rows would delay the first tokens of the others, and its
// rest would share the next step with prompts that delay its own first token.
func (s *Scheduler) planPrompts() {
	budget := s.cfg.MaxBatchTokens - s.plan.DecodeRows
	if s.cautious {
		budget = min(budget, max(idleRows-s.plan.DecodeRows, 1))
	}
	chunk := budget // of new prompts
	if s.plan.DecodeRows+s.plan.Yielded+s.plan.Deferred > 0 {
		chunk = min(budget, s.chunk()-s.gaveWay)
	}
	for whole := chunk; budget > 0 && len(s.ready) > 0; {
		seq := s.takePrompt()
		rows := min(seq.PromptTokens, seq.leased) - seq.computed
		if seq.AtOnce {
			if rows = s.atOnce(seq, budget); rows > 0 {
				c := s.addChunk(seq)
				c.Rows = rows
				s.count(seq, c)
				budget, chunk = budget-rows, chunk-rows
			}
			continue
		}
		if !seq.Migrated {
			if chunk < rows && rows <= whole && chunk <= whole/2 {
				chunk = 0
			}
			rows = min(rows, chunk)
		}
		if seq.scored() {
			rows = min(rows, s.outputsLeft())
		}
		rows, kept := s.upToSnapshot(seq, min(rows, budget))
		if rows <= 0 { // a migrated one may follow it
			continue
		}
		c := s.addChunk(seq)
		c.Rows, c.Scored, c.Snapshot = rows, seq.scored(), kept
		s.count(seq, c)
		budget, chunk = budget-rows, chunk-rows
	}
	s.plan.PromptRows = s.plan.Rows - s.plan.DecodeRows
	if s.plan.Yielded > 0 {
		s.gaveWay += s.plan.PromptRows
	}
}

// atOnce returns the rows of a prompt that is not cut, 0 if it has to wait for its lease or for another step. An empty step takes any: such
// prompts are no longer than a step.
func (s *Scheduler) atOnce(seq *sequence, budget int) int {
	if seq.leased < seq.PromptTokens || seq.PromptTokens > budget && s.plan.Rows > 0 {
		return 0
	}
	return seq.PromptTokens
}

// upToSnapshot cuts rows of a prompt where its state is to be kept: a state has no past that could be copied later. It says whether they
// end there.
func (s *Scheduler) upToSnapshot(seq *sequence, rows int) (cut int, kept bool) {
	if seq.scored() { // others do not begin with it
		return rows, false
	}
	next := s.cfg.KV.NextSnapshot(seq.computed, seq.PromptTokens, seq.branch)
	if next == 0 || seq.computed+rows < next {
		return rows, false
	}
	return next - seq.computed, true
}

// scored reports whether the logits of a prompt's rows are wanted. They were there before its first token.
func (q *sequence) scored() bool { return q.Scored && q.earlier+q.generated == 0 }

// outputsLeft returns the outputs that a scored prompt may have in this step: at least one, since steps with prompts have no draft
// tokens, and each sequence has a place among MaxBatchSize.
func (s *Scheduler) outputsLeft() int {
	return max(s.cfg.MaxBatchSize, s.cfg.DraftRows) - s.plan.Outputs - len(s.ready)
}

// chunk returns the bound of new sequences' prompt rows between two tokens of other sequences.
func (s *Scheduler) chunk() int {
	if s.cfg.ChunkTokens == 0 {
		return s.cfg.MaxBatchTokens
	}
	return s.cfg.ChunkTokens
}

// maxHeld is the most steps that the waiting-served ratio holds a prompt back. Without this
// bound a prompt on a busy server waits until most answers have ended.
const maxHeld = 16

// openGate applies the waiting-served ratio. Prompt rows make a step longer, so new prompts
// start together: when there are enough of them for the sequences that decode, or when they
// have been held back for maxHeld steps. Later prompts wait for the next opening. A started
// prompt is never held back. TGI applies the same ratio to stop decoding for a prefill.
func (s *Scheduler) openGate(decodeRows int) {
	if s.gate == s.admissions {
		return
	}
	fresh := 0
	for _, seq := range s.ready {
		if seq.admission > s.gate {
			fresh++
		}
	}
	// fresh is 0 when every prompt that was held back has ended.
	if fresh == 0 || s.held >= maxHeld || fresh >= int(s.cfg.WaitingServedRatio*float64(decodeRows)) {
		s.gate = s.admissions
		s.held = 0
		return
	}
	s.held++
}

// addChunk appends a chunk to the step, which the caller fills in and gives to count. In place: the copy of a chunk waits for a byte that
// was just written.
func (s *Scheduler) addChunk(seq *sequence) *Chunk {
	p := &s.plan
	p.Chunks = append(p.Chunks, Chunk{})
	c := &p.Chunks[len(p.Chunks)-1]
	c.ID, c.Row, c.Start = seq.ID, p.Rows, seq.computed
	return c
}

// count adds a chunk of a sequence to what the step computes.
func (s *Scheduler) count(seq *sequence, c *Chunk) {
	prompt := seq.prefilling()
	seq.computed, seq.drafted = c.end(), c.Drafts
	s.serve(seq, c.Rows, prompt)
	if c.Output = seq.open(); c.Output {
		if s.output != nil {
			s.output.follower = seq
		}
		s.output = seq
	}
	s.plan.Outputs += c.outputs()
	s.plan.Rows += c.Rows
}
