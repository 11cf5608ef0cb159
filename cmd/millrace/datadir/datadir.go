// Package datadir gives one process at a time the folder of its data: two servers that write one JetStream store destroy it. It must not
// know what the folder contains.
package datadir

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockFile is the file in the folder that its process has locked. It stays when the process ends: a file that is removed could be locked
// twice.
const lockFile = "lock"

// Holder is the process that holds a folder.
type Holder struct {
	PID   int       `json:"pid"`
	Host  string    `json:"host"`
	HTTP  string    `json:"http"` // address
	NATS  string    `json:"nats"` // address
	Since time.Time `json:"since"`
}

// String names the process for an error. A process that has just locked the folder may not have written its name yet.
func (h *Holder) String() string {
	if h == nil || h.PID == 0 {
		return "another process"
	}
	at := ""
	if host, err := os.Hostname(); err != nil || host != h.Host {
		at = " on " + h.Host
	}
	return fmt.Sprintf("process %d%s (HTTP %s, NATS %s, since %s)", h.PID, at, h.HTTP, h.NATS, h.Since.Local().Format(time.DateTime))
}

// HeldError is the error for a folder that another process holds.
type HeldError struct {
	Path   string
	Holder Holder
}

func (e *HeldError) Error() string { return fmt.Sprintf("%s is held by %s", e.Path, &e.Holder) }

// Dir is a folder that this process holds.
type Dir struct {
	Path  string
	Loose bool // the file system has no locks: another process may use the folder too
	me    Holder
	file  *os.File
}

// Lock creates a folder if it is missing and takes it for me. If another process holds it, Lock tries again until the patience is over: a
// process that was killed holds it until the system has freed its memory. The error is then a *HeldError.
func Lock(ctx context.Context, path string, me Holder, patience time.Duration) (*Dir, error) {
	const again = 20 * time.Millisecond
	end := time.Now().Add(patience)
	for {
		d, err := try(path, me)
		var held *HeldError
		if !errors.As(err, &held) || time.Now().After(end) {
			return d, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(again):
		}
	}
}

func try(path string, me Holder) (*Dir, error) {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	d := &Dir{Path: path, me: me, file: f}
	err = flock(f)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(&HeldError{Path: path, Holder: read(f)}, f.Close())
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.ENOSYS):
		d.Loose = true
	case err != nil:
		return nil, errors.Join(fmt.Errorf("%s: lock: %w", f.Name(), err), f.Close())
	}
	if err := d.write(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return d, nil
}

// flock locks a file for its open description: the system releases it when the process ends, however it ends.
func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Serves records the address of the NATS server, which may have been any free port, for other processes.
func (d *Dir) Serves(nats string) error {
	d.me.NATS = nats
	return d.write()
}

// write replaces what the file says of its holder. A reader may find a part of it.
func (d *Dir) write() error {
	d.me.PID, d.me.Since = os.Getpid(), time.Now().Truncate(time.Second)
	d.me.Host, _ = os.Hostname() // empty without one
	text, err := json.Marshal(d.me)
	if err != nil {
		return err
	}
	if err := d.file.Truncate(0); err != nil {
		return err
	}
	_, err = d.file.WriteAt(append(text, '\n'), 0)
	return err
}

// read returns the holder that the file names, a zero one if it is not whole.
func read(f *os.File) (h Holder) {
	const most = 4 << 10
	text := make([]byte, most)
	n, _ := f.ReadAt(text, 0) // ends with io.EOF
	if json.Unmarshal(text[:n], &h) != nil {
		return Holder{}
	}
	return h
}

// Close gives the folder back.
func (d *Dir) Close() error { return d.file.Close() }

// HolderOf returns the process that holds a folder, nil if none does.
func HolderOf(path string) *Holder {
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	if !errors.Is(flock(f), unix.EWOULDBLOCK) {
		return nil // closing the file gives the lock back
	}
	h := read(f)
	return &h
}

// mostOwn is the number of folders that servers with one port may have.
const mostOwn = 16

// Own is Lock for a folder that the user did not name. If another process holds it, the server gets a folder of its own beside it, with its
// port in the name, which it keeps at later starts.
func Own(ctx context.Context, path, port string, me Holder, patience time.Duration) (*Dir, error) {
	own := path + "-" + port
	candidates := []string{path, own}
	if _, err := os.Stat(own); !errors.Is(err, fs.ErrNotExist) {
		candidates = candidates[1:] // its data is there
	}
	for n := 2; n <= mostOwn; n++ {
		candidates = append(candidates, fmt.Sprintf("%s-%d", own, n))
	}
	var first error
	for _, one := range candidates {
		d, err := Lock(ctx, one, me, patience)
		var held *HeldError
		if !errors.As(err, &held) || ctx.Err() != nil {
			return d, err
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}
