package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func files(texts map[string]string) fstest.MapFS {
	f := fstest.MapFS{}
	for name, text := range texts {
		f[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return f
}

func TestProbeReadsWhatTheKernelSays(t *testing.T) {
	m := probe(files(map[string]string{
		"proc/cpuinfo":                               "processor\t: 0\nmodel name\t: Odd CPU @ 3 GHz: yes\nprocessor\t: 1\nmodel name\t: other\n",
		"proc/sys/kernel/osrelease":                  "6.1.0\n",
		"proc/sys/vm/max_map_count":                  "65530\n",
		"proc/meminfo":                               "MemTotal:       16384 kB\nMemFree: 1 kB\nMemAvailable:    8192 kB\nHugetlb:  2048 kB\n",
		"proc/self/cgroup":                           "1:name=systemd:/x\n0::/a/b\n",
		"sys/fs/cgroup/cpu.max":                      "max 100000\n",
		"sys/fs/cgroup/a/cpu.max":                    "400000 100000\n",
		"sys/fs/cgroup/a/b/cpu.max":                  "150000 100000\n",
		"sys/fs/cgroup/a/memory.max":                 "4096\n",
		"sys/fs/cgroup/a/b/memory.max":               "8192\n",
		"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
	}))
	require.Equal(t, "Odd CPU @ 3 GHz: yes", m.CPU)
	require.Equal(t, "6.1.0", m.Kernel)
	require.Equal(t, 65530, m.MaxMapCount)
	require.EqualValues(t, 16<<20, m.MemoryBytes)
	require.EqualValues(t, 8<<20, m.AvailableBytes)
	require.EqualValues(t, 2<<20, m.HugetlbBytes)
	require.InDelta(t, 1.5, m.CgroupCPUs, 0)
	require.EqualValues(t, 4096, m.CgroupBytes)
	require.Equal(t, "madvise", m.HugePages)
	require.Positive(t, m.Cores)
}

func TestProbeOfAMachineThatSaysNothingIsZero(t *testing.T) {
	m := probe(files(nil))
	m.Cores = 0
	require.Equal(t, machine{}, m)
}
