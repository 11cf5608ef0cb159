package compute

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/millrace/millrace/compute/numerics"
	"github.com/millrace/millrace/compute/packed"
	"github.com/millrace/millrace/compute/weights"
)

// contentVersion is that of a kept hash: another way to hash, or to decode a quantized
// checkpoint, raises it.
const contentVersion = 3

// settled is how long a file must have been still when it is hashed for its hash to be kept:
// two changes within one tick of a file system's clock leave the same time.
var settled = 2 * time.Second

// content is the hash of the tensors that the program reads.
type content struct {
	sum  string
	key  packed.Key // under which it is kept
	read bool       // the tensors were read for it
	keep bool       // and their files are settled
}

// hashContent hashes the tensors, or takes the hash that an earlier start has kept of the same
// files.
func (m *Model) hashContent() (c content, err error) {
	if c.key, err = m.contentKey(); err != nil {
		return c, err
	}
	if !m.options.NoPacked {
		for _, folder := range m.packedFolders() {
			if c.sum = packed.Sum(folder, m.contentName(), c.key); c.sum != "" {
				return c, nil
			}
		}
	}
	begin := time.Now()
	if c.sum, err = numerics.Content(m.tensors(), m.checkpoint); err != nil {
		return c, err
	}
	c.read = true
	c.keep = m.checkpoint.Unchanged()
	for _, s := range m.checkpoint.Stamps() {
		c.keep = c.keep && begin.Sub(time.Unix(0, s.Changed)) >= settled
	}
	return c, nil
}

// contentKey hashes the files as they were opened, and what of them is read.
func (m *Model) contentKey() (packed.Key, error) {
	stamps := m.checkpoint.Stamps()
	for i := range stamps {
		stamps[i].Path = filepath.Base(stamps[i].Path)
	}
	raw, err := json.Marshal(struct {
		Version int
		Files   []weights.Stamp
		Tensors any
	}{contentVersion, stamps, m.Program.Tensors})
	return sha256.Sum256(raw), err
}

// contentName differs between models that share a folder of packed weights.
func (m *Model) contentName() string {
	dir := m.options.Dir
	if absolute, err := filepath.Abs(dir); err == nil {
		dir = absolute
	}
	return fmt.Sprintf("%s-%x", m.baseName(), sha256.Sum256([]byte(dir)))[:len(m.baseName())+9]
}

// keepContent keeps the hash for the next start, where reading the tensors takes a while.
func (m *Model) keepContent() error {
	size := int64(0)
	for _, s := range m.checkpoint.Stamps() {
		size += s.Bytes
	}
	if !m.content.keep || size < int64(leastPacked) {
		return nil
	}
	var errs []error
	for _, folder := range m.packedFolders() {
		err := packed.WriteSum(folder, m.contentName(), m.content.key, m.content.sum)
		if err == nil {
			m.content.keep = false
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// tensors are those that the program reads, whose data may not be there. One that is missing is load's to report.
func (m *Model) tensors() []weights.Tensor {
	var all []weights.Tensor
	for _, t := range m.Program.Tensors {
		if found, ok := m.checkpoint.Reserved(t.Name); ok {
			all = append(all, found)
		}
	}
	return all
}
