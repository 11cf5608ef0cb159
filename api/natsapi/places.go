package natsapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// places are the requests that the service answers at the same time. Half of them are divided evenly among the tenants, and nobody else gets a tenant's
// share. The other half goes to the first tenants that need it.
type places struct {
	capacity int
	tenants  func() int // number of tenants

	mu     sync.Mutex
	taken  map[string]int // by tenant
	all    int
	closed bool
	empty  chan struct{} // closed when the places are closed and nobody has one
}

func newPlaces(capacity int, tenants func() int) *places {
	return &places{capacity: capacity, tenants: tenants, taken: map[string]int{}, empty: make(chan struct{})}
}

// enter takes a place for a tenant, or returns why there is none.
func (p *places) enter(tenant string) error {
	const part = 2 // that is divided
	p.mu.Lock()
	defer p.mu.Unlock()
	n := max(p.tenants(), 1)
	share := p.capacity / part / n
	first := p.capacity - share*n // for whoever comes first
	for _, taken := range p.taken {
		first -= max(taken-share, 0)
	}
	switch {
	case p.closed:
		return errStopping
	case p.all >= p.capacity, p.taken[tenant] >= share && first <= 0:
		return &api.Error{Code: api.CodeOverloaded, RetryAfter: time.Second, Message: fmt.Sprintf(
			"found %d requests being answered, %d of them the tenant's, expected fewer", p.all, p.taken[tenant])}
	}
	p.taken[tenant]++
	p.all++
	return nil
}

// leave gives a place back.
func (p *places) leave(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[tenant]--; p.taken[tenant] == 0 {
		delete(p.taken, tenant)
	}
	p.all--
	p.announce()
}

func (p *places) announce() {
	if p.closed && p.all == 0 {
		close(p.empty)
	}
}

// close lets nobody enter any more. It waits until all have left, or ctx ends: then it calls end and waits on.
func (p *places) close(ctx context.Context, end func()) {
	p.mu.Lock()
	p.closed = true
	p.announce()
	p.mu.Unlock()
	select {
	case <-p.empty:
	case <-ctx.Done():
		end()
		<-p.empty
	}
}
