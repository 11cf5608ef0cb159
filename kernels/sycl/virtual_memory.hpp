// The extension sycl_ext_oneapi_virtual_mem of a device.
#ifndef MILLRACE_SYCL_VIRTUAL_MEMORY_HPP
#define MILLRACE_SYCL_VIRTUAL_MEMORY_HPP

#include <memory>
#include <sycl/sycl.hpp>

#include "sycl/kv_memory.hpp"

namespace millrace::sycl_backend {

// Null where the queue's device lacks the extension.
std::unique_ptr<VirtualMemory> open_virtual_memory(const sycl::queue& queue);

}  // namespace millrace::sycl_backend

#endif
