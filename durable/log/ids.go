package log

import (
	"crypto/rand"
	"errors"

	"github.com/millrace/millrace/durable"
)

var (
	// ErrNotOurs means that the log with this name belongs to another tenant or call.
	ErrNotOurs = errors.New("durable: found the log of another call")
	// ErrReplaced means that the log is gone and another call uses its name.
	ErrReplaced = errors.New("durable: another call has replaced the log")
	// ErrOutgrown means that the answer needed more bytes than its tenant's quota.
	ErrOutgrown = errors.New("durable: the log is closed: it exceeded its tenant's quota")
)

// Name returns the name of a call's log, which ends its subject. The logs of two tenants differ
// even if their calls have the same id.
func Name(tenant, id string) string { return durable.TenantToken(tenant) + "." + id }

// ID identifies one log. Every record has it, which distinguishes two logs that had the same
// name at different times.
type ID [16]byte

// NewID returns a random identity.
func NewID() (id ID) {
	rand.Read(id[:]) //nolint:errcheck // never fails, see crypto/rand
	return id
}

// quotaKey returns the key of a log's reservation. A lost log and a new one with the same name have
// two keys.
func (s *State) quotaKey(log string) string { return log + "/" + string(s.Log[:]) }

// belongs reports whether the record begins the log of this tenant's call.
func (c *CallRecord) belongs(tenant, id string) bool { return c.Tenant == tenant && c.ID == id }
