package device_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
)

// library is where make sycl puts the SYCL backend.
var library = filepath.Join("..", "..", "build", "lib", "libmillrace_sycl.so")

// backends are those that can be tested: sycl only where its library is built.
func backends(t *testing.T) []string {
	t.Helper()
	if _, err := os.Stat(library); err != nil {
		t.Logf("NOT TESTED: backend sycl: %v; make sycl builds it", err)
		return []string{"cpu", "ref"}
	}
	return device.Backends()
}

func options(t *testing.T, backend, isa string) device.Options {
	t.Helper()
	o := device.Options{Backend: backend, ISA: isa, Threads: 2}
	if backend == "sycl" {
		path, err := filepath.Abs(library)
		require.NoError(t, err)
		o.Library, o.Device = path, "cpu"
	}
	return o
}
