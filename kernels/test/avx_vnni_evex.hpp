// The linear kernels of AVX-VNNI for the tests of machines that have AVX-512 VNNI instead.
#ifndef MILLRACE_TEST_AVX_VNNI_EVEX_HPP
#define MILLRACE_TEST_AVX_VNNI_EVEX_HPP

#include "cpu/linear/kernels.hpp"

namespace millrace::cpu {

const LinearKernels& evex_avx_vnni_kernels(int weights);  // _INT8, _INT4 or _BLOCKS

}  // namespace millrace::cpu

#endif
