package calls

import (
	"crypto/rand"
	"errors"

	"github.com/millrace/millrace/durable"
)

var (
	// errNotOurs means that the log with this name belongs to another tenant or call.
	errNotOurs = errors.New("durable: found the log of another call")
	// errReplaced means that the log is gone and another call uses its name.
	errReplaced = errors.New("durable: another call has replaced the log")
	// errOutgrown means that the answer needed more bytes than its tenant's quota.
	errOutgrown = errors.New("durable: the log is closed: it exceeded its tenant's quota")
)

// logName returns the name of a call's log, which ends its subject. The logs of two tenants differ
// even if their calls have the same id.
func logName(tenant, id string) string { return durable.TenantToken(tenant) + "." + id }

// logID identifies one log. Every record has it, which distinguishes two logs that had the same
// name at different times.
type logID [16]byte

func newLogID() (id logID) {
	rand.Read(id[:]) //nolint:errcheck // never fails, see crypto/rand
	return id
}

// quotaKey returns the key of a log's reservation. A lost log and a new one with the same name have
// two keys.
func (s *state) quotaKey(log string) string { return log + "/" + string(s.log[:]) }

// belongs reports whether the record begins the log of this tenant's call.
func (c *callRecord) belongs(tenant, id string) bool { return c.tenant == tenant && c.id == id }
