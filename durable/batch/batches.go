package batch

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/api/call"
	"github.com/millrace/millrace/durable"
	"github.com/millrace/millrace/durable/objects"
)

// Fields of a file, in its store.
const (
	FieldName    = "filename"
	FieldPurpose = "purpose"
)

// Files are the files of tenants. objects.Store implements it.
type Files interface {
	Info(ctx context.Context, tenant, id string) (objects.Object, error)
	Get(ctx context.Context, tenant, id string) (objects.Object, io.ReadCloser, error)
	PutFree(ctx context.Context, tenant, id string, fields map[string]string, expires time.Time, content io.Reader) (objects.Object, error)
	Room(tenant string) error
}

// Options are what Batches need.
type Options struct {
	Logger      zerolog.Logger
	Engine      api.Engine
	Calls       call.Runner // runs the lines
	Keys        durable.Keys
	Files       Files
	Fingerprint string
	JetStream   jetstream.JetStream
	Work        jetstream.Stream // the queue of lines, of OpenWork
	MaxBytes    int64            // of the results that are collected
	Room        func() int       // how many lines may run here now
	Lease       time.Duration    // a line runs elsewhere if its gateway gave no sign of life for this time; 0: 30 s
}

// MaxWindow is the longest time that a batch may take.
const MaxWindow = 7 * 24 * time.Hour

// maxActive is the number of batches that a tenant may have which have not ended.
const maxActive = 32

// Batches runs the batches of all tenants, together with those of the other gateways.
type Batches struct {
	opts       Options
	node       string // name of this process, new at each start
	storage    storage
	catalog    *catalog
	changed    chan struct{} // has a value if a batch has changed
	noted      chan struct{} // as changed, for keep
	maxLine    int           // bytes of a line
	maxMessage int           // bytes of a result
	queue      int           // bytes of the queue of lines
	checks     *turns        // of files that are checked
	fills      *turns        // of files whose lines go into the queue
	ends       *turns        // of files whose batches end
	stop       context.CancelFunc
	tasks      sync.WaitGroup

	mu      sync.Mutex
	keeping map[string]bool // batches that this gateway keeps
}

// Open starts to run the lines of batches. The caller closes the connection after Batches.
func Open(ctx context.Context, nc *nats.Conn, opts Options) (*Batches, error) {
	if opts.Lease == 0 {
		opts.Lease = 30 * time.Second
	}
	s, err := openStorage(ctx, nc, &opts)
	if err != nil {
		return nil, err
	}
	const headers = 4 << 10 // of a message
	b := &Batches{opts: opts, node: nuid.Next(), storage: s, catalog: newCatalog(), changed: make(chan struct{}, 1),
		noted: make(chan struct{}, 1), keeping: map[string]bool{},
		maxLine: int(nc.MaxPayload()) - headers, maxMessage: int(nc.MaxPayload()) - headers,
		queue: queueBytes(opts.Work), checks: newTurns(), fills: newTurns(), ends: newTurns()}
	b.start()
	return b, nil
}

// queueBytes returns the size of the queue of lines.
func queueBytes(work jetstream.Stream) int {
	const unlimited = 64 << 20 // of a stream without a limit
	if n := work.CachedInfo().Config.MaxBytes; n > 0 {
		return int(n)
	}
	return unlimited
}

func (b *Batches) start() {
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.tasks.Go(func() { b.watch(ctx) })
	b.tasks.Go(func() { b.keep(ctx) })
	w := &worker{b: b, waiting: map[string]int{}}
	b.tasks.Go(func() { w.run(ctx) })
}

// Close stops the lines that run here. Other gateways run them, and keep the batches, from then on.
func (b *Batches) Close() {
	b.stop()
	b.tasks.Wait()
}

// watch follows the batches of all gateways until ctx ends.
func (b *Batches) watch(ctx context.Context) {
	for ctx.Err() == nil {
		if err := b.storage.watch(ctx, b.note); err != nil && ctx.Err() == nil {
			b.opts.Logger.Debug().Err(err).Msg("batch: cannot watch the batches")
		}
		durable.Pause(ctx, retryPause, nil)
	}
}

// note takes a state of a batch.
func (b *Batches) note(r *Record) {
	b.catalog.set(r, time.Now())
	b.wake()
	select {
	case b.noted <- struct{}{}:
	default:
	}
}

// wake makes the worker look for lines.
func (b *Batches) wake() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// keep becomes the keeper of batches without one, until ctx ends.
func (b *Batches) keep(ctx context.Context) {
	var keepers sync.WaitGroup
	defer keepers.Wait()
	const every, rest = 250 * time.Millisecond, time.Minute
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.noted:
			tick.Reset(every)
		case now := <-tick.C:
			if b.catalog.ended() {
				tick.Reset(rest)
			}
			b.catalog.expire(now.Add(-keepRecords))
			for _, r := range b.catalog.unkept(now.Add(-b.opts.Lease / 2)) {
				if b.startKeeping(r.ID) {
					keepers.Go(func() {
						defer b.stopKeeping(r.ID)
						b.keepOne(ctx, r)
					})
				}
			}
		}
	}
}

func (b *Batches) startKeeping(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keeping[id] {
		return false
	}
	b.keeping[id] = true
	return true
}

func (b *Batches) stopKeeping(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.keeping, id)
}

// keepOne claims a batch and keeps it. A stopping gateway gives it back.
func (b *Batches) keepOne(ctx context.Context, r *Record) {
	owner, beat := r.Owner, r.Beat
	claimed, err := b.storage.change(ctx, r.Tenant, r.ID, func(r *Record) error {
		if r.Owner != owner || r.Beat != beat { // another gateway was faster, or the keeper is alive
			return errLost
		}
		r.Claim(b.node)
		return nil
	})
	if claimed != nil {
		b.note(claimed)
	}
	if err != nil {
		return
	}
	k := &keeper{b: b, r: claimed}
	k.run(ctx)
	if ctx.Err() != nil && !k.r.Status.Ended() {
		const goodbye = time.Second
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		k.change(ctx, func(r *Record) error { //nolint:errcheck // another gateway notices the silence
			r.Owner = ""
			return nil
		})
	}
}

// Request is a batch that a client wants.
type Request struct {
	Endpoint string
	Input    string
	Window   time.Duration
	Metadata map[string]string
}

// tenantOf returns the caller's tenant and the id of its key.
func tenantOf(ctx context.Context) (tenant, keyID string) {
	if c := api.CallerFrom(ctx); c != nil {
		return c.TenantName(), c.KeyID()
	}
	return "", ""
}

// Create creates a batch of the caller. An error is an *api.Error.
func (b *Batches) Create(ctx context.Context, q Request) (*Record, error) {
	tenant, keyID := tenantOf(ctx)
	if !slices.Contains(Endpoints(), q.Endpoint) {
		return nil, api.Invalid("endpoint", "endpoint: found %.100q, expected one of %s", q.Endpoint, strings.Join(Endpoints(), ", "))
	}
	if q.Window < time.Hour || q.Window > MaxWindow {
		return nil, api.Invalid("completion_window", "completion_window: found %s, expected 1h to %s", windowName(q.Window),
			windowName(MaxWindow))
	}
	file, err := b.opts.Files.Info(ctx, tenant, q.Input)
	if err != nil {
		return nil, param(err, "input_file_id")
	}
	if purpose := file.Fields[FieldPurpose]; purpose != "batch" {
		return nil, api.Invalid("input_file_id", "input_file_id: found a file with the purpose %q, expected \"batch\"", purpose)
	}
	if err := b.opts.Files.Room(tenant); err != nil {
		return nil, err
	}
	active := 0
	for _, r := range b.catalog.of(tenant) {
		if !r.Status.Ended() {
			active++
		}
	}
	if active >= maxActive {
		return nil, &api.Error{Code: api.CodeOverloaded, Reason: "batches_full", RetryAfter: time.Minute,
			Message: fmt.Sprintf("found %d batches that have not ended, expected fewer than %d: wait for one, or cancel one", active,
				maxActive)}
	}
	if c, ok := api.CallerFrom(ctx).(api.Charged); ok { // its file will be checked
		if err := c.Charge(); err != nil {
			return nil, err
		}
	}
	r := New("batch_"+strings.ReplaceAll(uuid.NewString(), "-", ""), tenant, keyID, q.Endpoint, q.Input, q.Window, q.Metadata, time.Now())
	if err := b.storage.create(ctx, r); err != nil {
		return nil, objects.Unavailable("batches", err)
	}
	b.note(r)
	return r, nil
}

// param returns an error about a field.
func param(err error, name string) error {
	e := *api.AsError(err)
	e.Param = name
	return &e
}

// Get returns a batch of the caller. An error is an *api.Error.
func (b *Batches) Get(ctx context.Context, id string) (*Record, error) {
	tenant, _ := tenantOf(ctx)
	if !validID(id) {
		return nil, notFound(id)
	}
	r, err := b.storage.get(ctx, tenant, id)
	if err != nil {
		return nil, objects.Unavailable("batches", err)
	}
	return r, nil
}

// validID reports whether a client's text can be the ID of a batch: other characters could make it the name of something else.
func validID(id string) bool {
	rest, ok := strings.CutPrefix(id, "batch_")
	return ok && len(rest) == 32 && !strings.ContainsFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') })
}

// Cancel cancels a batch of the caller. It ends when its lines have stopped. An error is an *api.Error.
func (b *Batches) Cancel(ctx context.Context, id string) (*Record, error) {
	if _, err := b.Get(ctx, id); err != nil {
		return nil, err
	}
	tenant, _ := tenantOf(ctx)
	r, err := b.storage.change(ctx, tenant, id, func(r *Record) error { return r.Cancel(time.Now()) })
	if err != nil {
		return nil, objects.Unavailable("batches", err)
	}
	b.note(r)
	return r, nil
}

// List returns the caller's batches, the newest first. One that another gateway has just created may be missing.
func (b *Batches) List(ctx context.Context) []*Record {
	tenant, _ := tenantOf(ctx)
	return b.catalog.of(tenant)
}

// Uses reports whether a batch that has not ended reads a file of the tenant with the token.
func (b *Batches) Uses(ctx context.Context, token, file string) (batch string, used bool) {
	for _, r := range b.catalog.those(func(k *known) bool {
		return !k.Status.Ended() && k.Input == file && durable.TenantToken(k.Tenant) == token
	}) {
		now, err := b.storage.get(ctx, r.Tenant, r.ID)
		if err == nil {
			b.note(now) // the watch of the batches is late after a restart of NATS
		}
		if err != nil || !now.Status.Ended() {
			return r.ID, true
		}
	}
	return "", false
}
