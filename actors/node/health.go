package node

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/millrace/millrace/actors/msg"
	"github.com/millrace/millrace/api"
)

// health is whether the device of this process computes.
type health struct {
	tell   func(any) // sends a message to every request
	log    zerolog.Logger
	outage atomic.Pointer[outage] // nil: none
	failed chan struct{}          // closed at the failure for good
}

func newHealth(tell func(any), log zerolog.Logger) *health {
	return &health{tell: tell, log: log, failed: make(chan struct{})}
}

// outage is why nothing is accepted: until the device is loaded again, or for
// good.
type outage struct {
	err     error
	forGood bool
}

// Err is why nothing is accepted; nil: there is no reason.
func (h *health) Err() error {
	if o := h.outage.Load(); o != nil {
		return o.err
	}
	return nil
}

// Failed says whether the device failed for good.
func (h *health) Failed() bool {
	o := h.outage.Load()
	return o != nil && o.forGood
}

// Down stops taking requests and ends those in hand, until up is called.
func (h *health) Down(err error) (up func(took time.Duration)) {
	o := &outage{err: fmt.Errorf("%w; it is being loaded again", err)}
	if h.outage.CompareAndSwap(nil, o) {
		h.log.Error().Err(err).Msg("the device is loaded again")
	}
	h.tell(&msg.Abandon{Err: api.Unavailable(err)})
	return func(took time.Duration) {
		if h.outage.CompareAndSwap(o, nil) {
			h.log.Warn().Dur("took", took).Msg("the device is back")
		}
	}
}

// Fail is the end: requests in hand end with err, none is accepted any more. Wait returns err.
func (h *health) Fail(err error) {
	for {
		old := h.outage.Load()
		if old != nil && old.forGood {
			return
		}
		if h.outage.CompareAndSwap(old, &outage{err, true}) {
			break
		}
	}
	h.log.Error().Err(err).Msg("the pipeline failed")
	h.tell(&msg.Abandon{Err: api.Unavailable(err)})
	close(h.failed)
}

// Wait blocks until ctx ends, and returns nil, or until the process has failed
// for good, and returns why: it should end then.
func (h *health) Wait(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-h.failed:
		return h.Err()
	}
}
