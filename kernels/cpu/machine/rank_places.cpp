#include "cpu/machine/rank_places.hpp"

#include <sched.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>

#include "cpu/machine/cores.hpp"
#include "exec/error.hpp"

namespace millrace::cpu {
namespace {

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The node of each CPU, 0 where the system does not say: /sys/devices/system/cpu/cpuN has a link nodeM.
std::vector<int> nodes_of(const std::vector<int>& cpus) {
  std::vector<int> nodes(CPU_SETSIZE);
  for (const int cpu : cpus) {
    std::error_code error;
    const std::filesystem::path folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu);
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
      const std::string name = entry->path().filename();
      if (name.size() > 4 && name.starts_with("node") &&
          std::all_of(name.begin() + 4, name.end(), [](char c) { return c >= '0' && c <= '9'; })) {
        nodes[cpu] = std::stoi(name.substr(4));
      }
    }
  }
  return nodes;
}

}  // namespace

std::vector<std::vector<int>> shares(std::vector<int> cpus, const std::vector<int>& nodes,
                                     int ranks) {
  std::vector<std::vector<int>> all(ranks);
  if (cpus.size() < static_cast<size_t>(ranks)) return all;
  std::stable_sort(cpus.begin(), cpus.end(), [&](int a, int b) { return nodes[a] < nodes[b]; });
  for (int r = 0; r < ranks; ++r) {
    all[r].assign(cpus.begin() + cpus.size() * r / ranks,
                  cpus.begin() + cpus.size() * (r + 1) / ranks);
  }
  return all;
}

std::vector<RankPlace> rank_places(const mr_device_config& config) {
  const int ranks = config.ranks;
  const int threads = config.threads > 0 ? config.threads : usable_cores();
  if (threads < ranks) {
    fail(MR_INVALID, "%d threads for %d ranks, expected one for each", threads, ranks);
  }
  const std::vector<int> cpus = usable_cpus();
  std::vector<std::vector<int>> cpus_of = shares(cpus, nodes_of(cpus), ranks);
  std::vector<RankPlace> places(ranks);
  for (int r = 0; r < ranks; ++r) {
    places[r] = {threads * (r + 1) / ranks - threads * r / ranks, std::move(cpus_of[r])};
  }
  return places;
}

}  // namespace millrace::cpu
