package hub

import (
	"context"
	"crypto/sha1" //nolint:gosec // git's name of a blob, which the hub gives for small files
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Store is a folder of models: one folder each, owner/name, with a record of what it is. A model that is being downloaded has a
// folder of another name, so what is listed is whole.
type Store struct{ Dir string }

const (
	recordFile = ".millrace.json"
	configFile = "config.json"
	partial    = ".partial" // after the name of the folder of a model that is not whole
)

// DefaultStore returns the store of the user: $XDG_DATA_HOME/millrace/models, by default ~/.local/share/millrace/models.
func DefaultStore() (Store, error) {
	data := os.Getenv("XDG_DATA_HOME")
	if data == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return Store{}, err
		}
		data = filepath.Join(home, ".local", "share")
	}
	return Store{filepath.Join(data, "millrace", "models")}, nil
}

// Model is a model of a store.
type Model struct {
	Name     string    `json:"name"`
	Revision string    `json:"revision"` // as it was asked for
	Commit   string    `json:"commit"`
	Pulled   time.Time `json:"pulled"`
	Files    []File    `json:"files"`

	path string
}

// Path returns what --model takes: the folder, or the first GGUF file in it.
func (m *Model) Path() string {
	if len(m.Files) > 0 && strings.HasSuffix(m.Files[0].Name, ".gguf") {
		return filepath.Join(m.path, m.Files[0].Name)
	}
	return m.path
}

// Size returns the bytes of the files.
func (m *Model) Size() (bytes int64) {
	for _, f := range m.Files {
		bytes += f.Size
	}
	return bytes
}

// folder returns the folder of a model. A variant is a part of its name.
func (s Store) folder(n Name) string {
	if n.Variant == "" {
		return filepath.Join(s.Dir, n.Owner, n.Repo)
	}
	return filepath.Join(s.Dir, n.Owner, n.Repo+":"+n.Variant)
}

// Find returns a model of the store. The error is fs.ErrNotExist if it is not there.
func (s Store) Find(n Name) (*Model, error) { return readRecord(s.folder(n)) }

func readRecord(dir string) (*Model, error) {
	body, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return nil, err
	}
	m := &Model{path: dir}
	if err := json.Unmarshal(body, m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, recordFile), err)
	}
	return m, nil
}

// List returns the models of the store by name.
func (s Store) List() ([]*Model, error) {
	dirs, err := filepath.Glob(filepath.Join(s.Dir, "*", "*", recordFile))
	if err != nil {
		return nil, err
	}
	var list []*Model
	for _, record := range dirs {
		if strings.HasSuffix(filepath.Dir(record), partial) {
			continue
		}
		m, err := readRecord(filepath.Dir(record))
		if err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b *Model) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Remove removes a model, whole or not.
func (s Store) Remove(n Name) error {
	dir := s.folder(n)
	found := false
	for _, d := range []string{dir, dir + partial} {
		if _, err := os.Stat(d); err == nil {
			found = true
		}
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	if !found {
		return fmt.Errorf("%s: %w in %s", n, fs.ErrNotExist, s.Dir)
	}
	os.Remove(filepath.Dir(dir)) //nolint:errcheck // it has other models
	return nil
}

// Progress is how far a download is.
type Progress struct {
	File        string
	Done, Total int64 // bytes of all files
}

// Check decides on a model before its weights are downloaded: by the folder with its config.json, or by a file that has the begin of a
// GGUF file.
type Check func(path string) error

// Pull downloads a model, unless the store has that commit. It continues a download that was interrupted, and repeats failed
// requests for some time. An error of check ends it, and nothing is left of the model. report is called often.
func (s Store) Pull(ctx context.Context, h *Hub, n Name, revision string, check Check, report func(Progress)) (*Model, error) {
	snapshot, err := h.Snapshot(ctx, n, revision)
	if err != nil {
		return nil, err
	}
	files, err := Wanted(snapshot.Files, n.Variant)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n, err)
	}
	dir := s.folder(n)
	m := &Model{Name: n.String(), Revision: revision, Commit: snapshot.Commit, Files: files, path: dir}
	if have, err := s.Find(n); err == nil && have.Commit == m.Commit {
		return have, nil
	}
	d := &download{hub: h, name: n, commit: m.Commit, dir: dir + partial, report: report}
	if err := d.prepare(m); err != nil {
		return nil, err
	}
	if err := d.check(ctx, files[0], check); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := d.file(ctx, f); err != nil {
			return nil, err
		}
	}
	m.Pulled = time.Now().UTC().Truncate(time.Second)
	return m, d.finish(m)
}

// download fills the folder of one model.
type download struct {
	hub    *Hub
	name   Name
	commit string
	dir    string
	report func(Progress)

	done, total int64
}

// prepare makes the folder. What another commit left in it is removed.
func (d *download) prepare(m *Model) error {
	if old, err := readRecord(d.dir); err != nil || old.Commit != m.Commit {
		if err := os.RemoveAll(d.dir); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return err
	}
	missing := int64(0)
	for _, f := range m.Files {
		d.total += f.Size
		missing += f.Size - max(size(filepath.Join(d.dir, f.Name)), size(filepath.Join(d.dir, f.Name)+partial))
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(d.dir, &disk); err == nil {
		if free := int64(disk.Bavail) * disk.Bsize; missing > free { //nolint:unconvert // another type on other systems
			return fmt.Errorf("%s: found %d MB of free disk at %s, expected %d MB", d.name, free>>20, d.dir, missing>>20)
		}
	}
	return writeRecord(d.dir, m)
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

func writeRecord(dir string, m *Model) error {
	body, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, recordFile), append(body, '\n'), 0o644)
}

// finish puts the folder in its place.
func (d *download) finish(m *Model) error {
	if err := writeRecord(d.dir, m); err != nil {
		return err
	}
	if err := os.RemoveAll(m.path); err != nil {
		return err
	}
	return os.Rename(d.dir, m.path)
}

// ggufBegin is more than what a GGUF file has before its data: a large vocabulary with its merges has some 20 MB.
const ggufBegin = 32 << 20

// check downloads what decides on a model, and asks whether it is served.
func (d *download) check(ctx context.Context, f File, check Check) error {
	at, most := d.dir, f.Size
	if f.Name != configFile {
		at, most = filepath.Join(d.dir, f.Name)+partial, min(f.Size, ggufBegin)
		if most == f.Size { // it gets its name
			at = filepath.Join(d.dir, f.Name)
		}
	}
	if err := d.upTo(ctx, f, most); err != nil {
		return err
	}
	d.done = 0 // the file is counted later
	if err := check(at); err != nil {
		return errors.Join(err, os.RemoveAll(d.dir))
	}
	return nil
}

const (
	tries     = 6
	firstWait = 500 * time.Millisecond // after a failed try; it doubles
)

// file downloads one file.
func (d *download) file(ctx context.Context, f File) error { return d.upTo(ctx, f, f.Size) }

// upTo downloads the first bytes of a file, of which the next call downloads more. A file that is whole gets its name. A try that
// brought bytes does not count.
func (d *download) upTo(ctx context.Context, f File, most int64) error {
	if !filepath.IsLocal(f.Name) || strings.Contains(f.Name, `\`) {
		return fmt.Errorf("%s: found a file of name %q, expected one in the model's folder", d.name, f.Name)
	}
	path := filepath.Join(d.dir, f.Name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if size(path) == f.Size && f.Size > 0 { // it was checked when it got its name
		d.progress(f, f.Size)
		d.done += f.Size
		return nil
	}
	wait := firstWait
	for try := 1; ; try++ {
		before := size(path + partial)
		err := d.fetch(ctx, f, path+partial, most)
		if err == nil && most < f.Size {
			return nil
		}
		if err == nil {
			d.done += f.Size
			return os.Rename(path+partial, path)
		}
		if size(path+partial) > before {
			try, wait = 0, firstWait
		}
		if try >= tries || errors.Is(err, errRefused) || ctx.Err() != nil {
			return fmt.Errorf("%s: %s: %w; the same command continues the download", d.name, f.Name, err)
		}
		select {
		case <-time.After(wait):
			wait *= 2
		case <-ctx.Done():
		}
	}
}

// errChecksum says that a file differs from the hub's.
var errChecksum = errors.New("the content does not have the hub's checksum")

// fetch downloads what a file lacks of its first bytes, and checks the whole.
func (d *download) fetch(ctx context.Context, f File, path string, most int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // Sync has reported errors
	sum, want := f.sum()
	have, err := io.Copy(sum, file)
	if err != nil {
		return err
	}
	if have > f.Size {
		have = 0
	}
	if have < most || f.Size == 0 {
		if have, err = d.append(ctx, f, file, sum, have, most); err != nil {
			return err
		}
	}
	if most < f.Size && have >= most {
		return file.Sync()
	}
	if got := hex.EncodeToString(sum.Sum(nil)); have != f.Size || want != "" && got != want {
		if err := file.Truncate(0); err != nil {
			return err
		}
		return fmt.Errorf("%w: found %s and %d bytes, expected %s and %d bytes", errChecksum, got, have, want, f.Size)
	}
	return file.Sync()
}

// append adds the rest of a file's first bytes after those that it has, of which sum is the hash.
func (d *download) append(ctx context.Context, f File, file *os.File, sum hash.Hash, from, most int64) (int64, error) {
	resp, err := d.hub.open(ctx, d.name, d.commit, f.Name, from)
	if err != nil {
		return from, err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	if err := statusError(resp, d.name); err != nil {
		return from, err
	}
	if from > 0 && resp.StatusCode != http.StatusPartialContent { // the server sends all of it
		from = 0
		sum.Reset()
		f.begin(sum)
	}
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return from, err
	}
	if err := file.Truncate(from); err != nil {
		return from, err
	}
	limit := most
	if most == f.Size {
		limit++ // a file that is too long has another checksum
	}
	body := &counted{Reader: io.LimitReader(resp.Body, limit-from), ctx: ctx, add: func(n int64) { d.progress(f, n) }, n: from}
	added, err := io.Copy(io.MultiWriter(file, sum), body)
	if err == nil && from+added < most {
		err = io.ErrUnexpectedEOF
	}
	return from + added, err
}

func (d *download) progress(f File, n int64) {
	d.report(Progress{File: f.Name, Done: d.done + n, Total: d.total})
}

// counted reports how many bytes were read.
type counted struct {
	io.Reader
	ctx context.Context //nolint:containedctx // of one copy
	add func(n int64)
	n   int64
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil { // the connection's buffer may have all of a file
		return 0, err
	}
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	c.add(c.n)
	return n, err
}

// sum returns the hash of a file's content and its value, "" if the hub gives none.
func (f *File) sum() (h hash.Hash, want string) {
	if f.SHA256 != "" || f.BlobID == "" {
		return sha256.New(), f.SHA256
	}
	h = sha1.New() //nolint:gosec // git's
	f.begin(h)
	return h, f.BlobID
}

// begin writes what git's hash has before the content.
func (f *File) begin(h hash.Hash) {
	if f.SHA256 == "" && f.BlobID != "" {
		fmt.Fprintf(h, "blob %d\x00", f.Size)
	}
}
