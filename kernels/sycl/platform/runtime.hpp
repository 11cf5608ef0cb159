// The SYCL runtime's environment and the devices it finds: this platform of kernels/gpu.
#ifndef MILLRACE_SYCL_RUNTIME_HPP
#define MILLRACE_SYCL_RUNTIME_HPP

#include <memory>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "gpu/target.hpp"

namespace millrace::gpu {

constexpr char kPlatform[] = "sycl";
constexpr char kFaultVariable[] = "MILLRACE_SYCL_FAULT";
// Grows whenever some bit of a result changes (docs/decisions/numerics-classes.md).
constexpr int kNumericsVersion = 1;
constexpr int kMostSlices = 8;  // of a sum

// Sets what the runtime reads at its first call, where the user has not: the
// OpenCL CPU driver beside libsycl.so, and a persistent cache of compiled
// kernels. threads > 0 bounds the CPU device, in the first call of the process.
void prepare_environment(int threads);

using DeviceHandle = sycl::device;

struct Found {
  std::string id;  // "level_zero:0", "opencl:0"
  DeviceHandle device;
};

// Every device that Millrace can run on.
std::vector<Found> find_devices();

// "" and "auto": an Intel GPU if one is there, else the CPU; "cpu", "gpu", or an
// id. Throws Error(MR_UNSUPPORTED) that lists what is there.
Found choose_device(const std::string& name);
// One of the equal parts into which a device is divided. Throws Error(MR_UNSUPPORTED) where it is not.
DeviceHandle part_of(const DeviceHandle& device, int part, int parts);
// The devices that share memory with one: those that it is a part with, or itself.
std::vector<DeviceHandle> devices_with(const DeviceHandle& device);

std::string device_name(const DeviceHandle& device);
std::string driver_version(const DeviceHandle& device);
int compute_units(const DeviceHandle& device);
bool on_cpu(const DeviceHandle& device);
// Sub-groups that keep the device busy.
int busy_sub_groups(const DeviceHandle& device);
// Bounds the threads of a device that is a CPU, as long as the result lives; 0: no bound.
std::shared_ptr<void> bound_threads(const DeviceHandle& device, int threads);

// isa: "" is the best of the device, with oneDNN; "xmx" and "simd" are our kernels alone,
// "xmx-onednn" and "simd-onednn" the same with oneDNN.
Target choose_target(const DeviceHandle& device, const std::string& isa);
std::string isa_names(const DeviceHandle& device);  // best first, separated by commas

// Bytes; available is what is free now, or, where a GPU does not report it, all.
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
