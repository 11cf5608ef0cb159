#ifndef MILLRACE_GPU_MEASURE_HPP
#define MILLRACE_GPU_MEASURE_HPP

#include "millrace_kernels.h"
#include "platform/runtime.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Streaming reads of device memory and products from registers, now.
mr_measurement measure(Stream& stream, Target target);

}  // namespace millrace::gpu

#endif
