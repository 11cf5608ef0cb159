// mma.sync of a warp, on fragments as Warp holds them.
#ifndef MILLRACE_CUDA_EMULATOR_PRODUCTS_HPP
#define MILLRACE_CUDA_EMULATOR_PRODUCTS_HPP

#include "machine.hpp"

namespace mr_emulator {

// m16n8k16. An element's sum begins with c and adds products in ascending order, each with fmaf.
void multiply_bf16(Warp& warp);
void multiply_f16(Warp& warp);
// m16n8k32 of signed bytes. Sums wrap around.
void multiply_s8(Warp& warp);

}  // namespace mr_emulator

#endif
