package worker

import (
	"sync"
	"time"
)

// Step says what one step of the device had.
type Step struct {
	Number     uint64        `json:"number"`   // counts from 1
	At         time.Time     `json:"at"`       // its beginning
	Took       time.Duration `json:"took"`     // with sampling, in nanoseconds
	Sampling   time.Duration `json:"sampling"` // of it, with the wait for the masks of grammars
	Sequences  int           `json:"sequences"`
	DecodeRows int           `json:"decode_rows"` // with those of draft tokens
	DraftRows  int           `json:"draft_rows"`  // of the decode rows
	PromptRows int           `json:"prompt_rows"`
}

// keptSteps is how many of the last steps a worker remembers.
const keptSteps = 120

// recentSteps are the last steps. The loop adds them, and others read them beside it.
type recentSteps struct {
	mu    sync.Mutex
	steps [keptSteps]Step // a ring
	n     uint64          // steps so far
}

// add numbers a step and keeps it.
func (r *recentSteps) add(s Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.Number = r.n + 1
	r.steps[r.n%keptSteps] = s
	r.n++
}

// list returns the last steps, the oldest first.
func (r *recentSteps) list() []Step {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := make([]Step, 0, keptSteps)
	for i := r.n - min(r.n, keptSteps); i < r.n; i++ {
		list = append(list, r.steps[i%keptSteps])
	}
	return list
}

// RecentSteps lists the last steps of the device, the oldest first.
func (w *Worker) RecentSteps() []Step { return w.loop.recent.list() }
