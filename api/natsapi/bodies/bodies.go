// Package bodies gathers request bodies that are larger than a NATS message from their parts. It
// is a state machine without a clock, a goroutine or I/O; it is not safe for concurrent use.
// It must not know NATS or what a body contains.
package bodies

import (
	"errors"
	"fmt"
	"time"
)

// Limits bound what is kept.
type Limits struct {
	Body  int           // bytes of a body
	Owner int           // bytes of all bodies of an owner
	Total int           // bytes of all bodies
	Idle  time.Duration // a body is dropped when nothing came of it for this long
	Age   time.Duration // a body is dropped this long after it was opened
}

var (
	// ErrTooLarge says that the body is above Limits.Body.
	ErrTooLarge = errors.New("bodies: too large")
	// ErrFull says that the body does not fit beside the others now.
	ErrFull = errors.New("bodies: no room")
	// ErrUnknown says that there is no such body, or it is another owner's.
	ErrUnknown = errors.New("bodies: unknown")
	// ErrPart says that the part does not continue the body. The body is dropped.
	ErrPart = errors.New("bodies: out of order")
)

// Store keeps bodies until they are taken. Memory for a body is reserved from its owner's share
// when it is opened.
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

// Open reserves size bytes for a body of an owner under an id that is new.
func (s *Store) Open(now time.Time, id, owner string, size int) error {
	s.Expire(now)
	switch {
	case size <= 0 || s.bodies[id] != nil:
		return fmt.Errorf("%w: found a size of %d, expected 1 or more", ErrPart, size)
	case size > s.limits.Body:
		return fmt.Errorf("%w: %d bytes, more than %d", ErrTooLarge, size, s.limits.Body)
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

// Take returns a whole body of the owner and forgets it. One that is not whole stays.
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

// Expire drops what nobody came for. It returns when to call it again: zero when nothing is kept.
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

// Len is the number of bodies, and the bytes reserved for them.
func (s *Store) Len() (bodies, bytes int) { return len(s.bodies), s.total }

// find does not tell another owner's body from one that is not there.
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
