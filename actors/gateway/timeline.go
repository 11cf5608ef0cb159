package gateway

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/api"
)

// Timeline says when a request passed each stage. A zero time has not come. Beginnings of a request that began again, or
// continues at another worker, are the first ones; the end of the prompt and the worker are the last ones.
type Timeline struct {
	ID           string    `json:"id"`
	Tenant       string    `json:"tenant"`
	Model        string    `json:"model"`
	Worker       string    `json:"worker"`    // node; "": none yet
	Sequences    []string  `json:"sequences"` // ids in /debug/kv; of a request that has ended, the last ones
	Arrival      time.Time `json:"arrival"`
	Tokenized    time.Time `json:"tokenized,omitzero"`
	Begun        time.Time `json:"begun,omitzero"` // the first row of the prompt is in a step
	FirstToken   time.Time `json:"first_token,omitzero"`
	End          time.Time `json:"end,omitzero"`
	PromptTokens int       `json:"prompt_tokens"`
	CachedTokens int       `json:"cached_tokens"` // of the prompt, known at the end
	Generated    int       `json:"generated_tokens"`
	Moves        int       `json:"moves"`  // times that a sequence was started again
	Finish       string    `json:"finish"` // "": it runs
}

// keptRequests is how many requests a gateway remembers. Those that run are kept in any case.
const keptRequests = 64

// history is the timelines of the last requests, in the order of their arrival here.
type history struct {
	mu   sync.Mutex
	list []*record
}

// record is the timeline of one request. Its actor writes it, and others read it.
type record struct {
	history   *history
	line      Timeline
	generated atomic.Int64
}

// begin adds a request, and forgets the oldest one that has ended.
func (h *history) begin(r *api.Request) *record {
	c := &record{history: h, line: Timeline{ID: r.ID, Tenant: r.Tenant, Model: r.Model, Arrival: r.Arrival, Sequences: []string{}}}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.list) >= keptRequests {
		if i := slices.IndexFunc(h.list, func(c *record) bool { return !c.line.End.IsZero() }); i >= 0 {
			h.list = slices.Delete(h.list, i, i+1)
		}
	}
	h.list = append(h.list, c)
	return c
}

// note changes a timeline.
func (c *record) note(change func(*Timeline)) {
	c.history.mu.Lock()
	defer c.history.mu.Unlock()
	change(&c.line)
}

// last returns the n newest timelines, the oldest of them first.
func (h *history) last(n int) []Timeline {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := make([]Timeline, 0, min(n, len(h.list)))
	for _, c := range h.list[len(h.list)-min(n, len(h.list)):] {
		t := c.line
		t.Generated = int(c.generated.Load())
		list = append(list, t)
	}
	return list
}

// first sets a time that has not come before.
func first(t *time.Time, now time.Time) {
	if t.IsZero() {
		*t = now
	}
}

// Timelines returns the timelines of the n newest requests, the oldest of them first.
func (g *Gateway) Timelines(n int) []Timeline { return g.history.last(n) }
