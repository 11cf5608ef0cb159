// Package prefix says which slabs of which prompts are in the prefix caches of a cluster's workers. A worker's Source turns the
// changes of its cache into events, and a gateway's Index holds what the events of all workers add up to.
//
// Neither text nor token ids leave a worker. A slab has an ID: a hash of its tokens and all tokens before it, salted with a
// secret that the worker makes at its start and gives to gateways only. Who sees events cannot test whether a worker has a
// prompt, and cannot tell whether two workers have the same one.
//
// The package is pure: no clock, no goroutine, no I/O. It must not know NATS, actors or how a worker is chosen.
package prefix

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/millrace/millrace/kvmgr/chain"
)

// ErrEvent is an event that cannot be decoded.
var ErrEvent = errors.New("prefix: bad event")

// ID names a slab in a worker's cache. If two slabs have the same ID by accident, a request may be placed at a slower
// worker, and its answer is the same.
type ID uint64

// Salt makes a worker's IDs its own.
type Salt [16]byte

// ID returns the ID of a slab whose prefix has the hash h.
func (s *Salt) ID(h chain.Hash) ID {
	var b [len(s) + len(h)]byte
	copy(b[:], s[:])
	copy(b[len(s):], h[:])
	sum := sha256.Sum256(b[:])
	return ID(binary.LittleEndian.Uint64(sum[:]))
}

// Event is what changed in a worker's cache. Events of a worker have numbers without gaps.
type Event struct {
	Number  uint64 // from 1
	Stored  []ID
	Removed []ID
}

// Snapshot is what a worker's cache had at the event with a number.
type Snapshot struct {
	Number uint64
	Salt   Salt
	Blocks []ID
}

// version is the first byte of an event. Gateways drop events of another version.
const version = 1

// idBytes is the size of an encoded ID.
const idBytes = 8

// Encode returns the event's wire form.
func (e *Event) Encode() []byte {
	b := make([]byte, 0, 1+3*binary.MaxVarintLen64+idBytes*(len(e.Stored)+len(e.Removed)))
	b = append(b, version)
	b = binary.AppendUvarint(b, e.Number)
	b = binary.AppendUvarint(b, uint64(len(e.Stored)))
	for _, list := range [][]ID{e.Stored, e.Removed} {
		for _, id := range list {
			b = binary.LittleEndian.AppendUint64(b, uint64(id))
		}
	}
	return b
}

// Decode returns the event of a wire form. Error: ErrEvent.
func Decode(b []byte) (e Event, err error) {
	if len(b) == 0 || b[0] != version {
		return e, fmt.Errorf("%w: %d bytes, expected version %d", ErrEvent, len(b), version)
	}
	number, n := binary.Uvarint(b[1:])
	if n <= 0 {
		return e, fmt.Errorf("%w: no number", ErrEvent)
	}
	b = b[1+n:]
	stored, n := binary.Uvarint(b)
	if n <= 0 {
		return e, fmt.Errorf("%w: no count", ErrEvent)
	}
	b = b[n:]
	if len(b)%idBytes != 0 || stored > uint64(len(b)/idBytes) {
		return e, fmt.Errorf("%w: %d bytes of ids, %d stored", ErrEvent, len(b), stored)
	}
	ids := make([]ID, len(b)/idBytes)
	for i := range ids {
		ids[i] = ID(binary.LittleEndian.Uint64(b[i*idBytes:]))
	}
	return Event{Number: number, Stored: ids[:stored:stored], Removed: ids[stored:]}, nil
}
