package numerics_test

import (
	"testing"

	"github.com/millrace/millrace/compute/numerics"
	"github.com/millrace/millrace/compute/weights"
)

// BenchmarkContent is the rate at which a checkpoint in the page cache is hashed.
func BenchmarkContent(b *testing.B) {
	all := []weights.Tensor{tensor("a", 64<<20)}
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := numerics.Content(all, &held{}); err != nil {
			b.Fatal(err)
		}
	}
}
