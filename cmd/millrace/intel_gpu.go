package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// intelGPU is an Intel GPU among the PCI devices of a machine.
type intelGPU struct {
	Address string // of the PCI device
	Driver  string // of the kernel: i915 or xe; "": none
	Node    string // path of the render node; "": none
}

// findIntelGPUs reads /sys below root.
func findIntelGPUs(root fs.FS) (list []intelGPU) {
	devices, _ := fs.Glob(root, "sys/bus/pci/devices/*")
	for _, dir := range devices {
		const display = "0x03" // the class of graphics adapters
		if text(root, dir+"/vendor") != "0x8086" || !strings.HasPrefix(text(root, dir+"/class"), display) {
			continue
		}
		gpu := intelGPU{Address: path.Base(dir), Driver: field(root, dir+"/uevent", "=", "DRIVER")}
		if nodes, _ := fs.Glob(root, dir+"/drm/renderD*"); len(nodes) > 0 {
			gpu.Node = "/dev/dri/" + path.Base(nodes[0])
		}
		list = append(list, gpu)
	}
	return list
}

// levelZero is the libraries through which the SYCL runtime finds an Intel GPU, each with what it is.
var levelZero = [...]struct{ file, what string }{
	{"libze_loader.so.1", "the Level Zero loader"},
	{"libze_intel_gpu.so.1", "the GPU's driver for Level Zero"},
}

// libraryFolders is where distributions for x86-64 have shared libraries.
var libraryFolders = []string{"usr/lib/x86_64-linux-gnu", "usr/lib64", "usr/lib", "usr/local/lib", "lib/x86_64-linux-gnu", "lib64"}

// missingLevelZero says what of levelZero the machine lacks.
func missingLevelZero(root fs.FS) (missing []string) {
	for _, library := range levelZero {
		if !slices.ContainsFunc(libraryFolders, func(folder string) bool {
			_, err := fs.Stat(root, folder+"/"+library.file)
			return err == nil
		}) {
			missing = append(missing, library.what+" ("+library.file+")")
		}
	}
	return missing
}

// installLevelZero is the command that installs levelZero, by the distribution's name in /etc/os-release.
func installLevelZero(root fs.FS) string {
	release := func(name string) string { return strings.Trim(field(root, "etc/os-release", "=", name), `"`) }
	for _, name := range append([]string{release("ID")}, strings.Fields(release("ID_LIKE"))...) {
		switch name {
		case "debian":
			if v := release("VERSION_ID"); release("ID") == name && (v == "12" || v == "13") {
				return "Debian " + v + " has no package of the driver, Debian 14 has: take Intel's packages (https://dgpu-docs.intel.com)"
			}
			fallthrough
		case "ubuntu":
			return "sudo apt install libze1 libze-intel-gpu1 intel-opencl-icd"
		case "fedora", "rhel":
			return "sudo dnf install oneapi-level-zero intel-level-zero"
		}
	}
	return "install Intel's compute runtime and the Level Zero loader (https://dgpu-docs.intel.com)"
}

// checkIntelGPUs says what each Intel GPU lacks to be used, with the way out. open tries to open a path for reading and writing.
func (r *report) checkIntelGPUs(root fs.FS, open func(name string) error) {
	for _, gpu := range findIntelGPUs(root) {
		s, detail := gpu.check(root, open)
		r.add("Intel GPU", s, "%s: %s", gpu.Address, detail)
	}
}

// check says what the GPU lacks, in the order in which it is needed.
func (g intelGPU) check(root fs.FS, open func(name string) error) (s status, detail string) {
	switch {
	case g.Driver == "":
		return statusWarn,
			"the kernel has no driver for it (i915 or xe): take a newer kernel (Linux 6.2 for Arc A, 6.12 for Arc B), or install its firmware " +
				"(Debian: sudo apt install firmware-intel-graphics; Ubuntu and Fedora: linux-firmware); sudo dmesg says which"
	case g.Node == "":
		return statusWarn, "the kernel's driver " + g.Driver + " made no render node for it: sudo dmesg says why"
	}
	err, missing := open(g.Node), missingLevelZero(root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return statusWarn,
			g.Node + " is not there: a container needs it (docker run --device /dev/dri --group-add \"$(stat -c %g " + g.Node + ")\")"
	case err != nil:
		return statusWarn, fmt.Sprintf("%s cannot be opened (%v): sudo usermod -aG render $USER, and log in again", g.Node, err)
	case len(missing) > 0:
		return statusWarn, strings.Join(missing, " and ") + " is missing: " + installLevelZero(root)
	}
	return statusOK, "driver " + g.Driver + ", " + g.Node + ", Level Zero"
}

// openDevice tries to open a path for reading and writing.
func openDevice(name string) error { return unix.Access(name, unix.R_OK|unix.W_OK) }
