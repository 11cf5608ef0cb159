// Device code: PTX that the library holds, else what NVRTC makes of the sources. What NVRTC has made is kept on disk
// under a hash of source, options, compiler and architecture.
#ifndef MILLRACE_CUDA_BUNDLE_HPP
#define MILLRACE_CUDA_BUNDLE_HPP

#include <future>
#include <string>
#include <vector>

#include "platform/stream.hpp"

namespace millrace::gpu {

class Bundle {
 public:
  // Begins to compile the named sources together, beside the caller: bundles that are made one after the other are
  // compiled at once.
  Bundle(const Stream& stream, const std::vector<std::string>& files,
         const std::vector<std::string>& options);

  // Waits for the compiler. Throws Error(MR_DEVICE) with its log, or Error(MR_UNSUPPORTED) where there is neither
  // code nor compiler.
  Kernel kernel(const std::string& name) const;

 private:
  std::shared_ptr<Context> context_;
  std::shared_future<CUmodule> code_;
};

// Finds or compiles code, and loads it into a context.
CUmodule load_code(const Context& context, const std::vector<std::string>& files,
                   const std::vector<std::string>& options);

// What compiles the code that this process runs: "PTX 13.0, NVRTC 13.0".
std::string code_compilers();

}  // namespace millrace::gpu

#endif
