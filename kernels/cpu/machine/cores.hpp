// How many cores this process may use.
#ifndef MILLRACE_CPU_MACHINE_CORES_HPP
#define MILLRACE_CPU_MACHINE_CORES_HPP

#include <optional>
#include <string>

namespace millrace::cpu {

// The CPUs of the affinity mask, or the CPU quota of the cgroups in whole cores
// if that is less; at least 1.
int usable_cores();

// The CPU quota of this process in cores: the least of its cgroup's and of those
// above it, version 1 (cpu.cfs_quota_us) or 2 (cpu.max); none if nothing limits it.
// proc: the folder that is /proc/self on a live system; root goes before the
// paths that its mountinfo names.
std::optional<double> cgroup_cpu_quota(const std::string& proc = "/proc/self",
                                       const std::string& root = "");

}  // namespace millrace::cpu

#endif
