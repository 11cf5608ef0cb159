// The linear kernels and the attention of AMX over tile registers in plain C++, for every machine's tests.
#ifndef MILLRACE_TEST_AMX_EMULATED_HPP
#define MILLRACE_TEST_AMX_EMULATED_HPP

#include "cpu/linear/kernels.hpp"
#include "cpu/ops/kernels.hpp"

namespace millrace::cpu {

const LinearKernels& emulated_amx_kernels(int weights);  // not FP8, NF4
const AttentionKernels& emulated_amx_attention();

}  // namespace millrace::cpu

#endif
