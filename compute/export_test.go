package compute

import (
	"golang.org/x/sys/unix"

	"testing"
	"time"
)

// SetLeastPacked changes, for a test, what is worth a file.
func SetLeastPacked(t *testing.T, bytes int) {
	before := leastPacked
	leastPacked = bytes
	t.Cleanup(func() { leastPacked = before })
}

// FromPacked says whether the weights are mapped from a file of StorePacked's.
func (m *Model) FromPacked() bool { return m.packed != nil }

// SetSettled changes, for a test, how long files must have been still for their hash to be kept.
func SetSettled(t *testing.T, still time.Duration) {
	before := settled
	settled = still
	t.Cleanup(func() { settled = before })
}

// ReadTensors says whether the tensors were read for their hash.
func (m *Model) ReadTensors() bool { return m.content.read }

// PretendProbe makes an earlier load's probe another one.
func (m *Model) PretendProbe(bits string) { m.numerics.Probe = bits }

// PoolBytes is the memory that the slabs have.
func (m *Model) PoolBytes() int64 {
	var s unix.Stat_t
	if err := unix.Fstat(m.memory.fd, &s); err != nil {
		panic(err)
	}
	return s.Blocks * 512
}

// Unpacked is the number of bytes above 0 that the checkpoint has of the data of the tensors in blocks that are packed.
func (m *Model) Unpacked() (bytes int) {
	for _, name := range m.Program.PackedTensors() {
		t, _ := m.checkpoint.Reserved(name)
		if !t.DType.Blocks() {
			continue
		}
		for _, b := range t.Data {
			if b != 0 {
				bytes++
			}
		}
	}
	return bytes
}

// LeftOnDevice is leftOnDevice.
var LeftOnDevice = leftOnDevice
