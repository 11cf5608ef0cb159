package node

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/actors/gateway"
	"github.com/millrace/millrace/actors/msg"
)

const (
	drainPoll = 10 * time.Millisecond
	// lingers is how long a worker stays after a request for keys and values: others may fetch more. Workers that still need it say so
	// five times in this time. It stays for the same time after a sequence was cancelled: the next worker's request is on its way.
	lingers = time.Second
)

// Close drains this process: it takes nothing new, and its beat says so. Its
// own requests finish, and so does what it does for others, or moves, until ctx
// ends; then its requests end with a clear error, others continue elsewhere. Then the
// actors stop.
func (p *Node) Close(ctx context.Context) error {
	if p.closed.Swap(true) {
		return errors.New("node: closed already")
	}
	if p.gateway != nil {
		p.gateway.Refuse()
	}
	p.members.Beat()
	if !p.drained(ctx, p.idle) {
		p.tell(&msg.CancelRequest{Err: gateway.ErrStopping()})
		patience, cancel := context.WithTimeout(context.Background(), p.cfg.StallAfter)
		defer cancel()
		if !p.drained(patience, func() bool { return p.Running() == 0 }) {
			return errors.New("node: a request did not end")
		}
	}
	return p.stop()
}

// idle says that nobody needs this process any more.
func (p *Node) idle() bool {
	if p.Running() > 0 || p.bridge == nil {
		return p.Running() == 0
	}
	computes := p.worker != nil && p.worker.InFlight() > 0 && !p.health.Failed()
	if p.kv != nil && (time.Since(p.kv.Served()) < lingers || time.Since(p.worker.Cancelled()) < lingers) {
		return false
	}
	return !computes && (p.detokenizers == nil || p.detokenizers.Load() == 0) && (p.tokenizers == nil || p.tokenizers.Load() == 0)
}

// drained waits for a condition; false if ctx ended first.
func (p *Node) drained(ctx context.Context, done func() bool) bool {
	tick := time.NewTicker(drainPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// stop says goodbye first, so that what still runs here moves at once.
func (p *Node) stop() error {
	p.members.Leave()
	close(p.quit)
	if p.worker != nil {
		if err := p.worker.Stop(); err != nil {
			return err
		}
	}
	if p.disk != nil {
		if err := p.closeDisk(); err != nil {
			return err
		}
	}
	p.beside.Wait()
	p.stopActors()
	return nil
}

func (p *Node) stopActors() {
	if p.bridge != nil {
		p.bridge.Close()
	}
	p.system.Shutdown()
	if p.disk != nil {
		p.disk.Close() //nolint:errcheck // what is stored needs no end
	}
	if p.tier != nil {
		p.tier.Close() //nolint:errcheck // nobody reads it any more
	}
}
