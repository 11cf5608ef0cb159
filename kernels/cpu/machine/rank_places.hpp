// Which cores the ranks of a device run on.
#ifndef MILLRACE_CPU_MACHINE_RANK_PLACES_HPP
#define MILLRACE_CPU_MACHINE_RANK_PLACES_HPP

#include <vector>

#include "exec/ranks.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {

// Equal shares of the config's threads and of the CPUs that this process may use. Those of a NUMA node are one after
// the other, so that with a rank for each of equal nodes a share is a node. Throws Error(MR_INVALID) where
// there are fewer threads than ranks.
std::vector<RankPlace> rank_places(const mr_device_config& config);

// Shares of CPUs, which lie on nodes[cpu]; none of fewer CPUs than ranks.
std::vector<std::vector<int>> shares(std::vector<int> cpus, const std::vector<int>& nodes,
                                     int ranks);

}  // namespace millrace::cpu

#endif
