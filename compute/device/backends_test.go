package device_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
)

// backends are those that can be tested. TEST_BACKENDS names some: what cannot be tested then is an error.
func backends(t *testing.T) []string {
	t.Helper()
	named := strings.FieldsFunc(os.Getenv("TEST_BACKENDS"), func(r rune) bool { return r == ',' })
	var able []string
	for _, backend := range device.Backends() {
		if len(named) > 0 && !slices.Contains(named, backend) {
			continue
		}
		why := lacks(t, backend)
		if why == "" {
			able = append(able, backend)
			continue
		}
		if len(named) > 0 {
			t.Fatalf("backend %s: %s", backend, why)
		}
		t.Logf("NOT TESTED: backend %s: %s", backend, why)
	}
	return able
}

// tested says whether a backend can be tested.
func tested(t *testing.T, backend string) bool {
	t.Helper()
	return slices.Contains(backends(t), backend)
}

// lacks says what this machine lacks to test a backend: the library, or a GPU. sycl computes on the CPU too.
func lacks(t *testing.T, backend string) string {
	t.Helper()
	if !device.IsOptional(backend) {
		return ""
	}
	o := options(t, backend, "")
	if _, err := os.Stat(o.Library); err != nil {
		return fmt.Sprintf("%v; make %s builds it", err, backend)
	}
	if backend == "cuda" {
		d, err := device.Open(o)
		if err != nil {
			return err.Error()
		}
		d.Close()
	}
	return ""
}

func options(t *testing.T, backend, isa string) device.Options {
	t.Helper()
	o := device.Options{Backend: backend, ISA: isa, Threads: 2}
	if device.IsOptional(backend) {
		path, err := filepath.Abs(filepath.Join("..", "..", "build", "lib", "libmillrace_"+backend+".so"))
		require.NoError(t, err)
		o.Library = path
	}
	if backend == "sycl" {
		o.Device = "cpu"
	}
	return o
}
