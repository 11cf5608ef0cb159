// What is compiled together, and how: for the libraries at run time, and for what compiles ahead of time.
#ifndef MILLRACE_GPU_RECIPES_HPP
#define MILLRACE_GPU_RECIPES_HPP

#include <string>
#include <vector>

#include "gpu/target.hpp"
#include "millrace_kernels.h"

namespace millrace::gpu {

struct Recipe {
  std::vector<std::string> files, options;
};

// The kernels that do not depend on the size of a head.
Recipe common_recipe(Target target, mr_dtype type);
// kv_bits: of an element of the KV cache.
Recipe attention_recipe(Target target, mr_dtype type, int head_dim, int kv_bits, bool sinks);
// Whether its kernels are those of cuda/device/attention_mma.cpp.
bool attention_by_mma(Target target, int head_dim, int kv_bits, bool sinks);
// Linear ops with weights that are codes: of integers, and of others.
Recipe quantized_recipe(Target target, mr_dtype type);
Recipe dequantize_recipe(Target target, mr_dtype type);
Recipe measure_recipe(Target target);

}  // namespace millrace::gpu

#endif
