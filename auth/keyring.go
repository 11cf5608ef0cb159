package auth

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
)

// Key is a key that may be used: its entry and what it has used.
type Key struct {
	*Entry
	digest  []byte
	limiter *limiter
}

// allows says whether the key may use a model.
func (k *Key) allows(model string) bool {
	return len(k.Models) == 0 || slices.Contains(k.Models, model)
}

// Keyring holds the keys of a file.
type Keyring struct {
	path string

	mu   sync.RWMutex
	text []byte // as read last
	keys map[string]*Key
}

// Open reads a file of keys.
func Open(path string) (*Keyring, error) {
	r := &Keyring{path: path}
	if _, err := r.Reload(time.Now()); err != nil {
		return nil, err
	}
	return r, nil
}

// Reload implements Reloader. What a key has used is kept as long as its id is there.
func (r *Keyring) Reload(now time.Time) (changed bool, err error) {
	text, err := os.ReadFile(r.path)
	if err != nil {
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys != nil && bytes.Equal(text, r.text) {
		return false, nil
	}
	entries, err := parseFile(text)
	if err != nil {
		return false, fmt.Errorf("%s: %w", r.path, err)
	}
	keys := make(map[string]*Key, len(entries))
	for id, e := range entries {
		k := &Key{Entry: e, limiter: &limiter{}}
		if old := r.keys[id]; old != nil {
			k.limiter = old.limiter
		}
		if k.digest, err = e.digest(); err != nil {
			return false, err
		}
		k.limiter.set(e, now)
		keys[id] = k
	}
	r.keys, r.text = keys, text
	return true, nil
}

// Len is the number of keys.
func (r *Keyring) Len() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.keys)
}

// Key is the key with an id, nil without one.
func (r *Keyring) Key(id string) *Key {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.keys[id]
}

// Tenants is the number of tenants that have keys.
func (r *Keyring) Tenants() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	tenants := make(map[string]bool, len(r.keys))
	for _, k := range r.keys {
		tenants[k.Tenant] = true
	}
	return len(tenants)
}

// errUnauthorized does not say what is wrong with a key: that is for its owner.
var errUnauthorized = &api.Error{Code: api.CodeUnauthorized, Reason: "invalid_api_key",
	Message: "expected a valid API key: Authorization: Bearer KEY"}

// Authenticate finds the key of an Authorization header. Every error is the
// same, and takes the same time for a wrong secret as for an unknown id.
func (r *Keyring) Authenticate(header string) (*Key, error) {
	text := bearer(header)
	id, ok := parse(text)
	digest := sha256.Sum256([]byte(text))
	r.mu.RLock()
	k := r.keys[id]
	r.mu.RUnlock()
	want := make([]byte, len(digest))
	if k != nil {
		copy(want, k.digest)
	}
	if same := subtle.ConstantTimeCompare(digest[:], want) == 1; !ok || k == nil || !same {
		return nil, errUnauthorized
	}
	return k, nil
}

type contextKey struct{}

// WithKey is ctx for the requests of a key.
func WithKey(ctx context.Context, k *Key) context.Context {
	return context.WithValue(ctx, contextKey{}, k)
}

// FromContext is the key of WithKey, nil without one.
func FromContext(ctx context.Context) *Key {
	k, _ := ctx.Value(contextKey{}).(*Key)
	return k
}

// Visible are those of the models that the context's key may use; all without a key.
func Visible(ctx context.Context, models []api.Model) []api.Model {
	k := FromContext(ctx)
	if k == nil || len(k.Models) == 0 {
		return models
	}
	return slices.DeleteFunc(slices.Clone(models), func(m api.Model) bool { return !k.allows(m.ID) })
}
