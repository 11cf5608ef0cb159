package compute

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/kvmgr/kvfile"
)

// PoolFile is the file of the pool that the model has now; nil: the pool ends with the process.
func (m *Model) PoolFile() *kvfile.File { return m.file.Load() }

// reserveKV makes the pool: in a file that outlives the process, where that is wanted and can be.
func (m *Model) reserveKV() error {
	pools := m.options.Pools
	if pools == nil {
		return m.reserveAnonymous()
	}
	info, err := m.Device.Info()
	if err != nil {
		return err
	}
	if uint64(m.slabs)*m.engine.Info().SlabBytes > info.MemoryAvailable {
		pools.Sweep(time.Now(), 0) // the pools of the dead leave no room for this one
	}
	err = m.reserveFile(pools)
	if err == nil {
		return nil
	}
	if !errors.Is(err, device.ErrUnsupported) {
		m.options.Warn(fmt.Errorf("the KV cache ends with the process: %w", err))
	}
	return m.reserveAnonymous()
}

// reserveAnonymous makes a pool that ends with the process.
func (m *Model) reserveAnonymous() error {
	if m.options.KVStart > 0 {
		f, err := anonymous(int64(m.slabs) * int64(m.slabBytes))
		if err != nil {
			return err
		}
		if err = m.reserveSlabs(f); err == nil {
			return nil
		}
		f.close()
		if m.early != nil || !errors.Is(err, device.ErrUnsupported) {
			return err
		}
	}
	return m.engine.ReserveKV(m.slabs)
}

func (m *Model) reserveFile(pools *kvfile.Dir) error {
	f, err := pools.Create(m.slabs, m.SlabBytes())
	if err != nil {
		return err
	}
	fd, offset := f.Fd()
	if err := m.reserveSlabs(&slabFile{fd: int(fd), offset: offset}); err != nil {
		f.Close()
		return err
	}
	m.file.Store(f)
	return nil
}

func (m *Model) closePool() {
	m.memory.close()
	if f := m.file.Swap(nil); f != nil {
		f.Close()
	}
}

// unowned is the memory that pools of dead workers take now, and leave soon.
func (m *Model) unowned() uint64 {
	if m.options.Pools == nil {
		return 0
	}
	return m.options.Pools.Unowned()
}
