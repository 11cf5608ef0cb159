// Package packed keeps a model's packed weights in a file, so that a later start
// maps them instead of packing them again.
//
// It must not know the layout of the weights.
package packed

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute/mapped"
)

// A file is a header of dataAt bytes and the weights. They begin where a huge page
// can, so that the kernel may map the page cache with huge pages: with those, reading
// the file's pages is as fast as reading memory of one's own.
const (
	magic  = "millrace packed weights 1\n\x00\x00\x00\x00\x00\x00"
	dataAt = 2 << 20
	suffix = ".packed"
)

// Key names what the weights were packed from and for.
type Key [sha256.Size]byte

// header is what a file begins with, little-endian.
type header struct {
	Magic [len(magic)]byte
	Key   Key
	Bytes uint64 // of the weights
}

// ErrStale says that a file has another key than the expected one, or is no file of packed weights.
var ErrStale = errors.New("no packed weights of this model and build")

// Path is the file of a key in a folder: name says what for, so that a later key of
// the same name replaces it.
func Path(folder, name string, key Key) string {
	return filepath.Join(folder, fmt.Sprintf("%s-%x%s", name, key[:8], suffix))
}

// File is an open file of packed weights.
type File struct {
	mapping []byte // of the file, or of a copy
	copied  bool
}

// Open maps a file and reads it into the page cache. Where the kernel has not got huge pages
// for it there, and room bytes of memory hold a copy, the weights are copied into huge pages of
// the process, for they are read all the time. Not there: fs.ErrNotExist; another key or length: ErrStale.
func Open(path string, key Key, room uint64) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	var h header
	if err := binary.Read(f, binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", path, ErrStale, err)
	}
	if string(h.Magic[:]) != magic || h.Key != key {
		return nil, fmt.Errorf("%s: %w: another key", path, ErrStale)
	}
	if h.Bytes == 0 || info.Size() < dataAt || uint64(info.Size()-dataAt) != h.Bytes {
		return nil, fmt.Errorf("%s: %w: %d bytes, expected %d and %d of weights", path, ErrStale, info.Size(), dataAt, h.Bytes)
	}
	mapping, err := mapped.File(f, path, info.Size(), unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	// Advice: without it the pages come one by one when they are needed.
	_ = unix.Madvise(mapping, unix.MADV_HUGEPAGE)
	_ = unix.Madvise(mapping, unix.MADV_POPULATE_READ)
	file := &File{mapping: mapping}
	if h.Bytes <= room && !inHugePages(mapping) {
		file.copyOut()
	}
	return file, nil
}

// Copied says whether the weights take memory of the process instead of the page cache.
func (f *File) Copied() bool { return f.copied }

// Bytes are the weights, until Close.
func (f *File) Bytes() []byte { return f.mapping[dataAt:] }

// Close unmaps the file.
func (f *File) Close() error {
	m := f.mapping
	f.mapping = nil
	if f.copied {
		return unix.Munmap(m)
	}
	return mapped.Unmap(m)
}

// Write makes the file of weights, or none: it is complete before it has its name.
// Files of the same name with another key are removed. Write calls stop now and then; its
// error ends the writing.
func Write(folder, name string, key Key, weights [][]byte, stop func() error) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	h := header{Key: key}
	copy(h.Magic[:], magic)
	for _, w := range weights {
		h.Bytes += uint64(len(w))
	}
	if err := checkRoom(folder, h.Bytes+dataAt); err != nil {
		return err
	}
	f, err := os.CreateTemp(folder, name+"-*.tmp")
	if err != nil {
		return err
	}
	err = errors.Join(writeAll(f, &h, weights, stop), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), Path(folder, name, key))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return removeOthers(folder, Path(folder, name, key), name, suffix)
}

func writeAll(f *os.File, h *header, weights [][]byte, stop func() error) error {
	var head bytes.Buffer
	if err := binary.Write(&head, binary.LittleEndian, h); err != nil {
		return err
	}
	head.Write(make([]byte, dataAt-head.Len()))
	// Whole huge pages at a time: the page cache takes each as one folio then.
	out := &pageWriter{to: f, stop: stop, page: make([]byte, 0, dataAt)}
	for _, b := range append([][]byte{head.Bytes()}, weights...) {
		if _, err := out.Write(b); err != nil {
			return err
		}
	}
	if err := out.flush(); err != nil {
		return err
	}
	return f.Sync()
}

// pageWriter writes in pieces of a huge page.
type pageWriter struct {
	to   io.Writer
	stop func() error
	page []byte
}

func (w *pageWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		k := copy(w.page[len(w.page):cap(w.page)], b)
		w.page, b = w.page[:len(w.page)+k], b[k:]
		if len(w.page) == cap(w.page) {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (w *pageWriter) flush() error {
	if err := w.stop(); err != nil {
		return err
	}
	_, err := w.to.Write(w.page)
	w.page = w.page[:0]
	return err
}

// checkRoom refuses to fill a disk: as much again stays free, or a tenth of a small disk.
func checkRoom(folder string, need uint64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(folder, &fs); err != nil {
		return fmt.Errorf("%s: %w", folder, err)
	}
	block := uint64(fs.Bsize)
	if free, room := fs.Bavail*block, roomFor(need, fs.Blocks*block); free < room {
		return fmt.Errorf("%s: %d bytes are free, expected %d for a file of %d", folder, free, room, need)
	}
	return nil
}

// roomFor returns the bytes that must be free, on a disk of the given size, to write need bytes.
func roomFor(need, disk uint64) uint64 { return need + min(need, disk/10) }

// removeOthers removes the files of a name with another key than that of the path kept.
func removeOthers(folder, kept, name, suffix string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(folder, e.Name())
		if rest, ok := strings.CutPrefix(e.Name(), name+"-"); ok && path != kept && isKey(rest, suffix) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// isKey says whether what follows a name is a key: "int8" must not take "int8-x" for its own.
func isKey(rest, suffix string) bool {
	hex, ok := strings.CutSuffix(rest, suffix)
	return ok && len(hex) == 16 && strings.Trim(hex, "0123456789abcdef") == ""
}
