// Package kvdisk keeps slabs of keys and values in a file that outlives the process, so that a prefix which was computed once
// returns after a restart, or after its slabs in memory were needed for others.
//
// A slab is found by the chained hash of its space and all tokens up to its end, as slabs of the prefix tree are, and
// verified by its own tokens and a checksum. What does not verify is a miss. The slabs of the state after a prefix are found by the hash
// of the prefix, and of use when all are there. A slab expires when nobody has used it for a time; when the file is full, the one that
// was used the longest ago makes room, of those that no other one needs.
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

// ErrNoRoom is a slab for which only what it needs could make room: the file is smaller than a prefix.
var ErrNoRoom = errors.New("kvdisk: no room for a slab beside those before it")

// Store is the slabs of one file. One goroutine reads and writes it; Has, HasState and Stats are for others too.
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
	return Stats{Slabs: s.layout.slots - len(s.index.free), Most: s.layout.slots}
}

// Has says whether the store has a slab, which only Read verifies.
func (s *Store) Has(key chain.Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.has(key, s.now().Unix())
}

// HasState says whether the store has all slabs of the state after a prefix.
func (s *Store) HasState(prefix chain.Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.hasState(prefix, s.now().Unix())
}

// Read copies a slab to memory of the slab's size. Errors: ErrMissing, and those of the disk; the store does not have the slab
// any more then, nor the others of its state.
func (s *Store) Read(b Block, to []byte) error {
	slot, ok := s.find(b)
	if !ok {
		return ErrMissing
	}
	raw := make([]byte, s.layout.headerSize())
	_, err := s.file.ReadAt(raw, s.layout.headerAt(slot))
	if err == nil {
		_, err = s.file.ReadAt(to, s.layout.at(slot))
	}
	h, ok := decodeHeader(raw)
	if errors.Is(err, io.EOF) || err == nil && (!ok || !h.holds(b) || h.sum != crc32.Checksum(to, castagnoli)) {
		err = fmt.Errorf("%w: slot %d is damaged", ErrMissing, slot)
	}
	if err != nil {
		s.remove(b)
		return err
	}
	return s.touch(slot, h)
}

// touch notes a use. The file gets to know it now and then.
func (s *Store) touch(slot int, h header) error {
	now := s.now().Unix()
	s.mu.Lock()
	s.index.touch(s.index.entry(h.Block), now)
	s.mu.Unlock()
	if now-h.used < max(s.index.ttl/24, 1) {
		return nil
	}
	h.used = now
	s.file.WriteAt(h.encode(s.layout), s.layout.headerAt(slot)) //nolint:errcheck // the next process has an earlier time
	return nil
}

// Write stores a slab, unless the store has it. Errors: ErrNoRoom, and those of the disk; the slab is not there then.
func (s *Store) Write(b Block, data []byte) error {
	slot, err := s.slotFor(b)
	if slot < 0 {
		return err
	}
	h := header{Block: b, sum: crc32.Checksum(data, castagnoli), used: s.now().Unix()}
	err = s.clear(slot) // so that a header never names what is half written
	if err == nil {
		_, err = s.file.WriteAt(data, s.layout.at(slot))
	}
	if err == nil {
		_, err = s.file.WriteAt(h.encode(s.layout), s.layout.headerAt(slot))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.index.free = append(s.index.free, slot)
		return fmt.Errorf("kvdisk: %w", err)
	}
	s.index.add(b, slot, h.used)
	return nil
}

// slotFor returns a slot for a slab; -1 if the store has the slab, or with ErrNoRoom.
func (s *Store) slotFor(b Block) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().Unix()
	if _, ok := s.index.find(b, now); ok {
		return -1, nil
	}
	if e := s.index.entry(b); e != nil && s.index.expired(e, now) {
		s.index.remove(e)
	}
	slot, ok := s.index.take(b, now)
	if !ok {
		return -1, ErrNoRoom
	}
	return slot, nil
}

// Expire removes what nobody has used for the time to live, from the disk too.
func (s *Store) Expire() {
	for {
		var slots []int
		s.mu.Lock()
		if e := s.index.oldest(s.now().Unix()); e != nil {
			slots = s.index.remove(e)
		}
		s.mu.Unlock()
		if slots == nil {
			return
		}
		for _, slot := range slots {
			s.clear(slot) //nolint:errcheck // the header's time has passed
			if f, ok := s.file.(interface{ Fd() uintptr }); ok {
				const keepSize, punchHole = 1, 2                                                         // FALLOC_FL_*
				syscall.Fallocate(int(f.Fd()), keepSize|punchHole, s.layout.at(slot), s.layout.stride()) //nolint:errcheck // not on every file system
			}
		}
	}
}

// Close ends the use of the file.
func (s *Store) Close() error { return s.file.Close() }

func (s *Store) find(b Block) (slot int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.index.find(b, s.now().Unix())
}

func (s *Store) remove(b Block) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.index.entry(b); e != nil {
		s.index.remove(e)
	}
}

// clear says in the file that a slot has no slab.
func (s *Store) clear(slot int) error {
	_, err := s.file.WriteAt(make([]byte, s.layout.headerSize()), s.layout.headerAt(slot))
	return err
}
