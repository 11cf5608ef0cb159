// Package tier keeps slabs of keys and values in a file for a time, so that their memory serves others. The file ends with the process.
//
// It must not know which slabs it has, sequences, actors or devices.
package tier

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"syscall"
)

// ErrDamaged is a slot whose bytes are not those that were written.
var ErrDamaged = errors.New("tier: the slot is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// File is slots of the size of a slab. One goroutine reads and writes it.
type File struct {
	file      *os.File
	slots     int
	slabBytes int
	sums      map[int32]uint32 // by slot
}

// Open sets size bytes aside in a directory, which it makes (mode 0700) where it is missing. The file has no name and mode 0600,
// so nothing is left of it when the process ends, however it ends.
func Open(dir string, size int64, slabBytes int) (*File, error) {
	slots := size / int64(slabBytes)
	if slots < 1 {
		return nil, fmt.Errorf("tier: %d bytes hold no slab of %d bytes", size, slabBytes)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("tier: %w", err)
	}
	f, err := os.CreateTemp(dir, "spill-*") // mode 0600
	if err != nil {
		return nil, fmt.Errorf("tier: %w", err)
	}
	err = os.Remove(f.Name())
	if err == nil {
		err = syscall.Fallocate(int(f.Fd()), 0, 0, slots*int64(slabBytes))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tier: %d bytes in %s: %w", slots*int64(slabBytes), dir, err), f.Close())
	}
	return &File{file: f, slots: int(slots), slabBytes: slabBytes, sums: make(map[int32]uint32)}, nil
}

// Slots is the number of slots.
func (f *File) Slots() int { return f.slots }

// Write stores a slab in a slot.
func (f *File) Write(slot int32, data []byte) error {
	delete(f.sums, slot)
	if _, err := f.file.WriteAt(data, int64(slot)*int64(f.slabBytes)); err != nil {
		return fmt.Errorf("tier: %w", err)
	}
	f.sums[slot] = crc32.Checksum(data, castagnoli)
	return nil
}

// Read copies a slot to memory of the size of a slab. Errors: ErrDamaged, and those of the disk.
func (f *File) Read(slot int32, to []byte) error {
	if _, err := f.file.ReadAt(to, int64(slot)*int64(f.slabBytes)); err != nil {
		return fmt.Errorf("tier: %w", err)
	}
	if sum, ok := f.sums[slot]; !ok || sum != crc32.Checksum(to, castagnoli) {
		return fmt.Errorf("%w: slot %d", ErrDamaged, slot)
	}
	return nil
}

// Close gives the room back.
func (f *File) Close() error { return f.file.Close() }
