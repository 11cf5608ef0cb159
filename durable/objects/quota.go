package objects

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/durable"
)

// Room returns an error if the tenant has used its share.
func (s *Store) Room(tenant string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (&metered{s: s, tenant: tenant, share: s.share()}).fits(overhead)
}

// Reserve sets bytes of the tenant's share aside for objects that will be stored, until release is called. It returns an error if they do
// not fit.
func (s *Store) Reserve(tenant string, bytes int64) (release func(), err error) {
	m := &metered{s: s, tenant: tenant, share: s.share()}
	if err := m.take(bytes + overhead); err != nil {
		return nil, err
	}
	return sync.OnceFunc(m.release), nil
}

// share returns the bytes that a tenant may use.
func (s *Store) share() int64 {
	n := 1
	if s.opts.Tenants != nil {
		n = max(s.opts.Tenants(), 1)
	}
	return s.opts.MaxBytes / int64(n)
}

// used returns the bytes that a tenant uses. The caller holds mu.
func (s *Store) used(token string) int64 {
	n, now := s.incoming[token], time.Now()
	for of, o := range s.known {
		if strings.HasPrefix(of, token+"/") && now.Before(o.Expires) {
			n += o.Size + overhead
		}
	}
	return n
}

// metered counts the content of an object that is being written, and fills the chunks.
type metered struct {
	s      *Store
	tenant string
	share  int64
	r      io.Reader
	taken  int64
}

// Read fills p: the object store makes a message of each Read. A content that is cut must end with another error than io.ErrUnexpectedEOF.
func (m *metered) Read(p []byte) (int, error) {
	n, err := io.ReadFull(m.r, p)
	if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		err = io.EOF
	}
	if full := m.take(int64(n)); full != nil {
		return 0, full
	}
	return n, err
}

func (m *metered) take(n int64) error {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	if err := m.fits(n); err != nil {
		return err
	}
	m.taken += n
	m.s.incoming[durable.TenantToken(m.tenant)] += n
	return nil
}

// fits returns an error if n more bytes are above the share. The caller holds mu.
func (m *metered) fits(n int64) error {
	if used := m.s.used(durable.TenantToken(m.tenant)); used+n > m.share {
		return &api.Error{Code: api.CodeOverloaded, Reason: m.s.opts.Noun + "s_full", RetryAfter: time.Minute, Message: fmt.Sprintf(
			"the tenant's %ss use %d bytes, and %d more do not fit into its share of %d: delete some", m.s.opts.Noun, used, n, m.share)}
	}
	return nil
}

func (m *metered) release() {
	m.s.mu.Lock()
	defer m.s.mu.Unlock()
	token := durable.TenantToken(m.tenant)
	if m.s.incoming[token] -= m.taken; m.s.incoming[token] <= 0 {
		delete(m.s.incoming, token)
	}
}

// TooLarge is the error of a content above a limit.
func TooLarge(noun string, limit int64) *api.Error {
	return &api.Error{Code: http.StatusRequestEntityTooLarge, Reason: noun + "_too_large",
		Message: fmt.Sprintf("found a %s larger than %d bytes, expected at most that", noun, limit)}
}
