// Package idle decides when a background loop may tick slowly because nothing is in hand, and wakes it at the next use. It must
// not know what is used.
package idle

import "time"

// State is the time of the last use, whether the loop rests, and the channel that wakes it. The caller's lock guards its methods but
// Woken. Time comes from the caller.
type State struct {
	used  time.Time
	rests bool
	woken chan struct{} // holds one value at most
}

// New returns a State that was not used yet.
func New() *State { return &State{woken: make(chan struct{}, 1)} }

// Use notes a use at now. If it ends a rest, Woken receives a value, and Use returns true.
func (s *State) Use(now time.Time) bool {
	s.used = now
	if !s.rests {
		return false
	}
	s.rests = false
	select {
	case s.woken <- struct{}{}:
	default: // the loop did not read the last one yet
	}
	return true
}

// Rest begins a rest if the last use was at least quiet before now, and returns whether it did. The next Use ends it. Call it only
// while nothing that was used is in hand.
func (s *State) Rest(now time.Time, quiet time.Duration) bool {
	s.rests = now.Sub(s.used) >= quiet
	return s.rests
}

// Woken receives a value when a rest ends. It is for one reader.
func (s *State) Woken() <-chan struct{} { return s.woken }
