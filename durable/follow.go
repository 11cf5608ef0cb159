package durable

import (
	"context"
	"errors"
	"time"
)

// tick is what the parts of follow tell its loop.
type followEvent struct {
	entry   entry // of the log, with err
	err     error
	node    string // or: whether this node owns the call
	owns    bool
	isReply bool
}

// patience is how many questions in a row the owner may leave without an answer. (One
// that was asked while its connection broke is lost; the next finds nobody.)
const maxUnanswered = 4

// follow shows the readers what another gateway writes, until the answer has
// ended (nil) or something else is to be done.
func (s *session) follow() error {
	ctx, stop := context.WithCancel(s.ctx)
	from := uint64(0)
	if s.state.last > 0 {
		from = s.state.last + 1
	}
	tail, err := s.c.journal.tail(ctx, s.log, from)
	if errors.Is(err, errNoLog) {
		stop()
		return s.ownerWithoutStream()
	}
	if err != nil {
		stop()
		return err
	}
	if from > 0 && !tail.created.Equal(s.state.created) {
		stop()
		tail.stop()
		return errRestart
	}
	s.state.created = tail.created
	ticks := make(chan followEvent)
	done := make(chan struct{})
	defer func() { stop(); tail.stop(); <-done }()
	go func() {
		defer close(done)
		for {
			e, err := tail.next(ctx)
			select {
			case ticks <- followEvent{entry: e, err: err}:
			case <-ctx.Done():
			}
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	}()
	return s.followLoop(ctx, ticks, tail.pending == 0)
}

// lost: there is no stream of logs. The owner, if it lives, is going to make it.
func (s *session) ownerWithoutStream() error {
	owns, err := s.c.peers.owns(s.ctx, s.state.owner, s.query())
	if err == nil && !owns {
		return errOwnerDead
	}
	return errRestart
}

// listen handles what comes. It asks the owner for a sign of life at once and then
// regularly: that is also how the owner knows of the readers here. The owner
// is known when the log was read to its end.
func (s *session) followLoop(ctx context.Context, ticks chan followEvent, whole bool) error {
	watch := time.NewTicker(s.c.opts.Watch)
	defer watch.Stop()
	silent, unanswered, asking := 0, 0, false
	ask := func() {
		if whole && !asking {
			asking = true
			go s.queryOwner(ctx, s.state.owner, ticks)
		}
	}
	ask()
	for {
		select {
		case t := <-ticks:
			switch {
			case !t.isReply:
				silent = 0
				if err := s.applyEntry(t); err != nil || s.state.done {
					return err
				}
				if !whole && t.entry.pending == 0 {
					whole = true
					ask()
				}
				continue
			case t.err != nil:
				unanswered++
			default:
				unanswered = 0
				s.lastContact = time.Now()
			}
			asking = false
			if t.node == s.state.owner && (t.err == nil && !t.owns || unanswered >= maxUnanswered) {
				return errOwnerDead
			}
			if t.err != nil {
				ask()
			}
		case <-watch.C:
			if silent++; silent%4 == 0 {
				if err := s.checkUnchanged(ctx); err != nil {
					return err
				}
			}
			ask()
		case <-s.wake:
			switch {
			case s.isDraining():
				return errDraining
			case s.removeIfUnread():
				return errNoReaders
			}
			ask()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// take applies an entry of the log.
func (s *session) applyEntry(t followEvent) error {
	if t.err != nil {
		return t.err
	}
	events, err := s.state.apply(t.entry)
	s.buffer.Append(events...)
	s.lastContact = time.Now()
	if err == nil && s.state.gap {
		return errGap
	}
	return err
}

// ask asks a node whether it owns the call, and tells it when the call is to end.
func (s *session) queryOwner(ctx context.Context, node string, ticks chan<- followEvent) {
	owns, err := s.c.peers.owns(ctx, node, s.query())
	select {
	case ticks <- followEvent{node: node, owns: owns, err: err, isReply: true}:
	case <-ctx.Done():
	}
}

// check compares a silent log with what was read of it: after a restart of the NATS
// server it is another one, which may be as long.
func (s *session) checkUnchanged(ctx context.Context) error {
	newest, made, err := s.c.journal.newestOf(ctx, s.log)
	if err == nil && (newest != s.state.last || !made.Equal(s.state.created)) {
		return errRestart
	}
	return nil
}
