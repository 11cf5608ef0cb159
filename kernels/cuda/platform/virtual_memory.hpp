// The driver's virtual memory management.
#ifndef MILLRACE_CUDA_VIRTUAL_MEMORY_HPP
#define MILLRACE_CUDA_VIRTUAL_MEMORY_HPP

#include <memory>

#include "gpu/kv_memory.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Null where the device lacks it.
std::unique_ptr<VirtualMemory> open_virtual_memory(const Stream& stream);

}  // namespace millrace::gpu

#endif
