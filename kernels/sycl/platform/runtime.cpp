#include "platform/runtime.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "exec/error.hpp"
#include "exec/limits.hpp"
#include "gpu/onednn.hpp"
#include "platform/cpu_threads.hpp"

namespace millrace::gpu {
namespace {

namespace matrix = sycl::ext::oneapi::experimental::matrix;

constexpr int kKeep = 0;  // setenv: what the user has set stays

std::string folder_of_runtime() {
  Dl_info info;
  // Any function of libsycl.so says where the library lies.
  const auto* symbol = reinterpret_cast<const void*>(&sycl::platform::get_platforms);
  if (dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

std::string cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::string(cache) + "/millrace/sycl";
  const char* home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::string(home) + "/.cache/millrace/sycl";
  return "";
}

const char* backend_name(const sycl::device& device) {
  switch (device.get_backend()) {
    case sycl::backend::ext_oneapi_level_zero:
      return "level_zero";
    case sycl::backend::opencl:
      return "opencl";
    default:
      return nullptr;
  }
}

bool intel_gpu(const sycl::device& device) {
  constexpr uint32_t kIntel = 0x8086;
  return device.is_gpu() && device.get_info<sycl::info::device::vendor_id>() == kIntel;
}

// Columns of a product of 16-bit numbers by the matrix engine; 0: there is none.
int matrix_columns(const sycl::device& device) {
  if (!device.has(sycl::aspect::ext_intel_matrix)) return 0;
  const auto products =
      device.get_info<sycl::ext::oneapi::experimental::info::device::matrix_combinations>();
  for (const auto& p : products) {
    if (p.atype == matrix::matrix_type::bf16 && p.ksize == 16 && (p.nsize == 8 || p.nsize == 16)) {
      return static_cast<int>(p.nsize);
    }
  }
  return 0;
}

// Bytes. A GPU of 32-bit offsets says 4 GB, whatever it has; the runtime's Level Zero adapter has
// a switch that lifts this, at a cost of every access to memory.
uint64_t largest_allocation(const sycl::device& device) {
  const char* forced = std::getenv("MILLRACE_SYCL_LARGEST_ALLOCATION");  // for tests
  if (forced != nullptr && *forced != '\0') {
    const char* const end = forced + std::strlen(forced);
    uint64_t bytes = 0;
    const auto [rest, error] = std::from_chars(forced, end, bytes);
    if (error == std::errc() && rest == end) return bytes;
    fail(MR_INVALID, "MILLRACE_SYCL_LARGEST_ALLOCATION is \"%s\", expected bytes", forced);
  }
  const char* relaxed = std::getenv("UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS");
  const bool lifted = relaxed != nullptr && std::string(relaxed) == "1" &&
                      device.get_backend() == sycl::backend::ext_oneapi_level_zero;
  return lifted ? device.get_info<sycl::info::device::global_mem_size>()
                : device.get_info<sycl::info::device::max_mem_alloc_size>();
}

bool has_sub_groups_of(const sycl::device& device, size_t lanes) {
  const auto sizes = device.get_info<sycl::info::device::sub_group_sizes>();
  return std::find(sizes.begin(), sizes.end(), lanes) != sizes.end();
}

std::string names(const std::vector<Found>& found) {
  std::string text;
  for (const Found& f : found) {
    if (!text.empty()) text += ", ";
    text += f.id + " (" + f.device.get_info<sycl::info::device::name>() + ")";
  }
  return text.empty() ? "none" : text;
}

}  // namespace

void prepare_environment(int threads) {
  const std::string folder = folder_of_runtime();
  const std::string driver = folder + "/libintelocl.so";
  if (!folder.empty() && access(driver.c_str(), R_OK) == 0) {
    setenv("OCL_ICD_FILENAMES", driver.c_str(), kKeep);
  }
  const std::string cache = cache_folder();
  if (!cache.empty()) {
    setenv("SYCL_CACHE_PERSISTENT", "1", kKeep);
    setenv("SYCL_CACHE_DIR", cache.c_str(), kKeep);
  }
  // Its kernels by AMX add up a row in another order where a block has few rows. And a row has the
  // same bits then on a machine with AMX and on one without.
  setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", kKeep);
  if (threads > 0) setenv("DPCPP_CPU_NUM_CUS", std::to_string(threads).c_str(), kKeep);
}

std::vector<Found> find_devices() {
  std::vector<Found> found;
  for (const char* wanted : {"level_zero", "opencl"}) {
    int index = 0;
    for (const sycl::platform& platform : sycl::platform::get_platforms()) {
      for (const sycl::device& device : platform.get_devices()) {
        const char* name = backend_name(device);
        if (name == nullptr || std::string(name) != wanted) continue;
        found.push_back({std::string(name) + ":" + std::to_string(index++), device});
      }
    }
  }
  return found;
}

Found choose_device(const std::string& name) {
  const std::vector<Found> found = find_devices();
  const auto first = [&](auto&& fits) {
    return std::find_if(found.begin(), found.end(), [&](const Found& f) { return fits(f); });
  };
  const auto gpu = [](const Found& f) { return intel_gpu(f.device); };
  const auto cpu = [](const Found& f) { return f.device.is_cpu(); };
  auto it = found.end();
  if (name.empty() || name == "auto") {
    it = first(gpu);
    if (it == found.end()) it = first(cpu);
  } else if (name == "gpu") {
    it = first(gpu);
  } else if (name == "cpu") {
    it = first(cpu);
  } else {
    it = first([&](const Found& f) { return f.id == name; });
  }
  if (it != found.end()) return *it;
  fail(MR_UNSUPPORTED,
       "SYCL device \"%s\": found %s; an Intel GPU needs the packages intel-level-zero-gpu and "
       "level-zero, the CPU device comes with make sycl",
       name.c_str(), names(found).c_str());
}

namespace {

// A device and its parts. Each call of SYCL makes other ones, so they are kept.
struct Divided {
  sycl::device device;
  std::vector<sycl::device> parts;
};
std::mutex divided_mutex;
// Never freed: at the process's end the runtime may be gone before it.
std::vector<Divided>& divided() {
  static auto& all = *new std::vector<Divided>;
  return all;
}

// A GPU's tiles, or the cores of a CPU in equal parts.
std::vector<sycl::device> divide(const sycl::device& device, int parts) {
  using Property = sycl::info::partition_property;
  const auto ways = device.get_info<sycl::info::device::partition_properties>();
  const auto can = [&](Property way) {
    return std::find(ways.begin(), ways.end(), way) != ways.end();
  };
  if (!device.is_cpu()) {
    if (!can(Property::partition_by_affinity_domain)) return {};
    return device.create_sub_devices<Property::partition_by_affinity_domain>(
        sycl::info::partition_affinity_domain::next_partitionable);
  }
  const int units = compute_units(device) / parts;
  if (units == 0 || !can(Property::partition_equally)) return {};
  std::vector<sycl::device> all =
      device.create_sub_devices<Property::partition_equally>(static_cast<size_t>(units));
  all.resize(std::min(all.size(), static_cast<size_t>(parts)));
  return all;
}

}  // namespace

DeviceHandle part_of(const DeviceHandle& device, int part, int parts) {
  const std::lock_guard lock(divided_mutex);
  for (const Divided& d : divided()) {
    if (d.device == device && d.parts.size() == static_cast<size_t>(parts)) return d.parts[part];
  }
  std::vector<sycl::device> all;
  try {
    all = divide(device, parts);
  } catch (const sycl::exception& e) {
    fail(MR_UNSUPPORTED, "%d ranks of %s: %s", parts, device_name(device).c_str(), e.what());
  }
  if (all.size() != static_cast<size_t>(parts)) {
    fail(MR_UNSUPPORTED, "%d ranks: %s has %zu parts%s", parts, device_name(device).c_str(),
         std::max(all.size(), size_t{1}),
         device.is_cpu() ? ", at most one for each of its threads" : "");
  }
  return divided().emplace_back(Divided{device, std::move(all)}).parts[part];
}

std::vector<DeviceHandle> devices_with(const DeviceHandle& device) {
  const std::lock_guard lock(divided_mutex);
  for (const Divided& d : divided()) {
    if (std::find(d.parts.begin(), d.parts.end(), device) != d.parts.end()) return d.parts;
  }
  return {device};
}

std::string device_name(const DeviceHandle& device) {
  return device.get_info<sycl::info::device::name>();
}

std::string driver_version(const DeviceHandle& device) {
  return device.get_info<sycl::info::device::driver_version>();
}

int compute_units(const DeviceHandle& device) {
  return static_cast<int>(device.get_info<sycl::info::device::max_compute_units>());
}

bool on_cpu(const DeviceHandle& device) { return device.is_cpu(); }

int busy_sub_groups(const DeviceHandle& device) {
  // A vector engine of a GPU keeps 8 threads in flight, a core of a CPU one.
  return compute_units(device) * (device.is_cpu() ? 2 : 8);
}

std::shared_ptr<void> bound_threads(const DeviceHandle& device, int threads) {
  return std::make_shared<CpuThreads>(device.is_cpu() ? threads : 0);
}

std::string isa_names(const sycl::device& device) {
  std::string text = matrix_columns(device) > 0 ? "xmx,simd" : "simd";
  if (!onednn_version().empty())
    text += matrix_columns(device) > 0 ? ",xmx-onednn,simd-onednn" : ",simd-onednn";
  return text;
}

Target choose_target(const sycl::device& device, const std::string& isa) {
  const int columns = matrix_columns(device);
  const std::string known = "," + isa_names(device) + ",";
  if (!isa.empty() && known.find("," + isa + ",") == std::string::npos) {
    fail(MR_INVALID, "isa \"%s\", this device runs %s", isa.c_str(), isa_names(device).c_str());
  }
  const bool onednn = isa.empty() || isa.ends_with("-onednn");
  if (columns > 0 && !isa.starts_with("simd")) return {columns, Products::xmx, onednn};
  for (const int lanes : {16, 8}) {
    if (!has_sub_groups_of(device, lanes)) continue;
    // "simd" on a processor is what a GPU without a matrix engine runs.
    return {lanes, Products::simd, onednn, false, device.is_cpu() && onednn};
  }
  fail(MR_UNSUPPORTED, "the device has no sub-groups of 16 or 8 work-items");
}

DeviceMemory device_memory(const sycl::device& device) {
  const uint64_t largest = largest_allocation(device);
  if (device.is_cpu()) {
    const MemoryLimits limits = memory_limits();
    return {limits.total, limits.available, true, largest};
  }
  const uint64_t total = device.get_info<sycl::info::device::global_mem_size>();
  if (!device.has(sycl::aspect::ext_intel_free_memory)) return {total, total, false, largest};
  return {total, device.get_info<sycl::ext::intel::info::device::free_memory>(), true, largest};
}

std::string describe(const Found& found) {
  const sycl::device& d = found.device;
  std::string text = found.id + ": " + d.get_info<sycl::info::device::name>();
  const DeviceMemory memory = device_memory(d);
  char sizes[128];
  std::snprintf(sizes, sizeof sizes, ", %.1f GiB%s %.1f GiB", double(memory.total) / (1u << 30),
                memory.reported ? ", available" : " (free memory not reported), assumed",
                double(memory.available) / (1u << 30));
  text += sizes;
  std::snprintf(sizes, sizeof sizes, ", largest allocation %.1f GiB",
                double(memory.largest) / (1u << 30));
  text += sizes;
  text += ", sub-groups";
  for (const size_t n : d.get_info<sycl::info::device::sub_group_sizes>()) {
    text += " " + std::to_string(n);
  }
  text += d.has(sycl::aspect::fp16) ? ", fp16" : ", no fp16";
  const int columns = matrix_columns(d);
  text += columns > 0 ? ", bf16/f16 matrix products of " + std::to_string(columns) + " columns"
                      : std::string(", no matrix engine");
  text += d.has(sycl::aspect::ext_oneapi_virtual_mem) ? ", virtual memory" : ", no virtual memory";
  text += "; uses " + isa_names(d).substr(0, isa_names(d).find(',')) +
          (d.has(sycl::aspect::ext_oneapi_virtual_mem) ? ", KV slabs in mapped memory, "
                                                       : ", KV slabs in allocations, ") +
          (onednn_version().empty() ? "no oneDNN: linear ops by our kernels"
                                    : onednn_version() + " for linear ops of many rows");
  return text;
}

}  // namespace millrace::gpu
