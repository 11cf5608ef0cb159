// Device code, compiled for one device when it is first wanted. The runtime
// keeps the result on disk under a hash of source, options and device.
#ifndef MILLRACE_SYCL_BUNDLE_HPP
#define MILLRACE_SYCL_BUNDLE_HPP

#include <future>
#include <string>
#include <vector>

#include "platform/stream.hpp"

namespace millrace::gpu {

class Bundle {
 public:
  using State = sycl::kernel_bundle<sycl::bundle_state::executable>;

  // Begins to compile the named sources together, beside the caller: bundles
  // that are made one after the other are compiled at once.
  Bundle(const Stream& stream, const std::vector<std::string>& files,
         const std::vector<std::string>& options);

  // Waits for the compiler. Throws Error(MR_DEVICE) with its log.
  Kernel kernel(const std::string& name) const;

 private:
  std::shared_future<State> bundle_;
};

}  // namespace millrace::gpu

#endif
