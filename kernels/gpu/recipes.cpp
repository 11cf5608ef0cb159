#include "gpu/recipes.hpp"

#include <algorithm>

#include "gpu/shapes.hpp"

namespace millrace::gpu {
namespace {

// What all device code is compiled with.
std::vector<std::string> build_options(Target target, mr_dtype type) {
  // A product and a sum fuse where the code says so: the same bits in every variant.
  std::vector<std::string> options{"-ffp-contract=off",
                                   "-DMR_BF16=" + std::to_string(type == MR_BF16 ? 1 : 0),
                                   "-DMR_LANES=" + std::to_string(target.lanes),
                                   "-DMR_XMX=" + std::to_string(target.xmx() ? 1 : 0)};
  if (target.mma()) options.push_back("-DMR_MMA=1");
  if (target.serial) options.push_back("-DMR_SERIAL=1");
  if (target.wide) options.push_back("-DMR_WGMMA=1");
  return options;
}

}  // namespace

Recipe common_recipe(Target target, mr_dtype type) {
  std::vector<std::string> files{"altup.cpp", "draw.cpp",       "embed.cpp",
                                 "norm.cpp",  "rope_store.cpp", "rows.cpp"};
  if (target.mma()) {
    files.push_back("linear_mma.cpp");
  } else {
    files.insert(files.end(), {"packed.cpp", "linear.cpp"});
  }
  return {files, build_options(target, type)};
}

bool attention_by_mma(Target target, const AttentionKind& kind) {
  // Heads of 24: on an H100 long sequences ended with an illegal address, and nobody knows yet why. These sizes have as
  // many chunks of 16 bytes over a multiple of four.
  const bool trusted = kind.head_dim / 8 % 4 != 3;
  const bool plain =
      !kind.sinks && !kind.softcap && !kind.chunked && !kind.null_scores && !kind.both_ways;
  const bool one_width = kind.value_dim == kind.head_dim && kind.head_dim <= 256 && !kind.latent;
  return target.mma() && kind.kv_bits == 16 && plain && one_width && trusted;
}

int most_queries(const AttentionKind& kind, int lanes) {
  const int widest = std::max(kind.head_dim, kind.value_dim);
  const int most = most_queries(widest, lanes, kind.kv_bits, kind.sinks);
  return kind.chunked && most > 1 ? most / 2 : most;  // where chunks begin takes registers
}

int attention_stripes(Target target) { return target.serial ? 1 : 4; }

Recipe attention_recipe(Target target, mr_dtype type, const AttentionKind& kind) {
  const bool mma = attention_by_mma(target, kind);
  const Target by = mma ? target : target.written_out();
  std::vector<std::string> options = build_options(by, type);
  options.push_back("-DMR_HEAD_DIM=" + std::to_string(kind.head_dim));
  options.push_back("-DMR_KV_BITS=" + std::to_string(kind.kv_bits));
  if (mma) return {{"attention_mma.cpp"}, options};
  options.push_back("-DMR_STRIPES=" + std::to_string(attention_stripes(by)));
  options.push_back("-DMR_QUERIES=" + std::to_string(most_queries(kind, by.lanes)));
  if (kind.value_dim != kind.head_dim) {
    options.push_back("-DMR_VALUE_DIM=" + std::to_string(kind.value_dim));
  }
  if (kind.latent) options.push_back("-DMR_LATENT=1");
  if (kind.sinks) options.push_back("-DMR_SINKS=1");
  if (kind.softcap) options.push_back("-DMR_SOFTCAP=1");
  if (kind.chunked) options.push_back("-DMR_CHUNKED=1");
  return {{"attention.cpp"}, options};
}

Recipe quantized_recipe(Target target, mr_dtype type) {
  return {{target.mma() ? "quantized_mma.cpp" : "quantized.cpp"}, build_options(target, type)};
}

Recipe dequantize_recipe(Target target, mr_dtype type) {
  return {{"dequantize.cpp"}, build_options(target, type)};
}

Recipe of_experts(Recipe linear) {
  linear.options.push_back("-DMR_EXPERTS=1");
  return linear;
}

Recipe experts_recipe(Target target, mr_dtype type) {
  return of_experts({{"experts.cpp", "linear.cpp"}, build_options(target, type)});
}

Recipe states_recipe(Target target, mr_dtype type) {
  return {{"states.cpp"}, build_options(target, type)};
}

Recipe measure_recipe(Target target) { return {{"measure.cpp"}, build_options(target, MR_BF16)}; }

}  // namespace millrace::gpu
