package calls

import (
	"context"
	"errors"
	"time"

	"github.com/millrace/millrace/durable/log"
)

// followEvent is an input of followLoop: an entry of the log or an owner's reply.
type followEvent struct {
	entry   log.Entry // if err is nil and isReply is not set
	err     error
	node    string // of the reply
	owns    bool   // the node owns the call
	isReply bool
}

// maxUnanswered is the number of queries in a row without an answer after which the owner is
// considered dead. A query that was sent while the owner's connection broke is lost; the next one
// has no responder.
const maxUnanswered = 4

// follow reads the log that another gateway writes into the event buffer. It returns nil at the end
// of the answer. An error says what the session has to do next.
func (s *session) follow() error {
	ctx, stop := context.WithCancel(s.ctx)
	tail, err := s.log.Tail(ctx)
	if err != nil {
		stop()
		if errors.Is(err, log.ErrNoLog) {
			return s.ownerWithoutStream()
		}
		return err
	}
	inputs := make(chan followEvent)
	done := make(chan struct{})
	defer func() { stop(); tail.Stop(); <-done }()
	go func() {
		defer close(done)
		for {
			e, err := tail.Next(ctx)
			select {
			case inputs <- followEvent{entry: e, err: err}:
			case <-ctx.Done():
			}
			if err != nil || ctx.Err() != nil {
				return
			}
		}
	}()
	return s.followLoop(ctx, inputs, tail.Pending == 0)
}

// ownerWithoutStream returns the next step if the stream of logs is missing. An owner that lives
// creates it again.
func (s *session) ownerWithoutStream() error {
	owns, err := s.c.peers.owns(s.ctx, s.log.Owner, s.query())
	if err == nil && !owns {
		return errOwnerDead
	}
	return log.ErrRestart
}

// followLoop applies entries and watches the owner. It queries the owner at once and then every
// Options.Watch, which also informs the owner of the readers here. The owner is known once the log
// has been read to its end: whole says whether that is so.
func (s *session) followLoop(ctx context.Context, inputs chan followEvent, whole bool) error {
	watch := time.NewTicker(s.c.opts.Watch)
	defer watch.Stop()
	quietTicks, unanswered, waiting := 0, 0, false
	query := func() {
		if whole && !waiting {
			waiting = true
			go s.queryOwner(ctx, s.log.Owner, inputs)
		}
	}
	query()
	for {
		select {
		case in := <-inputs:
			switch {
			case !in.isReply:
				quietTicks = 0
				if err := s.applyEntry(in); err != nil || s.log.Done {
					return err
				}
				if !whole && in.entry.Pending == 0 {
					whole = true
					query()
				}
				continue
			case in.err != nil:
				unanswered++
			default:
				unanswered = 0
				s.lastContact = time.Now()
			}
			waiting = false
			if in.node == s.log.Owner && (in.err == nil && !in.owns || unanswered >= maxUnanswered) {
				return errOwnerDead
			}
			if in.err != nil {
				query()
			}
		case <-watch.C:
			if quietTicks++; quietTicks%4 == 0 {
				if err := s.log.Unchanged(ctx); err != nil {
					return err
				}
			}
			query()
		case <-s.wake:
			switch {
			case s.isDraining():
				return errDraining
			case s.removeIfUnread():
				return errNoReaders
			}
			query()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// applyEntry applies an entry of the log and appends its events to the buffer.
func (s *session) applyEntry(in followEvent) error {
	if in.err != nil {
		return in.err
	}
	events, err := s.log.Apply(in.entry)
	s.buffer.Append(events...)
	s.lastContact = time.Now()
	if err == nil && s.log.Gap {
		return log.ErrGap
	}
	return err
}

// queryOwner queries whether a node owns the call. The query has a pending cancellation.
func (s *session) queryOwner(ctx context.Context, node string, inputs chan<- followEvent) {
	owns, err := s.c.peers.owns(ctx, node, s.query())
	select {
	case inputs <- followEvent{node: node, owns: owns, err: err, isReply: true}:
	case <-ctx.Done():
	}
}
