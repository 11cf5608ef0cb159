package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace/millrace/compute/sim"
)

func TestDevicesAreKnownByTheirDriversNames(t *testing.T) {
	for name, id := range map[string]string{
		"Intel(R) Data Center GPU Max 1550": "max-1550-tile", "Intel(R) Data Center GPU Max 1100": "max-1100",
		"Intel(R) Data Center GPU Flex 170": "flex-170", "Intel(R) Arc(TM) A770 Graphics (level_zero:0)": "arc-a770",
		"Intel(R) Arc(TM) B580 Graphics": "arc-b580", "Intel(R) Arc(TM) A750 Graphics": "", "AMD EPYC (opencl:0)": "",
		"Intel(R) Xeon(R) CPU E5-1550": "", "Intel(R) Xeon(R) 6980P": "", "AMD EPYC 9654": "",
	} {
		d, ok := sim.ByName(name)
		require.Equal(t, id != "", ok, name)
		require.Equal(t, id, d.ID, name)
	}
}

func TestFindNamesWhatTheTableHas(t *testing.T) {
	for _, d := range sim.Peaks() {
		found, err := sim.FindPeak(d.ID)
		require.NoError(t, err)
		require.Equal(t, d, found)
		require.GreaterOrEqual(t, d.TOPS, 1.999*d.TFLOPS)
	}
	_, err := sim.FindPeak("b300")
	require.ErrorContains(t, err, `no device "b300" in the table: it has max-1550-tile, max-1100, flex-170, arc-a770, arc-b580`)
}
