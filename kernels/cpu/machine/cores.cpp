#include "cpu/machine/cores.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

namespace millrace::cpu {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

bool contains(const std::vector<std::string>& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Where a hierarchy is mounted, and which of its groups is seen there.
struct Mount {
  std::string folder, group;
};

// The cgroup file system that governs CPU time: version 2, or 1 with "cpu".
// proc_pid_mountinfo(5): id parent dev root mount-point options ... - type source options.
std::optional<Mount> find_mount(const std::string& proc, bool version2) {
  std::ifstream in(proc + "/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const std::vector<std::string> f = split(line, ' ');
    const size_t dash = std::find(f.begin(), f.end(), "-") - f.begin();
    if (f.size() < 5 || dash + 3 >= f.size()) continue;
    const bool found = version2
                           ? f[dash + 1] == "cgroup2"
                           : f[dash + 1] == "cgroup" && contains(split(f[dash + 3], ','), "cpu");
    if (found) return Mount{f[4], f[3] == "/" ? "" : f[3]};
  }
  return std::nullopt;
}

// This process's group in that hierarchy. cgroups(7): id:controllers:path.
std::optional<std::string> find_group(const std::string& proc, bool version2) {
  std::ifstream in(proc + "/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (version2 ? controllers.empty() : contains(split(controllers, ','), "cpu")) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// The quota of one group's folder in cores; none if it has none.
std::optional<double> read_quota(const std::string& folder, bool version2) {
  std::string quota;
  double period = 0;
  if (version2) {
    std::ifstream(folder + "/cpu.max") >> quota >> period;
  } else {
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  if (quota.empty() || quota == "max" || quota[0] == '-' || period <= 0) return std::nullopt;
  return std::strtod(quota.c_str(), nullptr) / period;
}

void take_less(std::optional<double>& least, std::optional<double> quota) {
  if (quota && (!least || *quota < *least)) least = quota;
}

}  // namespace

std::optional<double> cgroup_cpu_quota(const std::string& proc, const std::string& root) {
  std::optional<double> least;
  for (const bool version2 : {false, true}) {
    const std::optional<Mount> mount = find_mount(proc, version2);
    std::optional<std::string> group = find_group(proc, version2);
    if (!mount || !group) continue;
    // In a container the mount often shows the process's own group as its root.
    if (group->starts_with(mount->group)) group->erase(0, mount->group.size());
    for (std::string path = *group;; path.erase(path.rfind('/'))) {
      take_less(least, read_quota(root + mount->folder + path, version2));
      if (path.find('/') == std::string::npos) break;
    }
  }
  return least;
}

int usable_cores() {
  cpu_set_t mask;
  int cores = sched_getaffinity(0, sizeof mask, &mask) == 0
                  ? CPU_COUNT(&mask)
                  : static_cast<int>(std::thread::hardware_concurrency());
  if (const std::optional<double> quota = cgroup_cpu_quota()) {
    cores = std::min(cores, static_cast<int>(*quota));
  }
  return std::max(cores, 1);
}

}  // namespace millrace::cpu
