package natsapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/places"
)

// requests are those that the service answers at the same time. Tenants share them.
type requests struct {
	mu     sync.Mutex
	places *places.Places
	closed bool
	empty  chan struct{} // closed when the service is closed and nothing runs
}

func newRequests(capacity int, tenants func() int) *requests {
	return &requests{places: places.New(capacity, tenants), empty: make(chan struct{})}
}

// enter takes a place for a tenant's request, or returns why there is none.
func (q *requests) enter(tenant string) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return errStopping
	}
	if q.places.Enter(tenant) {
		return nil
	}
	own, all := q.places.Taken(tenant)
	return &api.Error{Code: api.CodeOverloaded, RetryAfter: time.Second, Message: fmt.Sprintf(
		"found %d requests being answered, %d of them the tenant's, expected fewer", all, own)}
}

// leave gives a place back.
func (q *requests) leave(tenant string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.places.Leave(tenant)
	q.announce()
}

func (q *requests) announce() {
	if _, all := q.places.Taken(""); q.closed && all == 0 {
		close(q.empty)
	}
}

// close lets nothing enter any more. It waits until all have left, or ctx ends: then it calls end and waits on.
func (q *requests) close(ctx context.Context, end func()) {
	q.mu.Lock()
	q.closed = true
	q.announce()
	q.mu.Unlock()
	select {
	case <-q.empty:
	case <-ctx.Done():
		end()
		<-q.empty
	}
}
