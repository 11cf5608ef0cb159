package compute

import (
	"fmt"

	"github.com/millrace/millrace/compute/device"
)

// SlabLayout describes the order of the bytes in a slab.
func (m *Model) SlabLayout() string { return m.layout }

// SlabBytes is the size of a slab.
func (m *Model) SlabBytes() int { return m.slabBytes }

// ReadSlab copies a slab to memory of SlabBytes. It waits while the device is loaded again.
func (m *Model) ReadSlab(slab int32, to []byte) error {
	m.loading.RLock()
	defer m.loading.RUnlock()
	if m.engine == nil {
		return fmt.Errorf("read slab: %w: no program is loaded", device.ErrDevice)
	}
	return m.engine.ReadSlab(slab, to)
}

// WriteSlab copies memory of SlabBytes to a slab. It waits while the device is loaded again.
func (m *Model) WriteSlab(slab int32, from []byte) error {
	m.loading.RLock()
	defer m.loading.RUnlock()
	if m.engine == nil {
		return fmt.Errorf("write slab: %w: no program is loaded", device.ErrDevice)
	}
	return m.engine.WriteSlab(slab, from)
}

// slabLayout names what the order of the bytes in a slab depends on. It is "" where they are not copied.
func (m *Model) slabLayout() (string, error) {
	if !m.kv.Copies {
		return "", nil
	}
	info, err := m.Device.Info()
	if err != nil {
		return "", err
	}
	p := m.engine.Info()
	layout := fmt.Sprintf("%s %s %s %d", info.Backend, info.ISA, p.KVType, p.SlabBytes)
	if ranks := m.Device.Ranks(); ranks > 1 { // the slab of a rank after that of another
		layout += fmt.Sprintf(" ranks-%d", ranks)
	}
	return layout, nil
}
