package batch

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// catalog is the newest state of all batches that this gateway knows.
type catalog struct {
	mu  sync.Mutex
	all map[string]*known
}

type known struct {
	*Record
	seen   time.Time                     // when it last changed
	left   chan struct{}                 // closed when it leaves its status
	stops  map[uint64]context.CancelFunc // of what runs for it here
	serial uint64
}

func newCatalog() *catalog { return &catalog{all: map[string]*known{}} }

// set takes a state of a batch. It stops the lines of a batch that no longer runs.
func (c *catalog) set(r *Record, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.all[r.ID]
	switch {
	case k == nil:
		k = &known{left: make(chan struct{}), stops: map[uint64]context.CancelFunc{}}
		c.all[r.ID] = k
	case r.revision <= k.revision:
		return
	case r.Status != k.Status:
		close(k.left)
		k.left = make(chan struct{})
	}
	k.Record, k.seen = r, now
	if !r.Runs() {
		for _, stop := range k.stops {
			stop()
		}
	}
}

// running returns the batches whose lines may run.
func (c *catalog) running() []*Record {
	return c.those(func(k *known) bool { return k.Runs() })
}

// ended reports that no batch has a keeper or may need one.
func (c *catalog) ended() bool {
	return len(c.those(func(k *known) bool { return !k.Status.Ended() })) == 0
}

// unkept returns the batches that need a keeper: those without one, and those whose keeper has not given a sign of life since the given
// time.
func (c *catalog) unkept(since time.Time) []*Record {
	return c.those(func(k *known) bool { return !k.Status.Ended() && (k.Owner == "" || k.seen.Before(since)) })
}

// of returns a tenant's batches, the newest first.
func (c *catalog) of(tenant string) []*Record {
	list := c.those(func(k *known) bool { return k.Tenant == tenant })
	slices.SortFunc(list, func(a, b *Record) int {
		if c := b.Created().Compare(a.Created()); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

func (c *catalog) those(which func(*known) bool) (list []*Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.all {
		if which(k) {
			list = append(list, k.Record)
		}
	}
	return list
}

// stopped reports whether a batch is known to run no lines.
func (c *catalog) stopped(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.all[id]
	return k != nil && !k.Runs()
}

// left returns a channel that is closed when the batch is not in the status.
func (c *catalog) left(id string, s Status) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.all[id]; k != nil && k.Status == s {
		return k.left
	}
	gone := make(chan struct{})
	close(gone)
	return gone
}

// whileRuns returns a context that ends when the batch runs no more lines.
func (c *catalog) whileRuns(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.all[id]
	if k == nil || !k.Runs() {
		cancel()
		return ctx, cancel
	}
	k.serial++
	serial := k.serial
	k.stops[serial] = cancel
	return ctx, func() {
		cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(k.stops, serial)
	}
}

// expire forgets the batches that ended long ago and cannot be read any more.
func (c *catalog) expire(before time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, k := range c.all {
		if k.Status.Ended() && k.seen.Before(before) {
			delete(c.all, id)
		}
	}
}
