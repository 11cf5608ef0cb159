package sched

import (
	"math"
	"slices"
	"time" //nolint:depguard // for a duration; there is no clock here
)

// PriorityIdle is the lowest priority, for work that nobody waits for. Its sequences get the steps in which no other sequence has rows.
const PriorityIdle = math.MaxInt32

const (
	// idleTurns is the number of steps with rows of others after which idle sequences have rows in one, so that they, and the KV that they
	// hold, end at some time under any load.
	idleTurns = 64
	// idleRows bounds the sequences and the rows of an idle step for the time recent after a step with rows of others. A prompt that
	// arrives during the step waits for its end.
	idleRows = 16
	recent   = 10 * time.Second
)

// setIdleAside leaves idle sequences out of a step in which others have rows.
func (s *Scheduler) setIdleAside() {
	idle := func(seq *sequence) bool { return seq.rank.priority == PriorityIdle }
	busy := func(seq *sequence) bool { return !idle(seq) }
	s.cautious = false
	if !slices.ContainsFunc(s.decodes, busy) && !slices.ContainsFunc(s.ready, busy) {
		if s.cautious = s.now < s.busyUntil; s.cautious && len(s.decodes) > idleRows {
			s.plan.Idle = len(s.decodes) - idleRows
			s.decodes = s.decodes[:idleRows]
		}
		return
	}
	s.busyUntil = s.now + recent
	before := len(s.decodes) + len(s.ready)
	if !slices.ContainsFunc(s.decodes, idle) && !slices.ContainsFunc(s.ready, idle) {
		return
	}
	if s.idleTurn++; s.idleTurn%idleTurns == 0 {
		return
	}
	s.decodes = slices.DeleteFunc(s.decodes, idle)
	s.ready = slices.DeleteFunc(s.ready, idle)
	s.plan.Idle = before - len(s.decodes) - len(s.ready)
}
