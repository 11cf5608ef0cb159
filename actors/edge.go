package actors

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sched"
)

// edge is the way in: it bounds the requests in the pipeline, shares the room
// among tenants, and knows from the rate of ends how long a wait is. It is a plain
// value; Pipeline.mu guards it.
type edge struct {
	room    *sched.Room // nil: no bound
	size    int
	batch   int               // requests that run at once; those beyond wait
	tenants map[string]string // of the requests inside, by id
	drain   drain
}

func newEdge(size, batch int) edge {
	e := edge{size: size, batch: batch, tenants: make(map[string]string)}
	if size > 0 {
		e.room = sched.NewRoom(size)
	}
	return e
}

// resize follows the workers that are there.
func (e *edge) resize(size, batch int) {
	e.size, e.batch = size, batch
	if e.room != nil {
		e.room.Resize(size)
	}
}

// Reasons of a refusal at the edge.
const (
	reasonQueueFull = "queue_full"
	reasonDeadline  = "deadline_unreachable"
)

// enter lets a request in, or says why not.
func (e *edge) enter(r *api.Request, now time.Time) *api.Error {
	if r.Resume != nil { // another gateway let it in before
		e.takePlace(r, now)
		return nil
	}
	wait := e.drain.interval * time.Duration(e.ahead(r))
	if left := r.Deadline.Sub(now); !r.Deadline.IsZero() && left > 0 && wait > left {
		return overloaded(reasonDeadline, wait, "the queue takes about %s, longer than the request's timeout leaves: try again later",
			wait.Round(100*time.Millisecond))
	}
	if e.room != nil && !e.room.MayEnter(r.Tenant, r.Weight) {
		return overloaded(reasonQueueFull, wait, "the server has %d requests in hand, at most %d, or a tenant's share of them: try again later",
			e.room.Inside(), e.size)
	}
	e.takePlace(r, now)
	return nil
}

func (e *edge) takePlace(r *api.Request, now time.Time) {
	if e.room != nil {
		e.room.Admit(r.Tenant, r.Weight)
	}
	e.tenants[r.ID] = r.Tenant
	if e.waiting() > 0 {
		e.drain.begin(now)
	}
}

// leave takes out a request that has ended.
func (e *edge) leave(id string, now time.Time) {
	tenant, ok := e.tenants[id]
	if !ok {
		return
	}
	delete(e.tenants, id)
	if e.room != nil {
		e.room.Leave(tenant)
	}
	e.drain.end(now, e.waiting() > 0)
}

func (e *edge) waiting() int { return max(0, len(e.tenants)-e.batch) }

// ahead is the number of ends that a new request waits for at most: all that wait,
// or, since tenants take turns, its tenant's own times the parts of the whole
// that one turn of it takes.
func (e *edge) ahead(r *api.Request) int {
	if e.room == nil {
		return e.waiting()
	}
	return min(e.waiting(), e.room.Turns(r.Tenant, r.Weight))
}

// What a client is told at least, which is a whole second in the header, and at
// most.
const (
	shortestRetry = time.Second
	longestRetry  = time.Minute
)

// overloaded tells a client to come again when the queue that is there now has
// been served.
func overloaded(reason string, wait time.Duration, format string, args ...any) *api.Error {
	return &api.Error{Code: api.CodeOverloaded, Reason: reason, RetryAfter: min(max(wait, shortestRetry), longestRetry), Message: fmt.Sprintf(format, args...)}
}

// drain measures the time between two ends while requests wait: what an idle
// pipeline does says nothing about its speed.
type drain struct {
	interval time.Duration // mean of about the last drainEnds; 0: not known yet
	counted  int
	busy     bool      // requests wait
	since    time.Time // the last end, or the first of them to wait
}

const drainEnds = 64

// begin: a request waits.
func (d *drain) begin(now time.Time) {
	if !d.busy {
		d.busy, d.since = true, now
	}
}

// end: a request has ended; busy says whether others wait still.
func (d *drain) end(now time.Time, busy bool) {
	if d.busy {
		d.counted = min(d.counted+1, drainEnds)
		d.interval += (now.Sub(d.since) - d.interval) / time.Duration(d.counted)
	}
	d.busy, d.since = busy, now
}
