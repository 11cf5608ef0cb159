// Package bodies gathers request bodies that are larger than a NATS message from their parts. It
// is a state machine without a clock, a goroutine or I/O; it is not safe for concurrent use.
// It must not know NATS or what a body contains.
package bodies

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound the memory and the age of bodies.
type Limits struct {
	Body  int           // bytes of a body
	Owner int           // bytes of all bodies of an owner
	Total int           // bytes of all bodies
	Idle  time.Duration // a body is dropped this long after its last part
	Age   time.Duration // a body is dropped this long after it was opened
}

var (
	// ErrTooLarge says that the body is above Limits.Body.
	ErrTooLarge = errors.New("bodies: too large")
	// ErrFull says that the memory for bodies is in use.
	ErrFull = errors.New("bodies: memory in use")
	// ErrUnknown says that the owner has no such body.
	ErrUnknown = errors.New("bodies: unknown")
	// ErrPart says that the part does not continue the body. The body is dropped.
	ErrPart = errors.New("bodies: out of order")
)

// Store keeps bodies until Take. Open reserves the memory of a body from its owner's share.
type Store struct {
	limits Limits
	bodies map[string]*body
	owners map[string]int // bytes reserved
	total  int            // bytes reserved
}

type body struct {
	owner        string
	size         int
	data         []byte
	opened, last time.Time
}

// New returns an empty store.
func New(limits Limits) *Store {
	return &Store{limits: limits, bodies: map[string]*body{}, owners: map[string]int{}}
}

// Open reserves size bytes for a body of an owner. The id must be new.
func (s *Store) Open(now time.Time, id, owner string, size int) error {
	s.Expire(now)
	switch {
	case size <= 0 || s.bodies[id] != nil:
		return fmt.Errorf("%w: found a size of %d, expected 1 or more", ErrPart, size)
	case size > s.limits.Body:
		return fmt.Errorf("%w: found %d bytes, expected at most %d", ErrTooLarge, size, s.limits.Body)
	case s.owners[owner]+size > s.limits.Owner:
		return fmt.Errorf("%w: %d bytes, and %d of the owner's %d are in use", ErrFull, size, s.owners[owner], s.limits.Owner)
	case s.total+size > s.limits.Total:
		return fmt.Errorf("%w: %d bytes, and %d of %d are in use", ErrFull, size, s.total, s.limits.Total)
	}
	s.bodies[id] = &body{owner: owner, size: size, opened: now, last: now}
	s.owners[owner] += size
	s.total += size
	return nil
}

// Add appends a part, which begins at offset, to a body of the owner. The part is copied.
func (s *Store) Add(now time.Time, id, owner string, offset int, part []byte) error {
	b, err := s.find(now, id, owner)
	if err != nil {
		return err
	}
	if offset != len(b.data) || len(part) == 0 || len(part) > b.size-offset {
		s.drop(id)
		return fmt.Errorf("%w: found %d bytes at %d, expected those from %d to %d", ErrPart, len(part), offset, len(b.data), b.size)
	}
	if b.data == nil {
		b.data = make([]byte, 0, b.size)
	}
	b.data, b.last = append(b.data, part...), now
	return nil
}

// Take removes a complete body of the owner and returns it. An incomplete one stays.
func (s *Store) Take(now time.Time, id, owner string) ([]byte, error) {
	b, err := s.find(now, id, owner)
	if err != nil {
		return nil, err
	}
	if len(b.data) != b.size {
		return nil, fmt.Errorf("%w: found %d bytes, expected %d", ErrPart, len(b.data), b.size)
	}
	s.drop(id)
	return b.data, nil
}

// Expire drops old bodies. It returns when to call it again, zero if the store is empty.
func (s *Store) Expire(now time.Time) (next time.Time) {
	for id, b := range s.bodies {
		end := b.last.Add(s.limits.Idle)
		if oldest := b.opened.Add(s.limits.Age); oldest.Before(end) {
			end = oldest
		}
		switch {
		case !end.After(now):
			s.drop(id)
		case next.IsZero() || end.Before(next):
			next = end
		}
	}
	return next
}

// Len returns the number of bodies and the bytes reserved for them.
func (s *Store) Len() (bodies, bytes int) { return len(s.bodies), s.total }

// find returns a body of the owner. The error does not reveal whether another owner has the id.
func (s *Store) find(now time.Time, id, owner string) (*body, error) {
	s.Expire(now)
	if b := s.bodies[id]; b != nil && b.owner == owner {
		return b, nil
	}
	return nil, ErrUnknown
}

func (s *Store) drop(id string) {
	b := s.bodies[id]
	delete(s.bodies, id)
	s.total -= b.size
	if s.owners[b.owner] -= b.size; s.owners[b.owner] == 0 {
		delete(s.owners, b.owner)
	}
}
