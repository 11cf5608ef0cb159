// The SYCL runtime's environment and the devices it finds.
#ifndef MILLRACE_SYCL_RUNTIME_HPP
#define MILLRACE_SYCL_RUNTIME_HPP

#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace millrace::sycl_backend {

// Sets what the runtime reads at its first call, where the user has not: the
// OpenCL CPU driver beside libsycl.so, and a persistent cache of compiled
// kernels. threads > 0 bounds the CPU device, in the first call of the process.
void prepare_environment(int threads);

struct Found {
  std::string id;  // "level_zero:0", "opencl:0"
  sycl::device device;
};

// Every device that Millrace can run on.
std::vector<Found> find_devices();

// "" and "auto": an Intel GPU if one is there, else the CPU; "cpu", "gpu", or an
// id. Throws Error(MR_UNSUPPORTED) that lists what is there.
Found choose_device(const std::string& name);

// How kernels are built for a device.
struct Target {
  int lanes;    // of a sub-group
  bool xmx;     // products by the matrix engine
  bool onednn;  // linear ops of many rows by oneDNN, see LinearMaker
};
// isa: "" is the best of the device, with oneDNN; "xmx" and "simd" are our kernels alone,
// "xmx-onednn" and "simd-onednn" the same with oneDNN.
Target choose_target(const sycl::device& device, const std::string& isa);
std::string isa_names(const sycl::device& device);  // best first, separated by commas

// Bytes; available is what is free now, or, where a GPU does not report it, all.
struct DeviceMemory {
  uint64_t total, available;
  bool reported;     // available is known
  uint64_t largest;  // of one allocation
};
DeviceMemory device_memory(const sycl::device& device);

// One line per device for people: `millrace doctor` prints it.
std::string describe(const Found& found);

}  // namespace millrace::sycl_backend

#endif
