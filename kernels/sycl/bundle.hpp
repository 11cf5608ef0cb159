// Device code, compiled for one device when it is first wanted. The runtime
// keeps the result on disk under a hash of source, options and device.
#ifndef MILLRACE_SYCL_BUNDLE_HPP
#define MILLRACE_SYCL_BUNDLE_HPP

#include <string>
#include <sycl/sycl.hpp>
#include <vector>

namespace millrace::sycl_backend {

class Bundle {
 public:
  using State = sycl::kernel_bundle<sycl::bundle_state::executable>;

  // Compiles the named sources together. Throws Error(MR_DEVICE) with the
  // compiler's log.
  Bundle(const sycl::queue& queue, const std::vector<std::string>& files,
         const std::vector<std::string>& options);

  sycl::kernel kernel(const std::string& name) const;

 private:
  State bundle_;
};

}  // namespace millrace::sycl_backend

#endif
