// What this process may use of the machine's memory, after cgroup limits (v1
// and v2).
#ifndef MILLRACE_EXEC_LIMITS_HPP
#define MILLRACE_EXEC_LIMITS_HPP

#include <cstdint>
#include <string>

namespace millrace {

struct MemoryLimits {
  uint64_t total;      // bytes: the cgroup's limit or the physical memory
  uint64_t available;  // bytes now, counting what the page cache would give back
};

MemoryLimits memory_limits();

// vm.max_map_count, the most memory mappings of a process; a very large number
// where the system has no such limit.
int64_t max_mappings();

// The processor's name as the system gives it, or the architecture's.
std::string cpu_model();

}  // namespace millrace

#endif
