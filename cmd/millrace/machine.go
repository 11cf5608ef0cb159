package main

import (
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// machine is what Linux says about the machine and what of it this process
// may use. Zero means unknown or no limit.
type machine struct {
	CPU            string  `json:"cpu"`
	Kernel         string  `json:"kernel"`
	Cores          int     `json:"cores"`        // by affinity
	CgroupCPUs     float64 `json:"cgroup_cpus"`  // quota
	CgroupBytes    int64   `json:"cgroup_bytes"` // limit
	MemoryBytes    int64   `json:"memory_bytes"` // physical
	AvailableBytes int64   `json:"available_bytes"`
	HugePages      string  `json:"transparent_hugepages"` // "always", "madvise", "never"
	MaxMapCount    int     `json:"max_map_count"`         // vm.max_map_count
	HugetlbBytes   int64   `json:"hugetlb_bytes"`         // pre-allocated huge pages
}

// probe reads /proc and /sys below root.
func probe(root fs.FS) machine {
	m := machine{Cores: runtime.NumCPU()}
	m.CPU = field(root, "proc/cpuinfo", ":", "model name")
	m.Kernel = text(root, "proc/sys/kernel/osrelease")
	m.MemoryBytes = meminfo(root, "MemTotal")
	m.AvailableBytes = meminfo(root, "MemAvailable")
	m.HugetlbBytes = meminfo(root, "Hugetlb")
	m.MaxMapCount, _ = strconv.Atoi(text(root, "proc/sys/vm/max_map_count"))
	if _, rest, ok := strings.Cut(text(root, "sys/kernel/mm/transparent_hugepage/enabled"), "["); ok {
		m.HugePages, _, _ = strings.Cut(rest, "]")
	}
	m.CgroupCPUs, m.CgroupBytes = cgroup(root)
	return m
}

// text is a file's text without the white space around it, "" where there is none.
func text(root fs.FS, name string) string {
	b, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// field finds the value of the first line of a file that is a name, the sign and a value, "" where there is none.
func field(root fs.FS, file, sign, name string) string {
	for line := range strings.Lines(text(root, file)) {
		if key, value, ok := strings.Cut(line, sign); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// meminfo reads an amount "1234 kB" of /proc/meminfo in bytes.
func meminfo(root fs.FS, name string) int64 {
	value := field(root, "proc/meminfo", ":", name)
	kib, _ := strconv.ParseInt(strings.TrimSuffix(value, " kB"), 10, 64)
	return kib << 10
}

// cgroup finds the tightest CPU quota (in CPUs) and memory limit (in bytes) of
// the process' control group (version 2) and all above it.
func cgroup(root fs.FS) (cpus float64, memory int64) {
	var dir string
	for line := range strings.Lines(text(root, "proc/self/cgroup")) {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
			dir = path.Join("sys/fs/cgroup", p)
		}
	}
	for ; strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
		var quota, period float64
		if n, _ := fmt.Sscan(text(root, dir+"/cpu.max"), &quota, &period); n == 2 && period > 0 {
			if limit := quota / period; cpus == 0 || limit < cpus {
				cpus = limit
			}
		}
		limit, err := strconv.ParseInt(text(root, dir+"/memory.max"), 10, 64)
		if err == nil && (memory == 0 || limit < memory) {
			memory = limit
		}
	}
	return cpus, memory
}
