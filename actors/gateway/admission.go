package gateway

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sched"
)

// admission is the way in: it bounds the sequences in the pipeline and the time that they wait
// to begin, and shares the room among tenants. It is a plain value; Pipeline.mu
// guards it.
type admission struct {
	limit   *sched.SharedLimit // nil: no bound
	scores  *sched.SharedLimit // room for log probabilities, see logprobPlaces
	waits   *sched.WaitEstimator
	longest time.Duration // wait for the first row of the prompt; 0: no bound
	size    int
	batch   int               // sequences that run at once
	inside  map[string]*entry // by api.Request.Key
	places  int               // of all inside that are not idle
	idle    int               // places of requests with the lowest priority
	most    int               // the bound of idle
	start   time.Time         // of waits' time
}

// entry is a request inside.
type entry struct {
	tenant  string
	places  int
	scores  int // places for log probabilities
	entered time.Time
	begun   bool // it waits no more
	idle    bool // it runs only in steps that no other request needs
}

func newAdmission(size, batch int, longest time.Duration, now time.Time) admission {
	e := admission{size: size, batch: batch, most: idleShare(batch, 1), longest: longest, scores: sched.NewSharedLimit(logprobPlaces),
		waits: sched.NewWaitEstimator(), inside: make(map[string]*entry), start: now}
	if size > 0 {
		e.limit = sched.NewSharedLimit(size)
	}
	return e
}

// idleShare returns how many places of the lowest priority each of several gateways may fill: together half of the batch, whose rest is
// free for all other requests at any time.
func idleShare(batch, gateways int) int {
	const share = 2
	return max(batch/share/max(gateways, 1), 1)
}

// resize follows the workers and gateways that are there.
func (e *admission) resize(size, batch, gateways int) {
	e.size, e.batch, e.most = size, batch, idleShare(batch, gateways)
	if e.limit != nil {
		e.limit.Resize(size)
	}
}

// Reasons of a refusal at admission.
const (
	reasonQueueFull = "queue_full"
	reasonQueueWait = "queue_wait"
	reasonDeadline  = "deadline_unreachable"
)

// placesOf is how much room a request takes: a place for each of its sequences, for each choice or each beam.
func placesOf(r *api.Request) int {
	if r.Beams != nil {
		return max(r.Beams.Width, 1)
	}
	return max(r.N, 1)
}

// enter lets a request in, or says why not.
func (e *admission) enter(r *api.Request, now time.Time) *api.Error {
	if r.Takeover != nil { // another gateway admitted it before
		e.takePlace(r, now)
		return nil
	}
	if n := logprobsOf(r).places(r); n > 0 && !e.scores.MayEnter(r.Tenant, r.Weight, n) {
		return overloaded(reasonQueueFull, e.waits.Wait(r.Tenant, r.Weight),
			"the requests in hand have about %d log probabilities, at most %d, or a tenant's share of them, and the request needs about %d: try again later, or for fewer choices or alternatives",
			e.scores.Inside()*logprobBlock, logprobPlaces*logprobBlock, n*logprobBlock)
	}
	if r.Priority == api.PriorityIdle {
		return e.enterIdle(r, now)
	}
	wait := e.waits.Wait(r.Tenant, r.Weight)
	if left := r.Deadline.Sub(now); !r.Deadline.IsZero() && left > 0 && wait > left {
		return overloaded(reasonDeadline, wait, "the queue takes about %s, longer than the request's timeout leaves: try again later",
			wait.Round(100*time.Millisecond))
	}
	if e.waits.TooLong(r.Tenant, r.Weight, e.longest, e.places, e.batch) {
		return overloaded(reasonQueueWait, wait, "%d requests wait, which takes about %s, at most %s is allowed: try again later",
			e.waits.Inside(), wait.Round(100*time.Millisecond), e.longest)
	}
	if n := placesOf(r); e.limit != nil && !e.limit.MayEnter(r.Tenant, r.Weight, n) {
		return overloaded(reasonQueueFull, wait,
			"the server has %d sequences in hand, at most %d, or a tenant's share of them, and the request needs %d: try again later, or for fewer",
			e.limit.Inside(), e.size, n)
	}
	e.takePlace(r, now)
	return nil
}

// enterIdle lets a request of the lowest priority in if no other request waits. It takes no place of others: neither in the bound nor in
// the wait.
func (e *admission) enterIdle(r *api.Request, now time.Time) *api.Error {
	n := placesOf(r)
	if free := e.idlePlaces(); free == 0 || e.idle > 0 && e.idle+n > free {
		return overloaded(reasonQueueFull, 0,
			"the server has no idle places for a request of the lowest priority with %d sequences: try again later", n)
	}
	e.takePlace(r, now)
	return nil
}

// idlePlaces returns how many sequences of the lowest priority may be inside now.
func (e *admission) idlePlaces() int {
	if e.waits.Inside() > 0 {
		return 0
	}
	return e.most
}

func (e *admission) takePlace(r *api.Request, now time.Time) {
	v := &entry{tenant: r.Tenant, places: placesOf(r), scores: logprobsOf(r).places(r), entered: now, idle: r.Priority == api.PriorityIdle}
	if v.scores > 0 {
		e.scores.Admit(r.Tenant, r.Weight, v.scores)
	}
	if v.idle {
		e.inside[r.Key()] = v
		e.idle += v.places
		return
	}
	if e.limit != nil {
		e.limit.Admit(r.Tenant, r.Weight, v.places)
	}
	e.waits.Enter(r.Tenant, r.Weight)
	e.inside[r.Key()] = v
	e.places += v.places
}

// begun says that the first row of a request's prompt is computed.
func (e *admission) begun(key string, now time.Time) {
	if v := e.inside[key]; v != nil && !v.begun && !v.idle {
		v.begun = true
		e.waits.Start(v.tenant, v.entered.Sub(e.start), now.Sub(e.start))
	}
}

// leave takes out a request that has ended.
func (e *admission) leave(key string) {
	v := e.inside[key]
	if v == nil {
		return
	}
	delete(e.inside, key)
	if v.scores > 0 {
		e.scores.Leave(v.tenant, v.scores)
	}
	if v.idle {
		e.idle -= v.places
		return
	}
	e.places -= v.places
	if e.limit != nil {
		e.limit.Leave(v.tenant, v.places)
	}
	if !v.begun {
		e.waits.Leave(v.tenant)
	}
}

// Bounds of the time that a client should wait before it tries again, in whole seconds of the header.
const (
	shortestRetry = time.Second
	longestRetry  = time.Minute
)

// overloaded is the error for a client that should come again when the queue that is there now has
// been served.
func overloaded(reason string, wait time.Duration, format string, args ...any) *api.Error {
	return &api.Error{Code: api.CodeOverloaded, Reason: reason, RetryAfter: min(max(wait, shortestRetry), longestRetry),
		Message: fmt.Sprintf(format, args...)}
}
