package compute

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/packed"
	"github.com/millrace/millrace/compute/weights"
)

// leastPacked is the size, in bytes, of weights that are worth a file: smaller ones are packed
// while a file is looked for.
var leastPacked = 64 << 20

// packedKey hashes what packed weights depend on: kernels, device, program, and the content
// of the tensors.
func (m *Model) packedKey() (key packed.Key, name string, err error) {
	info, err := m.Device.Info()
	if err != nil {
		return key, "", err
	}
	what := struct {
		Kernels, Backend, ISA string
		Program               any
		Content               string
	}{device.KernelsID, info.Backend, info.ISA, m.Program, m.content.sum}
	raw, err := json.Marshal(what)
	if err != nil {
		return key, "", err
	}
	return sha256.Sum256(raw), fmt.Sprintf("%s-%s-%s", m.baseName(), info.ISA, m.options.Weights), nil
}

// baseName is what the files that are kept of the model begin with.
func (m *Model) baseName() string {
	if weights.IsGGUF(m.options.Dir) {
		return filepath.Base(m.options.Dir)
	}
	return "model"
}

// packedFolders are where a model's packed weights may lie, the one to write to first:
// PackedDir, or beside the checkpoint, and the user's cache for a folder that is not ours.
func (m *Model) packedFolders() []string {
	if m.options.PackedDir != "" {
		return []string{m.options.PackedDir}
	}
	dir := m.options.Dir
	if weights.IsGGUF(dir) {
		dir = filepath.Dir(dir)
	}
	folders := []string{filepath.Join(dir, ".millrace")}
	if cache, err := os.UserCacheDir(); err == nil {
		if absolute, err := filepath.Abs(m.options.Dir); err == nil {
			folders = append(folders, filepath.Join(cache, "millrace", "packed", fmt.Sprintf("%x", sha256.Sum256([]byte(absolute)))[:16]))
		}
	}
	return folders
}

// openPacked maps the weights that an earlier start has packed; nil where there are none. Ranks pack theirs at each start: the pages of a
// file would not be of their NUMA nodes.
func (m *Model) openPacked() (*packed.File, error) {
	if m.options.NoPacked || device.KernelsID == "" || m.Device.Ranks() > 1 {
		return nil, nil
	}
	key, name, err := m.packedKey()
	if err != nil {
		return nil, err
	}
	info, err := m.Device.Info()
	if err != nil {
		return nil, err
	}
	for _, folder := range m.packedFolders() {
		f, err := packed.Open(packed.Path(folder, name, key), key, uint64(packedShare*float64(info.MemoryAvailable)))
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, packed.ErrStale) && !errors.Is(err, fs.ErrPermission) {
			return f, err
		}
	}
	return nil, nil
}

// loadEngine loads the program with the weights of a file, or packs them.
func (m *Model) loadEngine() (err error) {
	if m.packed, err = m.openPacked(); err != nil {
		return err
	}
	limits := device.Limits{MaxRows: m.options.MaxRows, MaxOutputs: m.options.MaxOutputs, MaxHidden: m.options.MaxHidden}
	m.engine, err = m.Device.LoadPacked(m.Program, m.checkpoint, limits, m.packedBytes())
	if m.packed == nil || !errors.Is(err, device.ErrInvalid) {
		return err
	}
	// The file has the layout of another machine. The next StorePacked replaces it.
	if err := m.closePacked(); err != nil {
		return err
	}
	m.engine, err = m.Device.Load(m.Program, m.checkpoint, limits)
	return err
}

func (m *Model) closePacked() error {
	if m.packed == nil {
		return nil
	}
	f := m.packed
	m.packed = nil
	return f.Close()
}

// packedBytes are the mapped weights; nil where there are none.
func (m *Model) packedBytes() []byte {
	if m.packed == nil {
		return nil
	}
	return m.packed.Bytes()
}

// pageCache is the size, in bytes, of weights that the kernel counts as available memory.
func (m *Model) pageCache() uint64 {
	if m.packed == nil || m.packed.Copied() {
		return 0
	}
	return uint64(len(m.packed.Bytes()))
}

// StorePacked writes the packed weights to a file that a later Open maps instead of packing
// them, and returns its path: "" where it is there, or not worth it, or the backend has none
// to give. The hash of the checkpoint's content is kept beside it, so that a later Open need not
// read the checkpoint. It may run beside Run; Close and Reload wait for it, unless ctx ends.
func (m *Model) StorePacked(ctx context.Context) (path string, err error) {
	m.unloading.RLock()
	defer m.unloading.RUnlock()
	if m.engine == nil || m.options.NoPacked {
		return "", nil
	}
	if err := m.keepContent(); err != nil {
		return "", err
	}
	if m.packed != nil || device.KernelsID == "" {
		return "", nil
	}
	spans, err := m.engine.Packed()
	if err != nil || size(spans) < leastPacked {
		return "", err
	}
	key, name, err := m.packedKey()
	if err != nil {
		return "", err
	}
	var errs []error
	for _, folder := range m.packedFolders() {
		err := packed.Write(folder, name, key, spans, ctx.Err)
		if err == nil {
			return packed.Path(folder, name, key), nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return "", errors.Join(errs...)
}

func size(spans [][]byte) (bytes int) {
	for _, s := range spans {
		bytes += len(s)
	}
	return bytes
}
