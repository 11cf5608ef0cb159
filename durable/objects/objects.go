// Package objects stores the files of tenants in a bucket of JetStream's object store. Contents are streamed in both directions. An
// object belongs to one tenant: for another one it does not exist. It must not know what an object contains.
package objects

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// Options are the settings of a Store.
type Options struct {
	Logger   zerolog.Logger
	Bucket   string
	Noun     string        // what a client calls an object, such as "file"
	Keep     time.Duration // after it, an object is removed
	MaxBytes int64         // of all objects
	Tenants  func() int    // number of tenants that share MaxBytes; nil: 1
	// Used reports whether an object of the tenant with the token is in use, and so outlives its Expires. nil: none is.
	Used func(ctx context.Context, token, id string) bool
}

// Object is a stored object without its content.
type Object struct {
	ID      string
	Size    int64
	Created time.Time
	Expires time.Time
	Fields  map[string]string
}

// Store is the objects of one bucket. All gateways have the same ones.
type Store struct {
	opts   Options
	bucket jetstream.ObjectStore
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	replicas int

	mu       sync.Mutex
	known    map[string]Object // by name
	incoming map[string]int64  // bytes of objects that are being written here, by tenant's token
	waiters  map[string]*waiter
}

// timeout bounds one request to JetStream. A content may take as long as its client does.
const timeout = 5 * time.Second

// contentTime bounds the transfer of one content. The HTTP server closes clients that read or write too slowly long before.
const contentTime = time.Hour

// replicaLag is the time that a replica of the bucket gets to receive what another one has.
const replicaLag = 200 * time.Millisecond

// overhead is what JetStream stores for an object in addition to its content, in bytes: the record with its name, and the headers of a
// chunk.
const overhead = 1 << 10

// The name of an object is its tenant's token, a slash and its ID. A field expires has the time of Object.Expires.
const expiresField, createdField = "expires", "created"

// Replicas returns the number of replicas of what is stored: it survives the loss of one server of three.
func Replicas(nc *nats.Conn) int {
	const replicas = 3
	if len(nc.Servers()) >= replicas && nc.ConnectedClusterName() != "" {
		return replicas
	}
	return 1
}

// Open creates the bucket if it is missing. The caller closes the connection after the Store.
func Open(ctx context.Context, nc *nats.Conn, opts Options) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("objects: %w", err)
	}
	var bucket jetstream.ObjectStore
	if err = durable.Settle(ctx, timeout, func(ctx context.Context) (err error) {
		bucket, err = js.CreateOrUpdateObjectStore(ctx, jetstream.ObjectStoreConfig{
			Bucket: opts.Bucket, Description: "Millrace: " + opts.Noun + "s of tenants", TTL: opts.Keep, MaxBytes: opts.MaxBytes,
			Storage: jetstream.FileStorage, Replicas: Replicas(nc),
		})
		return err
	}); err != nil {
		return nil, fmt.Errorf("objects: bucket %s: %w", opts.Bucket, err)
	}
	s := &Store{opts: opts, bucket: bucket, replicas: Replicas(nc), known: map[string]Object{}, incoming: map[string]int64{},
		waiters: map[string]*waiter{}}
	running, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.tasks.Go(func() { s.watch(running) })
	s.tasks.Go(func() { s.sweep(running) })
	return s, nil
}

// Close stops watching the bucket.
func (s *Store) Close() {
	s.stop()
	s.tasks.Wait()
}

func name(tenant, id string) string { return durable.TenantToken(tenant) + "/" + id }

// notFound is the same for an object that never was, has expired, or belongs to another tenant.
func (s *Store) notFound(id string) *api.Error {
	return &api.Error{Code: api.CodeNotFound, Reason: s.opts.Noun + "_not_found",
		Message: fmt.Sprintf("no %s %s: it does not exist, was deleted or has expired", s.opts.Noun, api.Quote(id))}
}

// Unavailable returns the client's error for an error of JetStream about things of a kind, such as "files".
func Unavailable(what string, err error) error {
	var e *api.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e):
		return e
	case Full(err):
		return &api.Error{Code: api.CodeOverloaded, Reason: what + "_full", RetryAfter: time.Minute,
			Message: "the storage for " + what + " is full: delete some, or try again later"}
	}
	return fmt.Errorf("%w: %w", &api.Error{Code: api.CodeUnavailable, Reason: what + "_unavailable", RetryAfter: time.Second,
		Message: "the storage for " + what + " cannot be reached: try again"}, err)
}

// Full reports whether err means that a stream or the disk is full. The server has no code for it.
func Full(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "maximum bytes exceeded") || strings.Contains(text, "insufficient resources") ||
		strings.Contains(text, "no space left")
}

// validID reports whether a client's text can be an ID: a name with other characters could not be distinguished from another tenant's.
func validID(id string) bool {
	return id != "" && len(id) <= 128 && !strings.ContainsFunc(id, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
	})
}

// Put stores an object and reads its content to the end. A content that fails leaves nothing. An existing object with the ID is replaced.
// The error is a 429 if the tenant has used its share.
func (s *Store) Put(ctx context.Context, tenant, id string, fields map[string]string, expires time.Time,
	content io.Reader) (Object, error) {
	return s.put(ctx, tenant, id, fields, expires, &metered{s: s, tenant: tenant, r: content, share: s.share()})
}

// PutFree is Put without the limit of the tenant's share: for what the server has promised to store. It counts later.
func (s *Store) PutFree(ctx context.Context, tenant, id string, fields map[string]string, expires time.Time,
	content io.Reader) (Object, error) {
	return s.put(ctx, tenant, id, fields, expires, &metered{s: s, tenant: tenant, r: content, share: 1 << 62})
}

func (s *Store) put(ctx context.Context, tenant, id string, fields map[string]string, expires time.Time, content *metered) (Object, error) {
	now := time.Now()
	o := Object{ID: id, Created: now.Truncate(time.Second), Expires: now.Add(s.opts.Keep).Truncate(time.Second), Fields: fields}
	if !expires.IsZero() && expires.Before(o.Expires) {
		o.Expires = expires
	}
	defer content.release()
	if err := content.take(overhead); err != nil {
		return Object{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, contentTime)
	defer cancel()
	info, err := s.bucket.Put(undated{ctx}, s.meta(tenant, &o), content)
	if err != nil {
		return Object{}, Unavailable(s.opts.Noun+"s", err)
	}
	o.Size = int64(info.Size)
	s.note(name(tenant, id), &o)
	return o, nil
}

// undated is a context that does not show its deadline. The object store waits for the acknowledgment of a chunk until the deadline, or for
// the default of JetStream, 5 s, if there is none. A server that restarts, or cannot write, sends no acknowledgment at all.
type undated struct{ context.Context }

// Deadline implements context.Context.
func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

func (s *Store) meta(tenant string, o *Object) jetstream.ObjectMeta {
	fields := maps.Clone(o.Fields)
	if fields == nil {
		fields = map[string]string{}
	}
	fields[createdField], fields[expiresField] = o.Created.UTC().Format(time.RFC3339), o.Expires.UTC().Format(time.RFC3339)
	return jetstream.ObjectMeta{Name: name(tenant, o.ID), Metadata: fields}
}

// Update changes the fields and the expiry of an object.
func (s *Store) Update(ctx context.Context, tenant string, o Object) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.bucket.UpdateMeta(ctx, name(tenant, o.ID), s.meta(tenant, &o)); err != nil {
		return s.failure(o.ID, err)
	}
	s.note(name(tenant, o.ID), &o)
	return nil
}

// failure returns the client's error for an error about one object.
func (s *Store) failure(id string, err error) error {
	if errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, jetstream.ErrUpdateMetaDeleted) {
		return s.notFound(id)
	}
	return Unavailable(s.opts.Noun+"s", err)
}

// Info returns an object without its content.
func (s *Store) Info(ctx context.Context, tenant, id string) (Object, error) {
	if !validID(id) {
		return Object{}, s.notFound(id)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	info, err := s.bucket.GetInfo(ctx, name(tenant, id))
	if errors.Is(err, jetstream.ErrObjectNotFound) && s.replicas > 1 { // the replica that answered may be late
		select {
		case <-time.After(replicaLag):
		case <-ctx.Done():
		}
		info, err = s.bucket.GetInfo(ctx, name(tenant, id))
	}
	if err != nil {
		return Object{}, s.failure(id, err)
	}
	o := objectOf(info)
	if !time.Now().Before(o.Expires) {
		return Object{}, s.notFound(id)
	}
	return o, nil
}

// Get returns an object and its content, which the caller closes. A content that is cut off, or is replaced while it is read, ends with an
// error.
func (s *Store) Get(ctx context.Context, tenant, id string) (Object, io.ReadCloser, error) {
	if _, err := s.Info(ctx, tenant, id); err != nil {
		return Object{}, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, contentTime)
	c := &content{bucket: s.bucket, name: name(tenant, id), ctx: ctx, cancel: cancel}
	if err := c.open(); err != nil {
		cancel()
		return Object{}, nil, s.failure(id, err)
	}
	return objectOf(c.info), c, nil
}

// rolling is a context whose deadline is always some time ahead. The reader of an object waits until then for the next bytes, whether its
// context ends or not.
type rolling struct{ context.Context }

const readStep = 100 * time.Millisecond

// Deadline implements context.Context.
func (rolling) Deadline() (time.Time, bool) { return time.Now().Add(readStep), true }

// content is the content of an object. The object store's reader waits in vain for the chunks of an object that was replaced or deleted
// meanwhile, and ends without an error if its subscription does.
type content struct {
	bucket jetstream.ObjectStore
	name   string
	ctx    context.Context //nolint:containedctx // of one request
	cancel context.CancelFunc
	from   jetstream.ObjectResult
	info   *jetstream.ObjectInfo
	read   int64 // bytes
}

// contentIdle is how long JetStream may take for the next bytes of a content.
const contentIdle = time.Minute

var errChanged = errors.New("objects: the object was replaced or deleted while it was read")

func (c *content) open() (err error) {
	late := time.AfterFunc(timeout, c.cancel) // ctx bounds the beginning too
	defer late.Stop()
	if c.from, err = c.bucket.Get(rolling{c.ctx}, c.name); err == nil {
		c.info, err = c.from.Info()
	}
	return err
}

func (c *content) Read(p []byte) (int, error) {
	for begin := time.Now(); ; {
		n, err := c.from.Read(p)
		c.read += int64(n)
		switch {
		case n > 0 || err == nil:
			return n, nil
		case errors.Is(err, io.EOF) && c.read < int64(c.info.Size):
			return 0, fmt.Errorf("objects: found %d bytes, expected %d: %w", c.read, c.info.Size, errChanged)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return 0, err
		case c.ctx.Err() != nil:
			return 0, c.ctx.Err()
		case time.Since(begin) > contentIdle:
			return 0, err
		}
		if err := c.check(); err != nil {
			return 0, err
		}
	}
}

// check opens the object again if it was replaced before its first byte was read.
func (c *content) check() error {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	now, err := c.bucket.GetInfo(ctx, c.name)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound):
		return errChanged
	case err != nil || now.NUID == c.info.NUID:
		return nil // JetStream is slow, or cannot be reached for now
	case c.read > 0:
		return errChanged
	}
	c.from.Close()
	return c.open()
}

func (c *content) Close() error {
	c.cancel()
	return c.from.Close()
}

// List returns the tenant's objects, the newest first. Those that another gateway has just stored may be missing.
func (s *Store) List(tenant string) []Object {
	prefix, now := durable.TenantToken(tenant)+"/", time.Now()
	s.mu.Lock()
	var list []Object
	for n, o := range s.known {
		if strings.HasPrefix(n, prefix) && now.Before(o.Expires) {
			list = append(list, o)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b Object) int {
		if c := b.Created.Compare(a.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

// Delete removes an object.
func (s *Store) Delete(ctx context.Context, tenant, id string) error {
	if _, err := s.Info(ctx, tenant, id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.bucket.Delete(ctx, name(tenant, id)); err != nil {
		return s.failure(id, err)
	}
	s.note(name(tenant, id), nil)
	return nil
}

// note records an object, nil for one that is gone.
func (s *Store) note(name string, o *Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o == nil {
		delete(s.known, name)
	} else {
		s.known[name] = *o
	}
	if w := s.waiters[name]; w != nil {
		close(w.changed)
		delete(s.waiters, name)
	}
}

func objectOf(info *jetstream.ObjectInfo) Object {
	_, id, _ := strings.Cut(info.Name, "/")
	o := Object{ID: id, Size: int64(info.Size), Created: info.ModTime, Fields: maps.Clone(info.Metadata)}
	if t, err := time.Parse(time.RFC3339, o.Fields[createdField]); err == nil {
		o.Created = t
	}
	if t, err := time.Parse(time.RFC3339, o.Fields[expiresField]); err == nil {
		o.Expires = t
	}
	delete(o.Fields, createdField)
	delete(o.Fields, expiresField)
	return o
}

// watch follows the objects of all gateways until ctx ends.
func (s *Store) watch(ctx context.Context) {
	for {
		w, err := s.bucket.Watch(ctx)
		if err == nil {
			s.follow(ctx, w)
			w.Stop() //nolint:errcheck // the connection may be gone
		} else if ctx.Err() == nil {
			s.opts.Logger.Debug().Err(err).Str("bucket", s.opts.Bucket).Msg("objects: cannot watch")
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
}

func (s *Store) follow(ctx context.Context, w jetstream.ObjectWatcher) {
	for {
		select {
		case <-ctx.Done():
			return
		case info, open := <-w.Updates():
			switch {
			case !open:
				return
			case info == nil: // the end of what there was
			case info.Deleted:
				s.note(info.Name, nil)
			default:
				o := objectOf(info)
				s.note(info.Name, &o)
			}
		}
	}
}

// sweep removes objects that expire before the bucket's own limit, until ctx ends.
func (s *Store) sweep(ctx context.Context) {
	const every = 10 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.removeExpired(ctx, now)
		}
	}
}

func (s *Store) removeExpired(ctx context.Context, now time.Time) {
	s.mu.Lock()
	var old []string
	for n, o := range s.known {
		if now.After(o.Expires) {
			old = append(old, n)
		}
	}
	s.mu.Unlock()
	for _, n := range old {
		token, id, _ := strings.Cut(n, "/")
		if s.opts.Used != nil && s.opts.Used(ctx, token, id) {
			continue
		}
		once, cancel := context.WithTimeout(ctx, timeout)
		err := s.bucket.Delete(once, n)
		cancel()
		if err == nil || errors.Is(err, jetstream.ErrObjectNotFound) {
			s.note(n, nil)
		}
	}
}
