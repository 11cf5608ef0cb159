package auth

import (
	"context"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
)

// GuardCalls is a runner of calls that charges each request to resume or to cancel a call to the key in its context, whether the call
// exists or not.
func GuardCalls(r call.Runner) call.Runner { return GuardCallsAt(r, time.Now) }

// GuardCallsAt is GuardCalls with a clock.
func GuardCallsAt(r call.Runner, now func() time.Time) call.Runner { return &guardedCalls{r, now} }

type guardedCalls struct {
	call.Runner
	now func() time.Time
}

// Attach implements call.Runner.
func (g *guardedCalls) Attach(ctx context.Context, id string) (call.Answer, error) {
	if err := g.charge(ctx); err != nil {
		return nil, err
	}
	return g.Runner.Attach(ctx, id)
}

// Cancel implements call.Runner.
func (g *guardedCalls) Cancel(ctx context.Context, id string) error {
	if err := g.charge(ctx); err != nil {
		return err
	}
	return g.Runner.Cancel(ctx, id)
}

func (g *guardedCalls) charge(ctx context.Context) error {
	k, _ := api.CallerFrom(ctx).(*Key)
	if k == nil {
		return errUnauthorized
	}
	return k.limiter.resume(g.now())
}
