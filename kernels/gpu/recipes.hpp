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
// What decides which kernels an attention op has.
struct AttentionKind {
  int head_dim, kv_bits;  // kv_bits: of an element of the KV cache
  bool sinks = false, softcap = false, chunked = false;
  bool null_scores = false;
  int value_dim = head_dim;
  bool latent = false, both_ways = false;

  bool operator==(const AttentionKind&) const = default;
};
// The most queries of a task of kernels that are written out for sub-groups of `lanes` lanes.
int most_queries(const AttentionKind& kind, int lanes);
// Sub-groups that share the keys of a query in the written-out kernels. They decide the order of sums.
int attention_stripes(Target target);
Recipe attention_recipe(Target target, mr_dtype type, const AttentionKind& kind);
// Whether its kernels are those of cuda/device/attention_mma.cpp.
bool attention_by_mma(Target target, const AttentionKind& kind);
// Linear ops with weights that are codes: of integers, and of others.
Recipe quantized_recipe(Target target, mr_dtype type);
Recipe dequantize_recipe(Target target, mr_dtype type);
// Mixtures of experts: what all have with products of 16 bits, and products of codes. target: its written_out().
Recipe experts_recipe(Target target, mr_dtype type);
Recipe of_experts(Recipe linear);
// Ops with a state, and gates. target: likewise
Recipe states_recipe(Target target, mr_dtype type);
Recipe measure_recipe(Target target);

}  // namespace millrace::gpu

#endif
