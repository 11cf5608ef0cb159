// What the device files share. Macros of the build:
//   MR_BF16      1: operands are bf16, 0: f16
//   MR_LANES     work-items of a sub-group, and columns of a block: 16, or 8
//   MR_XMX       1: matrix products by the matrix engine, 0: written out
//   MR_MMA       1: by NVIDIA's tensor cores, with 32 lanes (cuda/device); not defined: 0
//   MR_SERIAL    1: for a processor, where the sub-groups of a work-group run one after the other; not defined: 0
//   MR_EXPERTS   1: linear ops over rows sorted by expert; not defined: 0
//   MR_HEAD_DIM  elements of a key of a head (attention only)
//   MR_VALUE_DIM of a value (attention only); not defined: those of a key
//   MR_LATENT    1: a value is the beginning of its key (attention only); not defined: 0
//   MR_KV_BITS   bits of an element of the KV cache: 16, 8 or 4 (attention only)
//   MR_QUERIES   most queries of a task (attention only)
//   MR_STRIPES   sub-groups of a work-group (attention only); not defined: 4
//   MR_SINKS     1: ops have sinks (attention only); not defined: 0
//   MR_CHUNKED   1: ops have chunks (attention only); not defined: 0
//   MR_SOFTCAP   1: ops have capped scores (attention only); not defined: 0
#ifndef MILLRACE_GPU_DEVICE_COMMON_HPP
#define MILLRACE_GPU_DEVICE_COMMON_HPP

#include <limits>
#include <sycl/sycl.hpp>

#include "shapes.hpp"

namespace syclex = sycl::ext::oneapi::experimental;
namespace mr = millrace::gpu;

// Everything is inlined: what is not keeps its arrays in memory.
#ifndef MR_INLINE
#define MR_INLINE [[gnu::always_inline]] inline
#endif

// A kernel that the host finds by its name, over a flat range of work-items.
#define MR_KERNEL                                                                          \
  extern "C" SYCL_EXTERNAL SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::nd_range_kernel<1>)) \
      SYCL_EXT_ONEAPI_FUNCTION_PROPERTY((syclex::sub_group_size<MR_LANES>)) void

// Every kernel calls it before it reads or writes what a kernel before it may have in use. A platform that starts
// kernels before those before them have ended defines it.
#ifndef MR_AFTER_PREVIOUS
#define MR_AFTER_PREVIOUS() static_cast<void>(0)
#endif

using Item = sycl::nd_item<1>;
MR_INLINE Item this_item() { return sycl::ext::oneapi::this_work_item::get_nd_item<1>(); }

// A number that all lanes have. After a barrier a CPU's compiler has forgotten that they do, and what
// follows gets masks and addresses of each lane.
MR_INLINE int uniform(const sycl::sub_group& sub_group, int x) {
  return sycl::group_broadcast(sub_group, x, 0);
}

// The number of this sub-group in its work-group.
MR_INLINE int sub_group_index(const Item& item) {
  const auto sub_group = item.get_sub_group();
  return uniform(sub_group, static_cast<int>(sub_group.get_group_linear_id()));
}

// Element `lane` of those at an address of 4 bytes that all lanes have. A CPU's compiler does not see
// that they lie side by side, and would load them one by one. Those of GPUs see it, and have registers
// for no more than their own loads (scripts/sycl-isa).
template <class T>
MR_INLINE T load_lanes(const sycl::sub_group& sub_group, const T* first) {
#if MR_XMX
  return first[sub_group.get_local_linear_id()];
#else
  using namespace sycl::access;
  return sub_group.load(
      sycl::address_space_cast<address_space::global_space, decorated::yes>(first));
#endif
}
template <class T>
MR_INLINE void store_lanes(const sycl::sub_group& sub_group, T* first, T x) {
#if MR_XMX
  first[sub_group.get_local_linear_id()] = x;
#else
  using namespace sycl::access;
  sub_group.store(sycl::address_space_cast<address_space::global_space, decorated::yes>(first), x);
#endif
}

// Fetches memory ahead of need on a processor: 1 KiB that lies kFetchedAhead words after `words`, a cache line for each lane. Its
// compiler makes a call for each lane, so every lane has another line. Other devices hide the time.
constexpr int kFetchedWords = 16 * MR_LANES, kFetchedAhead = 1024;
MR_INLINE void fetch_ahead(const uint32_t* words, int lane) {
#if MR_SERIAL
  syclex::prefetch(words + kFetchedAhead + lane * 16);
#else
  static_cast<void>(words), static_cast<void>(lane);
#endif
}

enum Type { kF32 = 0, kF16 = 1, kBF16 = 2 };  // mr_dtype

// ---- 16-bit numbers, as bits

MR_INLINE float bf16_to_float(uint16_t x) {
  return sycl::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
MR_INLINE float f16_to_float(uint16_t x) {
  return static_cast<float>(sycl::bit_cast<sycl::half>(x));
}

// Round to nearest even.
MR_INLINE uint16_t float_to_bf16(float x) {
  const uint32_t bits = sycl::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
// What is beyond f16 becomes a NaN and not an infinity: a key of -inf would only drop its token,
// while a NaN reaches the logits, where it is found.
MR_INLINE uint16_t float_to_f16(float x) {
  const uint16_t bits = sycl::bit_cast<uint16_t>(static_cast<sycl::half>(x));
  return (bits & 0x7fff) == 0x7c00 ? bits | 0x0200 : bits;
}

// The type of operands, and of keys and values that are not codes.
using operand = uint16_t;
#if MR_BF16
MR_INLINE float to_float(operand x) { return bf16_to_float(x); }
MR_INLINE operand to_operand(float x) { return float_to_bf16(x); }
#else
MR_INLINE float to_float(operand x) { return f16_to_float(x); }
MR_INLINE operand to_operand(float x) { return float_to_f16(x); }
#endif

// Element i of a tensor of the checkpoint.
MR_INLINE float element(const void* data, int type, int64_t i) {
  if (type == kF32) return static_cast<const float*>(data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return type == kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// Element i of an output slot of either type.
MR_INLINE void store(void* out, bool f32, int64_t i, float value) {
  if (f32) {
    static_cast<float*>(out)[i] = value;
  } else {
    static_cast<operand*>(out)[i] = to_operand(value);
  }
}

// Elements from `first` on, which is a multiple of 8, one of each lane.
MR_INLINE void store_lanes(const sycl::sub_group& sub_group, void* out, bool f32, int64_t first,
                           float value) {
  if (f32) {
    store_lanes(sub_group, static_cast<float*>(out) + first, value);
  } else {
    store_lanes(sub_group, static_cast<operand*>(out) + first, to_operand(value));
  }
}

// ---- KV cache

// Where the keys and values of a step lie: all kernels find them here.
struct KvTables {
  const uint64_t* slabs;  // addresses; 0: not mapped
  const int32_t* beams;
};

// What an entry of the slab table points to: global memory, which the compiler cannot see.
MR_INLINE uint8_t* kv_memory(uint64_t address) {
  using Global = sycl::decorated_global_ptr<uint8_t>::pointer;
  return reinterpret_cast<Global>(address);
}

// The address of token `position` in a slab's first block, as the sequence's row sees
// it: in its own slabs, or in the response of a beam.
MR_INLINE uint64_t kv_token(int token_bytes, const KvTables& tables,
                            const mr::SequenceEntry& sequence, int row, int position) {
  const uint64_t* slabs = tables.slabs + sequence.slabs;
  int at = position;
  if (at >= sequence.prompt) {
    at -= sequence.prompt;
    const int32_t beam = tables.beams[sequence.index + row * sequence.steps + at];
    slabs = tables.slabs + tables.beams[sequence.responses + beam];
  }
  return slabs[at / mr::kSlabTokens] +
         static_cast<uint64_t>(at % mr::kSlabTokens) * static_cast<uint64_t>(token_bytes);
}

// The slab of the sequence's own tokens [16 * index, 16 * index + 16).
MR_INLINE uint8_t* kv_slab(const KvTables& tables, const mr::SequenceEntry& sequence, int index) {
  return kv_memory(tables.slabs[sequence.slabs + index]);
}

#endif
