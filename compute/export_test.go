package compute

import "testing"

// SetLeastPacked changes, for a test, what is worth a file.
func SetLeastPacked(t *testing.T, bytes int) {
	before := leastPacked
	leastPacked = bytes
	t.Cleanup(func() { leastPacked = before })
}
