// Package kvfile keeps KV pools in files on tmpfs, so that keys and values outlive a process that is killed: others on the same
// host copy the slabs of the sequences that they continue.
//
// A file is locked by its owner. One without an owner is left of a process that died. It must not know what reads slabs, or
// when their contents are complete: see docs/decisions/adoption.md.
package kvfile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/kvmgr/chain"
)

const suffix = ".kv"

// ErrNoRoom is a directory with too little free space for a pool.
var ErrNoRoom = errors.New("kvfile: too little free space")

// Dir is a directory with the pools of this host. Several goroutines may use it.
type Dir struct {
	path string
	warn func(error)

	mu   sync.Mutex
	dead map[string]*Dead // by path
}

// Open opens a directory for this user alone, and makes it if it is not there. warn gets the errors of files, later.
func Open(path string, warn func(error)) (*Dir, error) {
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return nil, fmt.Errorf("kvfile: %s: %w", path, err)
	}
	if err := owned(&s, unix.S_IFDIR); err != nil {
		return nil, fmt.Errorf("%w: %s", err, path)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return nil, fmt.Errorf("kvfile: %s: %w", path, err)
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("kvfile: %s is not on tmpfs: the KV cache would be written to a disk", path)
	}
	d := &Dir{path: path, warn: warn, dead: make(map[string]*Dead)}
	d.look()
	return d, nil
}

// Create makes the file of a pool, locked. It appears in the directory with its lock. Errors: ErrNoRoom.
func (d *Dir) Create(slabs, slabBytes int) (*File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	dir, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }() // nothing was written
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("kvfile: %s: %w", d.path, err)
	}
	shape := shape{slabs, slabBytes}
	if err := d.room(shape.bytes()); err != nil {
		return nil, err
	}
	fd, err := unix.Open(d.path, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("kvfile: %s: %w", d.path, err)
	}
	f := &File{file: os.NewFile(uintptr(fd), d.path), path: filepath.Join(d.path, rand.Text()+suffix), shape: shape, warn: d.warn}
	if err := f.begin(); err != nil {
		_ = f.file.Close() // it has no name
		return nil, fmt.Errorf("kvfile: %s: %w", d.path, err)
	}
	return f, nil
}

func (f *File) begin() error {
	fd := int(f.file.Fd())
	if err := unix.Ftruncate(fd, f.shape.bytes()); err != nil {
		return err
	}
	if err := unix.Fallocate(fd, 0, 0, f.shape.begin()); err != nil { // the table never lacks room; the slabs' owner allocates them
		return err
	}
	if err := lock(f.file, unix.LOCK_EX); err != nil {
		return err
	}
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, f.path, unix.AT_SYMLINK_FOLLOW)
}

// room says whether a pool fits beside the others, which may not have allocated all of theirs yet.
func (d *Dir) room(need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(d.path, &fs); err != nil {
		return fmt.Errorf("kvfile: %s: %w", d.path, err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	for _, path := range d.list() {
		var s unix.Stat_t
		if unix.Lstat(path, &s) == nil {
			free -= max(0, s.Size-s.Blocks*512)
		}
	}
	if need > free {
		return fmt.Errorf("%w: %s has %d MiB, a pool needs %d MiB", ErrNoRoom, d.path, max(0, free)>>20, need>>20)
	}
	return nil
}

func (d *Dir) list() (paths []string) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil // it is gone, and so are its pools
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) {
			paths = append(paths, filepath.Join(d.path, e.Name()))
		}
	}
	return paths
}

// look finds the pools without owners.
func (d *Dir) look() {
	there := make(map[string]bool)
	for _, path := range d.list() {
		there[path] = true
		if d.dead[path] == nil {
			if dead, err := openDead(path); err == nil {
				d.dead[path] = dead
			}
		}
	}
	for path, dead := range d.dead {
		if !there[path] {
			d.forget(dead)
		}
	}
}

func (d *Dir) forget(dead *Dead) {
	dead.close()
	delete(d.dead, dead.path)
}

// Dead returns the pool that a process left; nil without.
func (d *Dir) Dead(node, slabsOf string) *Dead {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	for _, dead := range d.dead {
		if dead.Node == node && dead.SlabsOf == slabsOf && slabsOf != "" {
			return dead
		}
	}
	return nil
}

// Left says whether there are pools without an owner, as far as it is known since the last Sweep.
func (d *Dir) Left() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.dead) > 0
}

// Longest returns the pool of a dead process that has the most slabs of a prefix, from its first one on, and their number.
func (d *Dir) Longest(slabsOf string, prefixes []chain.Hash) (longest *Dead, slabs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dead := range d.dead {
		if dead.SlabsOf != slabsOf {
			continue
		}
		if n := dead.run(prefixes); n > slabs {
			longest, slabs = dead, n
		}
	}
	return longest, slabs
}

// Sweep removes the pools without an owner that were written to last some time ago.
func (d *Dir) Sweep(now time.Time, after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	for _, dead := range d.dead {
		if now.Sub(dead.since) >= after {
			_ = os.Remove(dead.path) // another process may have
			d.forget(dead)
		}
	}
}

// Unowned returns the bytes of memory that pools without owners take.
func (d *Dir) Unowned() (bytes uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	for path := range d.dead {
		var s unix.Stat_t
		if unix.Lstat(path, &s) == nil {
			bytes += uint64(s.Blocks) * 512
		}
	}
	return bytes
}

// Close forgets what Dead returned. If no pool has an owner, nobody continues with them, and they are removed.
func (d *Dir) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.look()
	last := len(d.list()) == len(d.dead)
	for _, dead := range d.dead {
		if last {
			_ = os.Remove(dead.path) // another process may have
		}
		d.forget(dead)
	}
}
