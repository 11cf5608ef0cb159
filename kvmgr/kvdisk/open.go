package kvdisk

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// mostFiles bounds the processes that keep slabs of one identity in a directory.
const mostFiles = 64

// Config of a store.
type Config struct {
	Dir        string
	Size       int64  // largest size of the file, in bytes
	SlabBytes  int    //
	SlabTokens int    //
	StateSlabs int    // of the state after a prefix; 0: none is kept
	Identity   string // what the bytes of slabs depend on besides tokens: another one has a file of its own
	TTL        time.Duration
	Now        func() time.Time // nil: time.Now
}

// Open returns the store of a process. It makes the directory (mode 0700) and the file (mode 0600) where they are missing, and
// removes files that nobody has open and whose slabs have all expired. The file belongs to one process: another one
// gets a file of its own. A file that is damaged loses the slabs whose headers are.
func Open(cfg Config) (*Store, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := layoutOf(cfg.Size, cfg.SlabBytes, cfg.SlabTokens)
	if l.slots < 1 {
		return nil, fmt.Errorf("kvdisk: %d bytes hold no slab of %d bytes", cfg.Size, cfg.SlabBytes)
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("kvdisk: %w", err)
	}
	removeOld(cfg.Dir, cfg.Now().Add(-cfg.TTL))
	f, err := lockedFile(cfg)
	if err != nil {
		return nil, err
	}
	s := &Store{file: f, now: cfg.Now, layout: l, index: newIndex(l.slots, cfg.StateSlabs, int64(cfg.TTL/time.Second))}
	if err := s.load(f, cfg.Identity); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

// lockedFile opens the first file of an identity that no other process has.
func lockedFile(cfg Config) (*os.File, error) {
	id := sha256.Sum256(fmt.Appendf(nil, "%s %d %d", cfg.Identity, cfg.SlabBytes, cfg.SlabTokens))
	for i := range mostFiles {
		f, err := os.OpenFile(filepath.Join(cfg.Dir, fmt.Sprintf("%x-%d.kv", id[:8], i)), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, fmt.Errorf("kvdisk: %w", err)
		}
		if lock(f) == nil {
			return f, nil
		}
		f.Close() //nolint:errcheck // nothing was written
	}
	return nil, fmt.Errorf("kvdisk: %d processes keep slabs in %s, expected fewer", mostFiles, cfg.Dir)
}

// lock makes a file this process's until it is closed or the process ends.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// removeOld removes files that were not written since a time and that no process has.
func removeOld(dir string, since time.Time) {
	names, _ := filepath.Glob(filepath.Join(dir, "*-*.kv")) // the pattern is right
	for _, name := range names {
		f, err := os.OpenFile(name, os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.ModTime().Before(since) && lock(f) == nil {
			os.Remove(name) //nolint:errcheck // it stays, and is tried again
		}
		f.Close() //nolint:errcheck // nothing was written
	}
}

// load reads the headers of a file, or makes it anew where it is not of the store's identity and layout.
func (s *Store) load(f *os.File, identity string) error {
	if err := f.Chmod(0o600); err != nil {
		return fmt.Errorf("kvdisk: %w", err)
	}
	want, got := s.layout.encode(identity), make([]byte, page)
	if n, err := f.ReadAt(got, 0); err != nil && err != io.EOF || !bytes.Equal(got[:n], want) {
		return s.format(f, want)
	}
	headers := make([]byte, s.layout.slots*s.layout.headerSize())
	n, err := f.ReadAt(headers, page)
	if err != nil && err != io.EOF {
		return s.format(f, want)
	}
	clear(headers[n:])
	s.fill(headers)
	return nil
}

// format empties a file. Without room for its first page the store is empty and full, see Write.
func (s *Store) format(f *os.File, first []byte) error {
	if err := f.Truncate(0); err != nil {
		return fmt.Errorf("kvdisk: %w", err)
	}
	if _, err := f.WriteAt(first, 0); err != nil && !errors.Is(err, syscall.ENOSPC) {
		return fmt.Errorf("kvdisk: %w", err)
	}
	return nil
}

// fill makes the index from the headers.
func (s *Store) fill(headers []byte) {
	type slot struct {
		header
		n int
	}
	var found []slot
	size := s.layout.headerSize()
	for i := range s.layout.slots {
		if h, ok := decodeHeader(headers[i*size:][:size]); ok {
			found = append(found, slot{h, i})
		}
	}
	slices.SortStableFunc(found, func(a, b slot) int { return int(min(max(a.used-b.used, -1), 1)) })
	x, now, used := s.index, s.now().Unix(), make([]bool, s.layout.slots)
	for _, h := range found {
		if h.state() < x.stateSlabs && x.slot(h.Block) < 0 && h.used <= now { // a time to come is a clock that was set back
			x.add(h.Block, h.n, h.used)
			used[h.n] = true
		}
	}
	x.free = slices.DeleteFunc(x.free, func(n int) bool { return used[n] })
}
