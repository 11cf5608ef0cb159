package batch

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// turns bounds the files that a gateway reads at once: one of a tenant, and mostFiles in all. A file may have 200 MiB, and JetStream sends
// ahead.
type turns struct {
	all chan struct{}

	mu sync.Mutex
	of map[string]*turn
}

// turn is that of one tenant.
type turn struct {
	place chan struct{}
	users int
}

// mostFiles is the number of files that are read at once.
const mostFiles = 2

func newTurns() *turns { return &turns{all: make(chan struct{}, mostFiles), of: map[string]*turn{}} }

// enter waits for the tenant's turn. The error is that of ctx.
func (t *turns) enter(ctx context.Context, tenant string) (leave func(), err error) {
	t.mu.Lock()
	one := t.of[tenant]
	if one == nil {
		one = &turn{place: make(chan struct{}, 1)}
		t.of[tenant] = one
	}
	one.users++
	t.mu.Unlock()
	if err := take(ctx, one.place); err != nil {
		t.forget(tenant, one)
		return nil, err
	}
	if err := take(ctx, t.all); err != nil {
		<-one.place
		t.forget(tenant, one)
		return nil, err
	}
	return func() {
		<-t.all
		<-one.place
		t.forget(tenant, one)
	}, nil
}

func take(ctx context.Context, place chan<- struct{}) error {
	select {
	case place <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *turns) forget(tenant string, one *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if one.users--; one.users == 0 {
		delete(t.of, tenant)
	}
}

// paced is a file that is read with a part of one processor: who checks it rests three times as long as it works. Requests of others run
// meanwhile.
type paced struct {
	ctx  context.Context //nolint:containedctx // of one function
	r    io.Reader
	last time.Time // when the last Read ended
	work time.Duration
}

// Read implements io.Reader.
func (p *paced) Read(b []byte) (int, error) {
	const rest, step = 3, 5 * time.Millisecond
	if !p.last.IsZero() {
		p.work += time.Since(p.last)
	}
	if p.work > step {
		durable.Pause(p.ctx, rest*p.work, nil)
		p.work = 0
	}
	n, err := p.r.Read(b)
	p.last = time.Now()
	return n, err
}

// idle is an engine whose requests have the lowest priority.
type idle struct{ api.Engine }

// Submit implements api.Engine.
func (e idle) Submit(ctx context.Context, r *api.Request) (api.Stream, error) {
	r.Priority = api.PriorityIdle
	return e.Engine.Submit(ctx, r)
}
