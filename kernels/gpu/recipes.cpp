#include "gpu/recipes.hpp"

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
  if (target.wide) options.push_back("-DMR_WGMMA=1");
  return options;
}

}  // namespace

Recipe common_recipe(Target target, mr_dtype type) {
  std::vector<std::string> files{"embed.cpp", "norm.cpp", "rope_store.cpp", "rows.cpp"};
  if (target.mma()) {
    files.push_back("linear_mma.cpp");
  } else {
    files.insert(files.end(), {"packed.cpp", "linear.cpp"});
  }
  return {files, build_options(target, type)};
}

bool attention_by_mma(Target target, int head_dim, int kv_bits, bool sinks) {
  // Heads of 24: on an H100 long sequences ended with an illegal address, and nobody knows yet why. These sizes have as
  // many chunks of 16 bytes over a multiple of four.
  const bool trusted = head_dim / 8 % 4 != 3;
  return target.mma() && kv_bits == 16 && !sinks && trusted;
}

Recipe attention_recipe(Target target, mr_dtype type, int head_dim, int kv_bits, bool sinks) {
  const bool mma = attention_by_mma(target, head_dim, kv_bits, sinks);
  const Target by = mma ? target : target.written_out();
  std::vector<std::string> options = build_options(by, type);
  options.push_back("-DMR_HEAD_DIM=" + std::to_string(head_dim));
  options.push_back("-DMR_KV_BITS=" + std::to_string(kv_bits));
  if (mma) return {{"attention_mma.cpp"}, options};
  options.push_back("-DMR_QUERIES=" +
                    std::to_string(most_queries(head_dim, by.lanes, kv_bits, sinks)));
  if (sinks) options.push_back("-DMR_SINKS=1");
  return {{"attention.cpp"}, options};
}

Recipe quantized_recipe(Target target, mr_dtype type) {
  return {{target.mma() ? "quantized_mma.cpp" : "quantized.cpp"}, build_options(target, type)};
}

Recipe dequantize_recipe(Target target, mr_dtype type) {
  return {{"dequantize.cpp"}, build_options(target, type)};
}

Recipe measure_recipe(Target target) { return {{"measure.cpp"}, build_options(target, MR_BF16)}; }

}  // namespace millrace::gpu
