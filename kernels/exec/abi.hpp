// The C ABI over a backend's Device.
#ifndef MILLRACE_EXEC_ABI_HPP
#define MILLRACE_EXEC_ABI_HPP

#include <memory>

#include "exec/backend.hpp"
#include "millrace_kernels.h"

namespace millrace {

// Makes a backend's device; throws Error. Never called with a null pointer.
using OpenDevice = std::unique_ptr<Device> (*)(const mr_device_config&);

int32_t open_device(OpenDevice open, const mr_device_config* config, mr_device** out,
                    mr_error* error) noexcept;

// The backend table, but for device_open.
mr_backend backend_table(const char* name, decltype(mr_backend::device_open) device_open);

}  // namespace millrace

#endif
