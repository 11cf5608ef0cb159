// The backend is built without oneDNN.
#include "sycl/onednn.hpp"

namespace millrace::sycl_backend {

std::string onednn_version() { return ""; }

std::vector<int> onednn_block_sizes(int) { return {}; }

std::unique_ptr<OneDnn> open_onednn(Stream&, const LinearKernels&) { return nullptr; }

}  // namespace millrace::sycl_backend
