#include "exec/limits.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

namespace millrace {
namespace {

std::optional<uint64_t> read_number(const std::string& path) {
  std::ifstream file(path);
  uint64_t value;
  if (file >> value) return value;
  return std::nullopt;  // absent, or "max"
}

// The number after `key` in a file of lines "key number".
std::optional<uint64_t> read_field(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// Folders of this process's cgroups for memory, from its own up to the root:
// every one of them may carry a limit. Inside a container the paths of
// /proc/self/cgroup may not exist under the mount; then only the root does.
std::vector<std::string> memory_cgroups() {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1), root = "/sys/fs/cgroup";
    if (controllers == "memory") {
      root += "/memory";  // version 1
    } else if (!controllers.empty()) {
      continue;
    }
    while (path.size() > 1) {
      folders.push_back(root + path);
      path.resize(path.rfind('/'));
    }
    folders.push_back(root);
  }
  return folders;
}

uint64_t minus(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

// Narrows `limits` by one cgroup folder. Files that were read or written stay
// in the cgroup's page cache until memory is wanted, so they count as free.
void narrow(const std::string& folder, MemoryLimits& limits) {
  auto limit = read_number(folder + "/memory.max");
  auto used = read_number(folder + "/memory.current");
  std::string active = "active_file", inactive = "inactive_file";
  if (!used) {
    limit = read_number(folder + "/memory.limit_in_bytes");
    used = read_number(folder + "/memory.usage_in_bytes");
    active = "total_active_file";
    inactive = "total_inactive_file";
  }
  if (!limit || !used || *limit >= limits.total) return;
  const std::string stat = folder + "/memory.stat";
  const uint64_t cache =
      read_field(stat, active).value_or(0) + read_field(stat, inactive).value_or(0);
  limits.total = *limit;
  limits.available = std::min(limits.available, minus(*limit, minus(*used, cache)));
}

}  // namespace

MemoryLimits memory_limits() {
  const uint64_t page = sysconf(_SC_PAGESIZE);
  MemoryLimits limits;
  limits.total = page * sysconf(_SC_PHYS_PAGES);
  const auto kib = read_field("/proc/meminfo", "MemAvailable:");
  limits.available = kib ? *kib * 1024 : page * sysconf(_SC_AVPHYS_PAGES);
  for (const std::string& folder : memory_cgroups()) narrow(folder, limits);
  return limits;
}

int64_t max_mappings() {
  const auto limit = read_number("/proc/sys/vm/max_map_count");
  return limit ? static_cast<int64_t>(*limit) : std::numeric_limits<int64_t>::max() / 2;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  utsname system;
  return uname(&system) == 0 ? system.machine : "unknown";
}

}  // namespace millrace
