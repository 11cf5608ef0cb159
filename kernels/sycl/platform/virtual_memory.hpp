// The extension sycl_ext_oneapi_virtual_mem of a device.
#ifndef MILLRACE_SYCL_VIRTUAL_MEMORY_HPP
#define MILLRACE_SYCL_VIRTUAL_MEMORY_HPP

#include <memory>

#include "gpu/kv_memory.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Null where the device lacks the extension.
std::unique_ptr<VirtualMemory> open_virtual_memory(const Stream& stream);

}  // namespace millrace::gpu

#endif
