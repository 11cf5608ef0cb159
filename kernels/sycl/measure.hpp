#ifndef MILLRACE_SYCL_MEASURE_HPP
#define MILLRACE_SYCL_MEASURE_HPP

#include "millrace_kernels.h"
#include "sycl/runtime.hpp"
#include "sycl/stream.hpp"

namespace millrace::sycl_backend {

// Streaming reads of device memory and products from registers, now.
mr_measurement measure(Stream& stream, Target target);

}  // namespace millrace::sycl_backend

#endif
