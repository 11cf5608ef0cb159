#include "platform/runtime.hpp"

#include <cstdio>
#include <cstdlib>

#include "driver.hpp"
#include "exec/error.hpp"
#include "platform/bundle.hpp"
#include "platform/compiler.hpp"
#include "platform/context.hpp"

namespace millrace::gpu {
namespace {

constexpr int kLeastMajor = 8;  // of the compute capability: bf16, mma of 16 along the sum

int attribute(CUdevice device, int which) {
  int value = 0;
  cuda().device_attribute(&value, which, device);
  return value;
}

DeviceHandle device_of(int ordinal) {
  constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76, kVirtualMemory = 102;
  CUdevice device = 0;
  cuda().device_get(&device, ordinal);
  char name[256] = "";
  cuda().device_name(name, sizeof name, device);
  size_t memory = 0;
  cuda().device_total_memory(&memory, device);
  return {ordinal,
          name,
          attribute(device, kMultiprocessors),
          attribute(device, kMajor),
          attribute(device, kMinor),
          memory,
          attribute(device, kVirtualMemory) != 0};
}

// Those that are too old, too.
std::vector<Found> all_devices() {
  std::vector<Found> found;
  int count = 0;
  if (cuda().devices) cuda().device_count(&count);
  for (int i = 0; i < count; ++i) found.push_back({"cuda:" + std::to_string(i), device_of(i)});
  return found;
}

bool able(const Found& found) { return found.device.major >= kLeastMajor; }

std::string capability(const DeviceHandle& device) {
  return std::to_string(device.major) + "." + std::to_string(device.minor);
}

std::string names(const std::vector<Found>& found) {
  std::string text;
  for (const Found& f : found) {
    if (!text.empty()) text += ", ";
    text += f.id + " (" + f.device.name + ", compute capability " + capability(f.device) + ")";
  }
  return text.empty() ? "none" : text;
}

std::string driver_name() {
  const int version = cuda().version;
  const std::string& release = cuda().release;
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
         (release.empty() ? "" : " " + release);
}

}  // namespace

std::vector<Found> find_devices() {
  std::vector<Found> found = all_devices();
  std::erase_if(found, [](const Found& f) { return !able(f); });
  return found;
}

Found choose_device(const std::string& name) {
  if (name == "cpu") {
    fail(MR_UNSUPPORTED,
         "CUDA device \"cpu\": the cuda backend runs on NVIDIA GPUs only; --backend cpu runs on "
         "CPUs");
  }
  const std::vector<Found> found = all_devices();
  const bool any = name.empty() || name == "auto" || name == "gpu";
  for (const Found& f : found) {
    if (any ? !able(f) : f.id != name) continue;
    if (able(f)) return f;
    fail(MR_UNSUPPORTED, "CUDA device \"%s\" (%s) has compute capability %s, expected 8.0 or later",
         name.c_str(), f.device.name.c_str(), capability(f.device).c_str());
  }
  fail(MR_UNSUPPORTED,
       "CUDA device \"%s\": found %s, expected an NVIDIA GPU of compute capability 8.0 or later",
       name.c_str(), names(found).c_str());
}

std::string driver_version(const DeviceHandle&) {
  const std::string compilers = code_compilers();
  return driver_name() + (compilers.empty() ? "" : ", " + compilers);
}

Target choose_target(const DeviceHandle& device, const std::string& isa) {
  const Target best = device.major == 9 && device.minor == 0 ? kHopperTarget : kBestTarget;
  if (isa.empty()) return best;
  for (const Target target : {best, Target{16, Products::simd, false}}) {
    if (isa == target.name()) return target;
  }
  fail(MR_INVALID, "isa \"%s\", this device runs %s", isa.c_str(), isa_names(device).c_str());
}

std::string isa_names(const DeviceHandle&) { return "mma,simd"; }

DeviceMemory device_memory(const DeviceHandle& device) {
  size_t available = 0, total = 0;
  Context::of(device)->make_current();
  cuda().memory_info(&available, &total);
  return {total, available, true, total};
}

std::string describe(const Found& found) {
  const DeviceHandle& d = found.device;
  char sizes[128];
  std::snprintf(sizes, sizeof sizes, ", %.1f GiB", double(d.memory) / (1u << 30));
  std::string text = found.id + ": " + d.name + sizes;
  try {
    std::snprintf(sizes, sizeof sizes, ", available %.1f GiB",
                  double(device_memory(d).available) / (1u << 30));
    text += sizes;
  } catch (const Error& e) {
    text += std::string(", of no use now: ") + e.what();
  }
  text += ", compute capability " + capability(d) + ", " + std::to_string(d.units) +
          " multiprocessors, " + driver_name() + "; uses " + kBestTarget.name() +
          (d.virtual_memory ? ", KV slabs in mapped memory, " : ", KV slabs in allocations, ") +
          std::to_string(embedded_code().size()) + " kernel sets built in, others by ";
  try {
    text += "NVRTC " + std::to_string(nvrtc().major) + "." + std::to_string(nvrtc().minor);
  } catch (const Error&) {
    text += "NVRTC, which is not installed";
  }
  return text;
}

DeviceHandle part_of(const DeviceHandle& device, int, int parts) {
  fail(MR_UNSUPPORTED, "%d ranks: %s has one part", parts, device.name.c_str());
}

}  // namespace millrace::gpu
