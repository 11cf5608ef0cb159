// Package kvdisk keeps slabs of keys and values in a file that outlives the process, so that a prefix which was computed once
// returns after a restart, or after its slabs in memory were needed for others.
//
// A slab is found by the chained hash of its space and all tokens up to its end, as slabs of the prefix tree are, and
// verified by its own tokens and a checksum. What does not verify is a miss. A slab expires when nobody has used it for a time;
// when the file is full, the one that was used the longest ago makes room.
//
// It must not know sequences, actors or devices.
package kvdisk

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace/kvmgr/chain"
)

// ErrMissing is a slab that the store does not have, or has no longer: it expired, or its bytes are damaged.
var ErrMissing = errors.New("kvdisk: no such slab")

// Store is the slabs of one file. One goroutine reads and writes it; Has and Stats are for others too.
type Store struct {
	file   file
	layout layout
	now    func() time.Time

	mu    sync.Mutex // for index
	index *index
}

// file is an *os.File.
type file interface {
	ReadAt(b []byte, at int64) (int, error)
	WriteAt(b []byte, at int64) (int, error)
	Close() error
}

// Stats of a store.
type Stats struct {
	Slabs int `json:"slabs"` // that it has
	Most  int `json:"most"`  // that it can have
}

// Stats returns the numbers of the store.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Slabs: len(s.index.byKey), Most: s.layout.slots}
}

// Has says whether the store has a slab, which only Read verifies.
func (s *Store) Has(key chain.Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.find(key, s.now().Unix()) != nil
}

// Read copies a slab to memory of the slab's size. Errors: ErrMissing, and those of the disk; the store does not have the slab
// any more then.
func (s *Store) Read(b Block, to []byte) error {
	e, ok := s.find(b.Key)
	if !ok {
		return ErrMissing
	}
	raw := make([]byte, s.layout.headerSize())
	_, err := s.file.ReadAt(raw, s.layout.headerAt(e.slot))
	if err == nil {
		_, err = s.file.ReadAt(to, s.layout.at(e.slot))
	}
	h, ok := decodeHeader(raw)
	if errors.Is(err, io.EOF) || err == nil && (!ok || !h.holds(b) || h.sum != crc32.Checksum(to, castagnoli)) {
		err = fmt.Errorf("%w: slot %d is damaged", ErrMissing, e.slot)
	}
	if err != nil {
		s.remove(b.Key)
		return err
	}
	return s.touch(e, h)
}

// touch notes a use. The file gets to know it now and then.
func (s *Store) touch(e entry, h header) error {
	now := s.now().Unix()
	s.mu.Lock()
	s.index.use(e.key, now)
	s.mu.Unlock()
	if now-h.used < max(s.index.ttl/24, 1) {
		return nil
	}
	h.used = now
	s.file.WriteAt(h.encode(), s.layout.headerAt(e.slot)) //nolint:errcheck // the next process has an earlier time
	return nil
}

// Write stores a slab, unless the store has it. An error is one of the disk: the slab is not there then.
func (s *Store) Write(b Block, data []byte) error {
	if _, ok := s.find(b.Key); ok {
		return nil
	}
	s.mu.Lock()
	s.index.remove(b.Key) // expired
	slot := s.index.take()
	s.mu.Unlock()
	h := header{Block: b, sum: crc32.Checksum(data, castagnoli), used: s.now().Unix()}
	err := s.clear(slot) // so that a header never names what is half written
	if err == nil {
		_, err = s.file.WriteAt(data, s.layout.at(slot))
	}
	if err == nil {
		_, err = s.file.WriteAt(h.encode(), s.layout.headerAt(slot))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.index.free = append(s.index.free, slot)
		return fmt.Errorf("kvdisk: %w", err)
	}
	s.index.add(b.Key, slot, h.used)
	return nil
}

// Expire removes what nobody has used for the time to live, from the disk too.
func (s *Store) Expire() {
	for {
		s.mu.Lock()
		e := s.index.oldest(s.now().Unix())
		if e != nil {
			s.index.remove(e.key)
		}
		s.mu.Unlock()
		if e == nil {
			return
		}
		s.clear(e.slot) //nolint:errcheck // the header's time has passed
		if f, ok := s.file.(interface{ Fd() uintptr }); ok {
			const keepSize, punchHole = 1, 2                                                           // FALLOC_FL_*
			syscall.Fallocate(int(f.Fd()), keepSize|punchHole, s.layout.at(e.slot), s.layout.stride()) //nolint:errcheck // not on every file system
		}
	}
}

// Close ends the use of the file.
func (s *Store) Close() error { return s.file.Close() }

func (s *Store) find(key chain.Hash) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.index.find(key, s.now().Unix()); e != nil {
		return *e, true
	}
	return entry{}, false
}

func (s *Store) remove(key chain.Hash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.index.remove(key)
}

// clear says in the file that a slot has no slab.
func (s *Store) clear(slot int) error {
	_, err := s.file.WriteAt(make([]byte, s.layout.headerSize()), s.layout.headerAt(slot))
	return err
}
