package compute

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/compute/device"
)

// slabFile is the memory of a pool whose slabs are committed by their user: a file on tmpfs.
type slabFile struct {
	file      *os.File // nil: the file is a kvfile.File's
	fd        int
	offset    int64  // of the first slab
	committed []bool // [slabs], kept over a Reload
}

// CommittedSlabs is the number of slabs that have memory once the model is open, the first ones. Users commit the others before they map or
// write them. 0: slabs have memory from their first use on.
func (m *Model) CommittedSlabs() int {
	if m.memory == nil {
		return 0
	}
	return m.startSlabs()
}

// startSlabs is the number of slabs of KVStart.
func (m *Model) startSlabs() int {
	return min(m.slabs, max(m.engine.Slabs(1), int(uint64(m.options.KVStart)/m.engine.Info().SlabBytes)))
}

// CommitSlabs gives n slabs from first on memory. It may be called beside Run. Error: the system has none, and some may have got theirs.
func (m *Model) CommitSlabs(first int32, n int) error {
	return m.allocate(first, n, true, unix.FALLOC_FL_KEEP_SIZE)
}

// DiscardSlabs takes the memory of n slabs from first on, which no region has, and their contents with it. It may be called beside Run.
func (m *Model) DiscardSlabs(first int32, n int) error {
	return m.allocate(first, n, false, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE)
}

func (m *Model) allocate(first int32, n int, committed bool, mode uint32) error {
	m.loading.RLock()
	defer m.loading.RUnlock()
	f := m.memory
	if f == nil || m.engine == nil {
		return fmt.Errorf("memory of slabs: %w: no program is loaded", device.ErrDevice)
	}
	if first < 0 || n < 1 || int(first) > m.slabs-n {
		return fmt.Errorf("memory of %d slabs from %d on: %w: the pool has %d", n, first, device.ErrInvalid, m.slabs)
	}
	if err := f.allocate(first, n, m.slabBytes, mode); err != nil {
		return err
	}
	f.note(first, n, committed)
	return nil
}

func (f *slabFile) note(first int32, n int, committed bool) {
	for i := range n {
		f.committed[int(first)+i] = committed
	}
}

func (f *slabFile) allocate(first int32, n, slabBytes int, mode uint32) error {
	for {
		err := unix.Fallocate(f.fd, mode, f.offset+int64(first)*int64(slabBytes), int64(n)*int64(slabBytes))
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("%w: %d KV slabs of %d bytes: %w", device.ErrNoMemory, n, slabBytes, err)
		}
	}
}

// leftOnDevice is the memory of a device of its own that a pool may take, in bytes: all that is available but a tenth of its memory, as
// plan counts. The tenth is for the driver, and for what the first launch of a kernel takes. A device that does not report what is
// available says that all is, and then the memory of the program is subtracted.
func leftOnDevice(available, total, used uint64) uint64 {
	if available >= total {
		available = total - min(total, used)
	}
	return available - min(available, total/10)
}

// FreeMemory returns the bytes that the machine, or this process's group on it, has available now and in all.
func (m *Model) FreeMemory() (available, total uint64, err error) {
	m.loading.RLock()
	defer m.loading.RUnlock()
	if m.Device == nil {
		return 0, 0, fmt.Errorf("free memory: %w: no device is open", device.ErrDevice)
	}
	info, err := m.Device.Info()
	return info.MemoryAvailable, info.MemoryTotal, err
}

// reserveSlabs makes the pool of a file whose slabs are committed one by one, and commits the first ones, or those that had memory before a
// Reload. Error: as of device.Engine.ReserveKVFile.
func (m *Model) reserveSlabs(f *slabFile) error {
	if m.memory != nil {
		f.committed = m.memory.committed
	} else {
		f.committed = make([]bool, m.slabs)
		f.note(0, m.startSlabs(), true)
	}
	// before the engine has the file: there may be another one
	if err := f.each(m.slabs, true, m.slabBytes, unix.FALLOC_FL_KEEP_SIZE); err != nil {
		return err
	}
	if err := m.engine.ReserveKVFile(m.slabs, uintptr(f.fd), f.offset); err != nil {
		return err
	}
	if m.early != nil {
		if err := m.early.ReserveKVFile(m.slabs, uintptr(f.fd), f.offset); err != nil {
			return err
		}
	}
	m.memory = f
	return nil
}

// each allocates those of the first slabs that are committed, or those that are not.
func (f *slabFile) each(slabs int, committed bool, slabBytes int, mode uint32) error {
	for first := 0; first < slabs; {
		n := 1
		for first+n < slabs && f.committed[first+n] == f.committed[first] {
			n++
		}
		if f.committed[first] == committed {
			if err := f.allocate(int32(first), n, slabBytes, mode); err != nil {
				return err
			}
		}
		first += n
	}
	return nil
}

// withMemory gives the first slabs memory while something runs.
func (m *Model) withMemory(slabs int, run func() error) error {
	f := m.memory
	if f == nil {
		return run()
	}
	if err := f.each(slabs, false, m.slabBytes, unix.FALLOC_FL_KEEP_SIZE); err != nil {
		return err
	}
	err := run()
	return errors.Join(err, f.each(slabs, false, m.slabBytes, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE))
}

// anonymous returns a file of some bytes that ends with the process.
func anonymous(bytes int64) (*slabFile, error) {
	fd, err := unix.MemfdCreate("millrace-kv", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%w: memory file: %w", device.ErrDevice, err)
	}
	f := &slabFile{file: os.NewFile(uintptr(fd), "millrace-kv"), fd: fd}
	if err := unix.Ftruncate(fd, bytes); err != nil {
		f.close()
		return nil, fmt.Errorf("%w: memory file of %d bytes: %w", device.ErrNoMemory, bytes, err)
	}
	return f, nil
}

// close closes the file, unless it is a kvfile.File's.
func (f *slabFile) close() {
	if f != nil && f.file != nil {
		_ = f.file.Close() // nobody reads it
		f.file = nil
	}
}
