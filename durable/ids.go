package durable

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
)

var (
	// errNotOurs: the log under this name belongs to another tenant or call.
	errNotOurs = errors.New("resume: the log belongs to another call")
	// errReplaced: the log that was read is gone, and another call uses its name.
	errReplaced = errors.New("resume: the log has been replaced by another call's")
	// errOutgrown: the answer needed more bytes than its tenant may keep.
	errOutgrown = errors.New("resume: the log was closed, it had outgrown its tenant's share")
)

// tenantDigits is the length of a tenant's token in hexadecimal digits.
const tenantDigits = 20

// tenantToken stands for a tenant in subjects. It has a fixed length, fits any name and
// does not show it. The tenant "", where no keys are in use, has a token, too.
func tenantToken(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:])[:tenantDigits]
}

// logName is the name of a call's log: the end of its subject. An id belongs to its
// tenant: two tenants that use the same one have two logs.
func logName(tenant, id string) string { return tenantToken(tenant) + "." + id }

// logID is the identity of one log. Every record carries it, so that two logs that had
// the same name one after the other are told apart. Zero: written by a version before ids.
type logID [16]byte

func newLogID() (id logID) {
	rand.Read(id[:]) //nolint:errcheck // never fails, see crypto/rand
	return id
}

// holding names what a log may take in the ledger. A log that was lost and another that has its
// name now are two.
func (s *state) quotaKey(log string) string { return log + "/" + string(s.log[:]) }

// belongs says whether the record begins the log of this tenant's call.
func (c *callRecord) belongs(tenant, id string) bool { return c.tenant == tenant && c.id == id }

// same says whether two call records are of one call: a log that is written again begins
// with its call again.
func (c *callRecord) same(o *callRecord) bool {
	return c.belongs(o.tenant, o.id) && bytes.Equal(c.encoded, o.encoded) && c.kind == o.kind && bytes.Equal(c.body, o.body)
}
