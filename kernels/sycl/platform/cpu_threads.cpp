#include "platform/cpu_threads.hpp"

#include <dlfcn.h>

namespace millrace::gpu {
namespace {

constexpr int kMaxAllowedParallelism = 0;  // tbb::global_control::parameter

}  // namespace

CpuThreads::CpuThreads(int threads)
    : control_{static_cast<size_t>(threads), 0, kMaxAllowedParallelism} {
  // The one that the OpenCL runtime and oneDNN have loaded, if they have.
  void* tbb = threads > 0 ? dlopen("libtbb.so.12", RTLD_NOW | RTLD_NOLOAD) : nullptr;
  if (tbb == nullptr) return;
  const auto create =
      reinterpret_cast<Call>(dlsym(tbb, "_ZN3tbb6detail2r16createERNS0_2d114global_controlE"));
  destroy_ =
      reinterpret_cast<Call>(dlsym(tbb, "_ZN3tbb6detail2r17destroyERNS0_2d114global_controlE"));
  if (create == nullptr || destroy_ == nullptr) {
    destroy_ = nullptr;
    return;
  }
  create(control_);
}

CpuThreads::~CpuThreads() {
  if (destroy_ != nullptr) destroy_(control_);
}

}  // namespace millrace::gpu
