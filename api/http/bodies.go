package httpapi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/places"
)

const (
	// bodyPlace is the bytes of a body in one place of bodies. Smaller bodies take none.
	bodyPlace = 64 << 10
	// bodiesAtOnce is the room for bodies, as a multiple of the largest one.
	bodiesAtOnce = 4
	// bodyPatience is how long a body waits for its places.
	bodyPatience = 5 * time.Second
)

// bodies is the room for the bodies that are decoded at the same time: a body of small values takes several times its size. Tenants share
// the room.
type bodies struct {
	mu       sync.Mutex
	places   *places.Places
	freed    chan struct{} // closed when places are given back
	patience time.Duration
}

func newBodies(largest int64, tenants func() int) *bodies {
	return &bodies{places: places.New(int(bodiesAtOnce*largest/bodyPlace)+bodiesAtOnce, tenants), freed: make(chan struct{}),
		patience: bodyPatience}
}

// enter waits for the places of a body of some bytes, and returns what gives them back. An error is an *api.Error: other bodies have
// the places.
func (b *bodies) enter(ctx context.Context, bytes int) (leave func(), err error) {
	n := bytes / bodyPlace
	if n == 0 {
		return func() {}, nil
	}
	tenant := api.TenantFrom(ctx)
	late := time.NewTimer(b.patience)
	defer late.Stop()
	for {
		freed, ok := b.try(tenant, n)
		if ok {
			return func() { b.leave(tenant, n) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late.C:
			return nil, &api.Error{Code: api.CodeOverloaded, Reason: "bodies_full", RetryAfter: time.Second, Message: fmt.Sprintf(
				"found other large bodies being read for %s, before this one of %d bytes: send fewer of them at once", b.patience, bytes)}
		}
	}
}

// try takes all places of a body or none. Without them, freed is closed when there are more.
func (b *bodies) try(tenant string, n int) (freed <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for taken := range n {
		if !b.places.Enter(tenant) {
			for range taken {
				b.places.Leave(tenant)
			}
			return b.freed, false
		}
	}
	return nil, true
}

func (b *bodies) leave(tenant string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range n {
		b.places.Leave(tenant)
	}
	close(b.freed)
	b.freed = make(chan struct{})
}
