package compute

import "testing"

// SetLeastPacked changes, for a test, what is worth a file.
func SetLeastPacked(t *testing.T, bytes int) {
	before := leastPacked
	leastPacked = bytes
	t.Cleanup(func() { leastPacked = before })
}

// FromPacked says whether the weights are mapped from a file of StorePacked's.
func (m *Model) FromPacked() bool { return m.packed != nil }
