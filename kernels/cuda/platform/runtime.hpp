// The devices that the CUDA driver finds: this platform of kernels/gpu.
#ifndef MILLRACE_CUDA_RUNTIME_HPP
#define MILLRACE_CUDA_RUNTIME_HPP

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu/target.hpp"

namespace millrace::gpu {

constexpr char kPlatform[] = "cuda";
constexpr char kFaultVariable[] = "MILLRACE_CUDA_FAULT";
// Grows whenever some bit of a result changes (docs/decisions/numerics-classes.md).
constexpr int kNumericsVersion = 1;
constexpr int kMostSlices = 16;  // of a sum

// What is compiled for a device older or newer than Hopper (kHopperTarget) where nobody names another one.
constexpr Target kBestTarget{32, Products::mma, false};
constexpr Target kHopperTarget{32, Products::mma, false, true};

// The driver reads nothing of ours, and its threads are not ours to bound.
inline void prepare_environment(int) {}

struct DeviceHandle {
  int ordinal;
  std::string name;
  int units;         // multiprocessors
  int major, minor;  // compute capability
  uint64_t memory;   // bytes
  bool virtual_memory;
};

struct Found {
  std::string id;  // "cuda:0"
  DeviceHandle device;
};

// Every device that Millrace can run on: compute capability 8.0 or later. Throws Error(MR_UNSUPPORTED) where
// there is no driver.
std::vector<Found> find_devices();

// "", "auto" and "gpu": the first device; or an id. Throws Error(MR_UNSUPPORTED) that lists what is there.
Found choose_device(const std::string& name);
// One of the equal parts into which a device is divided. Throws Error(MR_UNSUPPORTED) where it is not.
[[noreturn]] DeviceHandle part_of(const DeviceHandle& device, int part, int parts);

inline std::string device_name(const DeviceHandle& device) { return device.name; }
// The driver, and what has compiled the code that runs: bits depend on both.
std::string driver_version(const DeviceHandle& device);
inline int compute_units(const DeviceHandle& device) { return device.units; }
inline bool on_cpu(const DeviceHandle&) { return false; }
// Sub-groups that keep the device busy.
inline int busy_sub_groups(const DeviceHandle& device) { return device.units * 16; }
inline std::shared_ptr<void> bound_threads(const DeviceHandle&, int) { return nullptr; }

// isa: "" is the best of the device, "mma" products by tensor cores, "simd" written out.
Target choose_target(const DeviceHandle& device, const std::string& isa);
std::string isa_names(const DeviceHandle& device);  // best first, separated by commas

// Bytes; available is what is free now.
struct DeviceMemory {
  uint64_t total, available;
  bool reported;     // available is known
  uint64_t largest;  // of one allocation
};
DeviceMemory device_memory(const DeviceHandle& device);

// One line per device for people: `millrace doctor` prints it.
std::string describe(const Found& found);

}  // namespace millrace::gpu

#endif
