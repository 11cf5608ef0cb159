package weights

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute/mapped"
)

const (
	singleFile = "model.safetensors"
	indexFile  = "model.safetensors.index.json"
	configFile = "config.json"
)

// forms are the files that a folder's weights are looked for in: one file, or shards with an index.
var forms = [][2]string{{singleFile, indexFile}, {torchFile, torchIndexFile}}

// Checkpoint is the tensors of a model directory, mapped read-only. It is
// safe for concurrent use until Close. A file that is cut short while it is
// mapped ends the process when a page that is gone is read, see package mapped.
type Checkpoint struct {
	dir      string
	mappings [][]byte
	tensors  map[string]Tensor
	stamps   []Stamp

	derived map[string]*derived
	memory  [][]byte // of the derived tensors
}

// Open maps model.safetensors, or the shards of model.safetensors.index.json,
// of a directory and checks every header; where there are none, it maps
// pytorch_model.bin or its shards. Quantized layers, by its config.json, are
// there as the matrices that they stand for.
// Faults of the files are *FormatError.
func Open(path string) (*Checkpoint, error) {
	c := &Checkpoint{dir: path, tensors: map[string]Tensor{}}
	c.stamp(filepath.Join(path, configFile))
	err := c.open()
	if err == nil {
		err = c.deriveQuantized()
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// OpenFile is Open for a single file of weights: one of torch.save if its name ends in .bin, else safetensors.
func OpenFile(path string) (*Checkpoint, error) {
	c := &Checkpoint{dir: filepath.Dir(path)}
	var err error
	if c.tensors, err = c.mapFile(filepath.Base(path)); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Exist says whether a directory holds a checkpoint, be it a faulty one, or a
// path names one.
func Exist(dir string) bool {
	if IsGGUF(dir) {
		return true
	}
	return filesOf(dir) != ""
}

// filesOf is the first of the files in forms that a directory has; "" for none.
func filesOf(dir string) string {
	for _, form := range forms {
		for _, name := range form {
			if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
				return name
			}
		}
	}
	return ""
}

// Format is the format of the weights at a model's path: "gguf", "pytorch" or "safetensors", also where there are none.
func Format(path string) string {
	switch name := filesOf(path); {
	case IsGGUF(path):
		return "gguf"
	case name == torchFile, name == torchIndexFile:
		return "pytorch"
	}
	return "safetensors"
}

func (c *Checkpoint) open() (err error) {
	switch name := filesOf(c.dir); name {
	case singleFile, torchFile:
		c.tensors, err = c.mapFile(name)
		return err
	case indexFile, torchIndexFile:
		c.stamp(filepath.Join(c.dir, name))
		index, err := readIndex(filepath.Join(c.dir, name))
		if err != nil {
			return err
		}
		return c.openShards(name, index)
	}
	return &FormatError{File: c.dir, Found: "no weights" + OtherFiles(c.dir),
		Expected: fmt.Sprintf("%s, %s, %s or %s", singleFile, indexFile, torchFile, torchIndexFile)}
}

// Include adds the tensors of the one file of weights in a folder of the checkpoint's. Its name and a slash come before theirs. Faults of
// the files are *FormatError.
func (c *Checkpoint) Include(folder string) error {
	name := filesOf(filepath.Join(c.dir, folder))
	if name != singleFile && name != torchFile {
		return &FormatError{File: filepath.Join(c.dir, folder), Found: cmp.Or(name, "no weights"),
			Expected: fmt.Sprintf("%s or %s", singleFile, torchFile)}
	}
	tensors, err := c.mapFile(filepath.Join(folder, name))
	for tensor, t := range tensors {
		c.tensors[folder+"/"+tensor] = t
	}
	return err
}

// openShards maps each shard once. The index, of the file of that name, decides which tensors exist.
func (c *Checkpoint) openShards(indexFile string, index map[string]string) error {
	shards := map[string]map[string]Tensor{}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		shard := index[name]
		if shards[shard] == nil {
			tensors, err := c.mapFile(shard)
			if path, ok := errors.AsType[*fs.PathError](err); ok {
				found := fmt.Sprintf("shard %.80s: %v", shard, path.Err)
				if errors.Is(err, fs.ErrNotExist) {
					found = "no file " + shard
				}
				return &FormatError{File: filepath.Join(c.dir, indexFile), Name: name, Found: found, Expected: "the shard it names"}
			}
			if err != nil {
				return err
			}
			shards[shard] = tensors
		}
		t, ok := shards[shard][name]
		if !ok {
			return &FormatError{File: filepath.Join(c.dir, shard), Name: name,
				Found: "no such tensor", Expected: "one, by " + indexFile}
		}
		c.tensors[name] = t
	}
	return nil
}

// readIndex reads {"metadata":..., "weight_map":{tensor: file}}.
func readIndex(path string) (map[string]string, error) {
	raw, err := ReadText(path)
	if err != nil {
		return nil, err
	}
	return parseIndex(path, raw)
}

func parseIndex(path string, raw []byte) (map[string]string, error) {
	index := map[string]string{}
	r := newJSON(raw)
	err := r.object(maxTensors, func(key string) error {
		if key != "weight_map" {
			return r.skip()
		}
		return within(key, r.object(maxIndex, func(name string) (err error) {
			index[name], err = r.text()
			return within(name, err)
		}))
	})
	if err == nil {
		err = r.ends()
	}
	if f, ok := errors.AsType[*FormatError](err); ok {
		f.File = path
		return nil, f
	}
	if err != nil {
		return nil, &FormatError{File: path, Found: JSONFault(err), Expected: `{"weight_map":{tensor: file}}`}
	}
	if len(index) == 0 {
		return nil, &FormatError{File: path, Name: "weight_map", Found: "no entry", Expected: "a file for each tensor"}
	}
	for name, shard := range index {
		// A shard lies beside its index: a path could name any file of the machine.
		if shard == "" || shard == "." || shard == ".." || filepath.Base(shard) != shard {
			return nil, &FormatError{File: path, Name: name, Found: fmt.Sprintf("shard %q", shard),
				Expected: "the name of a file in the same directory"}
		}
	}
	return index, nil
}

// mapFile maps one file of weights and reads where its tensors are.
func (c *Checkpoint) mapFile(name string) (map[string]Tensor, error) {
	path := filepath.Join(c.dir, name)
	mapping, err := c.mapBytes(path, lengthBytes)
	if err != nil {
		return nil, err
	}
	var tensors map[string]Tensor
	if isTorch(name) {
		tensors, err = c.torchTensors(mapping)
	} else {
		tensors, err = parseHeader(mapping)
	}
	if err != nil {
		return nil, in(path, err)
	}
	for name, t := range tensors {
		t.File = path
		tensors[name] = t
	}
	return tensors, nil
}

// in fills in the file of a fault.
func in(path string, err error) error {
	if format, ok := errors.AsType[*FormatError](err); ok {
		format.File = path
	}
	return err
}

// mapBytes maps a file that has a header of at least the given number of bytes.
func (c *Checkpoint) mapBytes(path string, least int64) ([]byte, error) {
	f, info, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() < least { // nothing can be mapped from an empty file
		return nil, &FormatError{File: path, Found: fmt.Sprintf("%d bytes", info.Size()),
			Expected: fmt.Sprintf("%d bytes of header length or more", least)}
	}
	mapping, err := mapped.File(f, path, info.Size(), unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	c.mappings, c.stamps = append(c.mappings, mapping), append(c.stamps, stampOf(path, info))
	if isPointer(mapping) {
		return nil, pointerFault(path)
	}
	return mapping, nil
}

// Tensor returns a tensor by its name. A tensor of a type that no op reads
// (DType Other) is found too: only its use is an error. The data of a quantized
// tensor is made by the first call, which takes a while, and stays.
func (c *Checkpoint) Tensor(name string) (Tensor, bool) {
	c.Use([]string{name})
	return c.Reserved(name)
}

// Reserved is Tensor without making the data of a quantized tensor: only its addresses. Call Use before you read there.
func (c *Checkpoint) Reserved(name string) (Tensor, bool) {
	if d, ok := c.derived[name]; ok {
		return d.Tensor, true
	}
	t, ok := c.tensors[name]
	return t, ok
}

// Describe is Tensor without the data.
func (c *Checkpoint) Describe(name string) (Tensor, bool) {
	t, ok := c.Reserved(name)
	t.Data = nil
	return t, ok
}

// Names returns the names of all tensors, sorted.
func (c *Checkpoint) Names() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range c.tensors {
			if _, twice := c.derived[name]; !twice && !yield(name) {
				return
			}
		}
		for name := range c.derived {
			if !yield(name) {
				return
			}
		}
	})
}

// Bytes is the size of all tensors' data in the files.
func (c *Checkpoint) Bytes() int64 {
	var sum int64
	for _, t := range c.tensors {
		sum += int64(len(t.Data))
	}
	return sum
}

// Release gives the mapped pages back to the kernel, for example once a backend
// has packed them. The tensors stay valid: a later read takes the
// pages from the file again. The data of quantized tensors stays in memory, but for Forget.
func (c *Checkpoint) Release() error {
	for _, m := range c.mappings {
		if err := unix.Madvise(m, unix.MADV_DONTNEED); err != nil {
			return fmt.Errorf("%s: release %d bytes: %w", c.dir, len(m), err)
		}
	}
	return nil
}

// Use makes the data of quantized and otherwise derived tensors of these names. It stays until Forget has been called as often as Use and
// Tensor.
func (c *Checkpoint) Use(names []string) {
	for _, name := range names {
		if d, ok := c.derived[name]; ok {
			d.use()
		}
	}
}

// Forget ends a Use. The memory of data that nobody uses is given back: it is zero until the next Use.
func (c *Checkpoint) Forget(names []string) error {
	for _, name := range names {
		if d, ok := c.derived[name]; ok {
			if err := d.forget(); err != nil {
				return fmt.Errorf("%s: release %s: %w", c.dir, name, err)
			}
		}
	}
	return nil
}

// unmap unmaps the files.
func (c *Checkpoint) unmap() error {
	var errs []error
	for _, m := range c.mappings {
		errs = append(errs, mapped.Unmap(m))
	}
	c.mappings = nil
	return errors.Join(errs...)
}

// Close unmaps the files; no Data slice may be read after that.
func (c *Checkpoint) Close() error {
	errs := []error{c.unmap()}
	for _, m := range c.memory {
		errs = append(errs, unix.Munmap(m))
	}
	c.memory, c.tensors, c.derived = nil, nil, nil
	return errors.Join(errs...)
}
