// The backend is built without oneDNN.
#include "gpu/onednn.hpp"
#include "gpu/onednn_int8.hpp"

namespace millrace::gpu {

std::string onednn_version() { return ""; }

std::vector<int> onednn_block_sizes(int) { return {}; }

std::unique_ptr<OneDnn> open_onednn(Stream&, const LinearKernels&) { return nullptr; }

std::unique_ptr<Int8Products> open_int8_products(Stream&) { return nullptr; }

}  // namespace millrace::gpu
