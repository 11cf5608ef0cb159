// The linear kernels of AVX-VNNI for the tests of machines that have AVX-512 VNNI instead.
#ifndef MILLRACE_TEST_AVX_VNNI_EVEX_HPP
#define MILLRACE_TEST_AVX_VNNI_EVEX_HPP

#include "cpu/linear/kernels.hpp"

namespace millrace::cpu {

const LinearKernels& evex_avx_vnni_kernels(int weights);  // MR_WEIGHTS_INT8 or MR_WEIGHTS_INT4

}  // namespace millrace::cpu

#endif
