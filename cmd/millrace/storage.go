package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/batch"
	"github.com/millrace/millrace/durable/calls"
	"github.com/millrace/millrace/durable/objects"
	"github.com/millrace/millrace/durable/stored"
)

// Buckets of JetStream's object store, and how long they keep what clients do not delete.
const (
	filesBucket     = "MILLRACE_FILES"
	responsesBucket = "MILLRACE_RESPONSES"
	keepFiles       = 30 * 24 * time.Hour
	keepResponses   = 24 * time.Hour
)

// storage is what a gateway keeps for its clients in JetStream's files.
type storage struct {
	calls     call.Runner // runs the calls of all interfaces, and stores responses
	files     *objects.Store
	batches   *batch.Batches // nil: none
	responses *stored.Store  // nil: none
	kept      *objects.Store // the responses
}

// leave stops what runs in the background. Other gateways continue it.
func (g *storage) leave() {
	if g.batches != nil {
		g.batches.Close()
	}
	if g.responses != nil {
		g.responses.Close()
	}
}

// close ends what leave has left.
func (g *storage) close() {
	for _, s := range []*objects.Store{g.files, g.kept} {
		if s != nil {
			s.Close()
		}
	}
}

// openStorage opens the stores of --batch-store and --response-store. Without JetStream it opens none, and says so.
func openStorage(ctx context.Context, conn *nats.Conn, engine api.Engine, runner call.Runner, late *lateEngine, keys *auth.Keyring,
	s *config.Serve, log zerolog.Logger) *storage {
	g := &storage{calls: stored.Off(runner)}
	if s.BatchStore == 0 && s.ResponseStore == 0 {
		return g
	}
	o := opener{conn: conn, engine: engine, calls: runner, late: late, s: s, log: log, tenants: func() int { return 1 }}
	if keys != nil {
		o.keys, o.tenants = keys, keys.Tenants
	}
	err := o.openWork(ctx)
	if err == nil && s.BatchStore > 0 {
		err = o.openBatches(ctx, g)
	}
	if err == nil && s.ResponseStore > 0 {
		err = o.openResponses(ctx, g)
	}
	switch {
	case objects.Full(err):
		log.Warn().Err(err).Msg("JetStream has no room for all stores: files, batches or responses are not stored (--batch-store, --response-store)")
	case err != nil:
		log.Warn().Err(err).Msg("files, batches or responses are not stored until this process is started again")
	}
	return g
}

// opener is what the stores are opened with.
type opener struct {
	conn    *nats.Conn
	js      jetstream.JetStream
	work    jetstream.Stream
	engine  api.Engine
	calls   call.Runner
	late    *lateEngine
	keys    durable.Keys // nil: none
	tenants func() int
	s       *config.Serve
	log     zerolog.Logger
}

// quarter is the part of a store that the work queue gets, and the part that results get.
const quarter = 4

func (o *opener) openWork(ctx context.Context) (err error) {
	if o.js, err = jetstream.New(o.conn); err != nil {
		return err
	}
	o.work, err = batch.OpenWork(ctx, o.conn, o.js, int64(o.s.BatchStore+o.s.ResponseStore)/quarter)
	return err
}

func (o *opener) openBatches(ctx context.Context, g *storage) (err error) {
	half := int64(o.s.BatchStore) / 2
	var running atomic.Pointer[batch.Batches]
	if g.files, err = objects.Open(ctx, o.conn, objects.Options{
		Logger: o.log, Bucket: filesBucket, Noun: "file", Keep: keepFiles, MaxBytes: half, Tenants: o.tenants,
		Used: func(ctx context.Context, token, id string) bool {
			b := running.Load()
			if b == nil {
				return true // it is not known yet
			}
			_, used := b.Uses(ctx, token, id)
			return used
		},
	}); err != nil {
		return err
	}
	b, err := batch.Open(ctx, o.conn, batch.Options{
		Logger: o.log, Engine: o.engine, Calls: stored.Off(o.calls), Keys: o.keys, Files: g.files, Fingerprint: fingerprint(),
		JetStream: o.js, Work: o.work, MaxBytes: int64(o.s.BatchStore) / quarter, Room: o.late.idleRoom,
	})
	if err != nil {
		g.files.Close()
		g.files = nil
		return err
	}
	g.batches = b
	running.Store(b)
	return nil
}

func (o *opener) openResponses(ctx context.Context, g *storage) (err error) {
	if g.kept, err = objects.Open(ctx, o.conn, objects.Options{
		Logger: o.log, Bucket: responsesBucket, Noun: "response", Keep: keepResponses,
		MaxBytes: int64(o.s.ResponseStore) / quarter * (quarter - 1), Tenants: o.tenants,
	}); err != nil {
		return err
	}
	var forget func(context.Context, string) error
	if kept, ok := o.calls.(*calls.Calls); ok {
		forget = kept.Forget
	}
	g.responses = stored.New(stored.Options{Logger: o.log, Calls: o.calls, Forget: forget, Keys: o.keys, Objects: g.kept, Work: o.work,
		Publish: o.js, Ready: o.late.serves})
	g.calls = g.responses
	return nil
}
