package device_test

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/device"
	"github.com/millrace/millrace/compute/family"
	"github.com/millrace/millrace/compute/weights"
)

// TestEngineNamesItsNumerics holds every backend to the form "<backend> <version> <class>".
func TestEngineNamesItsNumerics(t *testing.T) {
	cfg, err := family.LoadConfig(demo)
	require.NoError(t, err)
	w, err := weights.Open(demo)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	p, err := family.Build(cfg, w)
	require.NoError(t, err)
	for _, backend := range backends(t) {
		t.Run(backend, func(t *testing.T) {
			dev, err := device.Open(options(t, backend, ""))
			require.NoError(t, err)
			defer dev.Close()
			e, err := dev.Load(p, w, device.Limits{MaxRows: 4, MaxOutputs: 1})
			require.NoError(t, err)
			defer e.Close()
			text, err := e.Numerics()
			require.NoError(t, err)
			require.Regexp(t, "^"+regexp.QuoteMeta(backend)+` [1-9][0-9]* \S`, text)
		})
	}
}
