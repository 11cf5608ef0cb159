package main

import (
	"maps"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const arc = "sys/bus/pci/devices/0000:03:00.0/"

// arcMachine is a machine with everything that an Arc A770 needs, and a NIC of the same maker.
func arcMachine() fstest.MapFS {
	files := fstest.MapFS{}
	for name, text := range map[string]string{
		arc + "vendor":             "0x8086\n",
		arc + "class":              "0x030000\n",
		arc + "uevent":             "DRIVER=xe\nPCI_CLASS=30000\n",
		arc + "drm/renderD128/dev": "226:128\n",
		"sys/bus/pci/devices/0000:04:00.0/vendor":       "0x8086\n",
		"sys/bus/pci/devices/0000:04:00.0/class":        "0x020000\n",
		"usr/lib/x86_64-linux-gnu/" + levelZero[0].file: "",
		"usr/lib64/" + levelZero[1].file:                "",
		"etc/os-release":                                "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"26.04\"\n",
	} {
		files[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

func TestDoctorSaysWhatAnIntelGPULacks(t *testing.T) {
	apt := "sudo apt install libze1 libze-intel-gpu1 intel-opencl-icd"
	for name, c := range map[string]struct {
		change func(fstest.MapFS)
		open   error
		status status
		says   string
	}{
		"nothing":  {func(fstest.MapFS) {}, nil, statusOK, "driver xe, /dev/dri/renderD128, Level Zero"},
		"a driver": {func(m fstest.MapFS) { m[arc+"uevent"].Data = nil }, nil, statusWarn, "take a newer kernel"},
		"a render node": {func(m fstest.MapFS) { delete(m, arc+"drm/renderD128/dev") }, nil, statusWarn,
			"xe made no render node for it"},
		"in the container": {func(fstest.MapFS) {}, unix.ENOENT, statusWarn, "docker run --device /dev/dri"},
		"a group":          {func(fstest.MapFS) {}, unix.EACCES, statusWarn, "sudo usermod -aG render $USER"},
		"the loader": {func(m fstest.MapFS) { delete(m, "usr/lib/x86_64-linux-gnu/"+levelZero[0].file) }, nil, statusWarn,
			"the Level Zero loader (libze_loader.so.1) is missing: " + apt},
		"the library of the driver": {func(m fstest.MapFS) { delete(m, "usr/lib64/"+levelZero[1].file) }, nil, statusWarn,
			"the GPU's driver for Level Zero (libze_intel_gpu.so.1) is missing: " + apt},
	} {
		t.Run(name, func(t *testing.T) {
			root := arcMachine()
			c.change(root)
			var r report
			r.checkIntelGPUs(root, func(name string) error {
				require.Equal(t, "/dev/dri/renderD128", name)
				return c.open
			})
			require.Len(t, r.Checks, 1)
			require.Equal(t, c.status, r.Checks[0].Status)
			require.Contains(t, r.Checks[0].Detail, "0000:03:00.0: ")
			require.Contains(t, r.Checks[0].Detail, c.says)
		})
	}
}

func TestDoctorKnowsTheCommandOfADistribution(t *testing.T) {
	for release, says := range map[string]string{
		"ID=debian\nVERSION_ID=\"14\"\n":                     "sudo apt install libze1",
		"ID=debian\nVERSION_ID=\"13\"\n":                     "Debian 13 has no package of the driver",
		"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n":          "sudo apt install libze1",
		"ID=fedora\nVERSION_ID=44\n":                         "sudo dnf install oneapi-level-zero intel-level-zero",
		"ID=\"almalinux\"\nID_LIKE=\"rhel centos fedora\"\n": "sudo dnf install",
		"ID=arch\n": "install Intel's compute runtime",
		"":          "install Intel's compute runtime",
	} {
		require.Contains(t, installLevelZero(fstest.MapFS{"etc/os-release": {Data: []byte(release)}}), says, release)
	}
}

func TestAMachineWithoutAnIntelGPUHasNoChecksOfOne(t *testing.T) {
	root := arcMachine()
	maps.DeleteFunc(root, func(name string, _ *fstest.MapFile) bool { return name == arc+"vendor" })
	var r report
	r.checkIntelGPUs(root, openDevice)
	require.Empty(t, r.Checks)
}
