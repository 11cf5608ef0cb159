// NVRTC, and what it is given.
#ifndef MILLRACE_CUDA_COMPILER_HPP
#define MILLRACE_CUDA_COMPILER_HPP

#include <span>
#include <string>
#include <vector>

#include "driver.hpp"

namespace millrace::gpu {

// The device code of these files for "sm_90a", a cubin, or for "compute_80", PTX. `options` are kernels/gpu's.
// Throws Error(MR_DEVICE) with the compiler's log, which is on stderr too.
std::string compile(const Nvrtc& nvrtc, const std::vector<std::string>& files,
                    const std::vector<std::string>& options, const std::string& architecture);

// A hash of everything that decides what compile() returns.
std::string code_hash(const Nvrtc& nvrtc, const std::vector<std::string>& files,
                      const std::vector<std::string>& options, const std::string& architecture);

// PTX that the build has made, tools/embed.cpp.
struct EmbeddedCode {
  const char* recipe;  // recipe_name() of it
  int architecture;    // 90: what compute_90 has, and all after it
  const char* ptx;
};
std::span<const EmbeddedCode> embedded_code();
const char* embedded_by();  // the version of its compiler; empty: there is none

// "norm.cpp rows.cpp -DMR_BF16=1"
std::string recipe_name(const std::vector<std::string>& files,
                        const std::vector<std::string>& options);

}  // namespace millrace::gpu

#endif
