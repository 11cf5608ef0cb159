package auth

import (
	"bytes"
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

// KeyID implements api.Caller.
func (k *Key) KeyID() string { return k.ID }

// TenantName implements api.Caller.
func (k *Key) TenantName() string { return k.Tenant }

// Allows implements api.Caller. The key's file names models as requests do. A short name of two served models is that of neither.
func (k *Key) Allows(model string, served []api.Model) bool {
	return len(k.Models) == 0 || slices.ContainsFunc(k.Models, func(name string) bool {
		if name == model {
			return true
		}
		m := api.Find(served, name)
		return m != nil && m.ID == model
	})
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

// Charge implements api.Charged.
func (k *Key) Charge() error { return k.limiter.once(time.Now()) }

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

// Caller returns the holder of the key with an id, nil without one.
func (r *Keyring) Caller(id string) api.Caller {
	if k := r.Key(id); k != nil {
		return k
	}
	return nil
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

// Authenticate implements api.Keys. Every error is the same, and takes the same time for a
// wrong secret as for an unknown id.
func (r *Keyring) Authenticate(header string) (api.Caller, error) {
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
