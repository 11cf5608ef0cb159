// The kernels of a linear op, written once over a Target: the few operations
// that an instruction set has its own way for. A linear_<isa>.cpp includes this
// file after it has switched the compiler to that instruction set; everything
// is in an unnamed namespace, so that no other file gets to link such code.
//
// Sums: one accumulator per output, over the pairs of K in ascending order. The
// number of rows and panels of a tile changes which outputs are computed
// together, never the operations of one.
#ifndef MILLRACE_CPU_LINEAR_TILE_HPP
#define MILLRACE_CPU_LINEAR_TILE_HPP

#include <algorithm>
#include <cstring>
#include <utility>

#include "cpu/linear/kernels.hpp"
#include "cpu/machine/math_tile.hpp"
#include "cpu/machine/round_tile.hpp"
#include "millrace_kernels.h"

namespace millrace::cpu {
namespace {

// Target:
//   kLanes           floats in a vector
//   kMaxRows         rows of the largest tile, which has 2 * kMaxRows accumulators
//   kDepth           elements of K in a unit
//   Vector           kLanes sums
//   Pair             a unit of one row, as it lies in the packed operand
//   Operand spread(const Pair*)        a unit in every lane
//   Weight           an element of a panel
//   Weights load(const Weight* unit, int vector)  kLanes units of weights
//   void multiply(Vector&, Weights, Operand)  adds the products, always in the same order
//   value(const Finish&, int row, int vector)  the sums of a row as floats, scaled
//   multiply_add(a, b, c)              a * b + c of vectors of floats, rounded once where
//                                      the instruction set can

// Who fetches the weights of a tile before their use: the processor by itself (hardware); or
// the tile, to the first-level cache (l1) Tile::prefetch_distance bytes ahead, and from memory to
// the second-level one (l2) either kL2PrefetchDistance bytes ahead or from Tile::next_block.
enum class Prefetch { hardware, l1, l1_and_l2, l1_and_next_block };
inline constexpr int kL2PrefetchDistance = 8192;
inline constexpr size_t kLine = 64;

template <Prefetch kPrefetch>
class Prefetcher {
 public:
  explicit Prefetcher(const Tile& t) : next_block_(t.next_block), distance_(t.prefetch_distance) {}

  // Before kBytes at `weights` are read.
  template <size_t kBytes>
  void prefetch(const void* weights) {
    const auto* at = static_cast<const std::byte*>(weights);
    for (size_t line = 0; line < kBytes; line += kLine) {
      if constexpr (kPrefetch == Prefetch::l1_and_l2)
        __builtin_prefetch(at + line + kL2PrefetchDistance, 0, 2);
      if constexpr (kPrefetch != Prefetch::hardware) __builtin_prefetch(at + line + distance_);
    }
    if constexpr (kPrefetch == Prefetch::l1_and_next_block) {
      constexpr size_t kShare = kBytes / 2;
      for (size_t line = 0; line < kShare; line += kLine)
        __builtin_prefetch(next_block_ + line, 0, 2);
      next_block_ += kShare;
    }
  }

 private:
  const std::byte* next_block_;
  const int64_t distance_;
};

template <class Target, int kRows, int kPanels, Prefetch kPrefetch, bool kExpand = false>
void tile(const Tile& t) {
  using Vector = typename Target::Vector;
  using Weight = typename Target::Weight;
  constexpr int kVector = Target::kDepth * Target::kLanes;  // weights of a unit
  Vector sums[kPanels][kPanelVectors][kRows];
  // f(sum, its place). They are copied by way of a vector of its own: with the address of
  // one of them GCC keeps all of them on the stack too.
  const auto each_sum = [&](auto&& f) {
    float* at = t.sums;
    for (auto& panel : sums) {
      for (auto& vector : panel) {
        for (Vector& sum : vector) f(sum, at), at += Target::kLanes;
      }
    }
  };
  if (t.fresh) {
    each_sum([](Vector& sum, const float*) { sum = Vector{}; });
  } else {
    each_sum([](Vector& sum, const float* at) {
      Vector copy;
      std::memcpy(&copy, at, sizeof copy);
      sum = copy;
    });
  }
  const auto* operand = static_cast<const typename Target::Pair*>(t.operand);
  const auto* weights = static_cast<const Weight*>(t.weights);
  const int64_t stride = t.panel_stride / static_cast<int64_t>(sizeof(Weight));
  float* expanded = t.expanded;
  Prefetcher<kPrefetch> prefetcher(t);
  for (int64_t k = 0; k < t.units; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const Weight* panel = weights + p * stride;
      prefetcher.template prefetch<kPanelVectors * kVector * sizeof(Weight)>(panel);
      const auto first = Target::load(panel, 0);
      const auto second = Target::load(panel, 1);
      if constexpr (kExpand) {
        Target::store(expanded, first);
        Target::store(expanded + kVector, second);
        expanded += kPanelVectors * kVector;
      }
      for (int r = 0; r < kRows; ++r) {
        const auto x = Target::spread(operand + r);
        Target::multiply(sums[p][0][r], first, x);
        Target::multiply(sums[p][1][r], second, x);
      }
    }
    operand += kRows;
    weights += kPanelVectors * kVector;
  }
  each_sum([](const Vector& sum, float* at) {
    const Vector copy = sum;
    std::memcpy(at, &copy, sizeof copy);
  });
}

template <class Target>
void pack_pairs(const OperandRows& rows, void* operand) {
  auto* out = static_cast<typename Target::Pair*>(operand) + rows.first;
  for (int64_t k = 0; k < rows.width; k += 2, out += rows.rows) {
    for (int r = 0; r < rows.count; ++r) {
      const bf16* x = rows.in + r * rows.width + k;
      out[r] = Target::make_pair(x[0], k + 1 < rows.width ? x[1] : bf16{0});
    }
  }
}

// Units of four bytes: `count` of each of kRows rows, which lie `stride` bytes apart, become
// the first of [count][rows] units.
template <int kRows>
void interleave(const void* from, int64_t stride, int64_t count, int rows, void* to) {
  typedef int32_t Four __attribute__((vector_size(16)));
  constexpr int kUnit = 4;
  const auto* in = static_cast<const std::byte*>(from);
  auto* out = static_cast<std::byte*>(to);
  int64_t i = 0;
  if constexpr (kRows == 4) {
    for (; i + 4 <= count; i += 4) {
      Four row[4];
      for (int r = 0; r < 4; ++r) std::memcpy(&row[r], in + r * stride + i * kUnit, sizeof(Four));
      const Four low01 = __builtin_shuffle(row[0], row[1], Four{0, 4, 1, 5});
      const Four low23 = __builtin_shuffle(row[2], row[3], Four{0, 4, 1, 5});
      const Four high01 = __builtin_shuffle(row[0], row[1], Four{2, 6, 3, 7});
      const Four high23 = __builtin_shuffle(row[2], row[3], Four{2, 6, 3, 7});
      const Four unit[4] = {__builtin_shuffle(low01, low23, Four{0, 1, 4, 5}),
                            __builtin_shuffle(low01, low23, Four{2, 3, 6, 7}),
                            __builtin_shuffle(high01, high23, Four{0, 1, 4, 5}),
                            __builtin_shuffle(high01, high23, Four{2, 3, 6, 7})};
      for (int u = 0; u < 4; ++u) std::memcpy(out + (i + u) * rows * kUnit, &unit[u], sizeof(Four));
    }
  }
  for (; i < count; ++i) {
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(out + (i * rows + r) * kUnit, in + r * stride + i * kUnit, kUnit);
    }
  }
}

// f.operator()<kCount>(first) for rows four at a time, then one by one.
template <class F>
void by_four_rows(int rows, F&& f) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) f.template operator()<4>(r);
  for (; r < rows; ++r) f.template operator()<1>(r);
}

// pack_pairs of targets that multiply pairs as they lie in memory. A few lines of each row
// at a time: rows a power of two apart share sets of the cache.
inline void pack_raw_pairs(const OperandRows& rows, void* operand) {
  constexpr int64_t kPairs = 64;
  const int64_t whole = rows.width / 2;
  auto* out = static_cast<uint32_t*>(operand) + rows.first;
  for (int64_t k = 0; k < whole; k += kPairs) {
    by_four_rows(rows.count, [&]<int kCount>(int r) {
      interleave<kCount>(rows.in + r * rows.width + k * 2, rows.width * sizeof(bf16),
                         std::min(kPairs, whole - k), rows.rows, out + k * rows.rows + r);
    });
  }
  if (rows.width % 2 == 0) return;
  for (int r = 0; r < rows.count; ++r) {
    out[whole * rows.rows + r] = rows.in[r * rows.width + rows.width - 1];
  }
}

// ---- What follows the sums ---------------------------------------------------

// Writes n of the lanes (adds them, where the op accumulates).
template <int kLanes>
void write(const Finish& f, int64_t at, typename Math<kLanes>::Vector y, int n) {
  if (!f.out_f32) {
    const auto rounded = to_bf16<kLanes>(y);
    bf16* out = static_cast<bf16*>(f.out) + at;
    if (n == kLanes) {  // a length known to the compiler
      std::memcpy(out, &rounded, sizeof rounded);
    } else {
      std::memcpy(out, &rounded, n * sizeof(bf16));
    }
    return;
  }
  float* out = static_cast<float*>(f.out) + at;
  if (n == kLanes) {
    if (f.accumulate) y = Math<kLanes>::load(out) + y;
    std::memcpy(out, &y, sizeof y);
    return;
  }
  float values[kLanes];
  std::memcpy(values, &y, sizeof y);
  for (int i = 0; i < n; ++i) out[i] = f.accumulate ? out[i] + values[i] : values[i];
}

// A vector's bf16 scales as floats.
template <int kLanes>
typename Math<kLanes>::Vector load_scales(const uint8_t* p) {
  typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));
  Halves halves;
  std::memcpy(&halves, p, sizeof halves);
  const auto words = __builtin_convertvector(halves, typename Math<kLanes>::Ints) << 16;
  return (typename Math<kLanes>::Vector)words;
}

// The float sums of a row as they are: the value() of targets that do not scale.
template <int kLanes>
typename Math<kLanes>::Vector plain_value(const Finish& f, int row, int vector) {
  return Math<kLanes>::load(f.sums + (vector * f.rows + row) * kLanes);
}

template <int kLanes>
typename Math<kLanes>::Vector clamp(typename Math<kLanes>::Vector x, float most) {
  using M = Math<kLanes>;
  x = x > most ? M::splat(most) : x;
  return x < -most ? M::splat(-most) : x;
}

// Activations with parameters, and those of Math.
template <class Target, int kActivation>
typename Math<Target::kLanes>::Vector activate(const Finish& f,
                                               typename Math<Target::kLanes>::Vector x) {
  using M = Math<Target::kLanes>;
  switch (kActivation) {
    case MR_ACT_RELU2:
      return x < 0.0f ? M::splat(0.0f) : x * x;
    case MR_ACT_XIELU:
      return 0.5f * x +
             (x > 0.0f ? f.act_a * x * x : f.act_b * (M::template exp<Target>(x) - 1.0f - x));
    case MR_ACT_CLAMP:
      return clamp<Target::kLanes>(x, f.act_a);
    case MR_ACT_SOFTCAP:  // tanh(u) = 1 - 2 / (1 + e^2u)
      return f.act_a - 2.0f * f.act_a / (1.0f + M::template exp<Target>(x * (2.0f / f.act_a)));
    case MR_ACT_SWIGLU:
      x = x > f.act_a ? M::splat(f.act_a) : x;
      return x / (1.0f + M::template exp<Target>(-f.act_b * x));
    default:
      return M::template activate<Target>(x, kActivation);
  }
}

// The rows of a panel; the op's properties are known at compile time, not tested row by row.
template <class Target, int kActivation, bool kGated>
void finish_rows(const Finish& panel) {
  constexpr int kLanes = Target::kLanes;
  using M = Math<kLanes>;
  using Vector = typename M::Vector;
  const Finish f = panel;  // which no output overwrites
  const Vector bias0 = f.bias ? M::load(f.bias) : Vector{};
  const Vector bias1 = f.bias ? M::load(f.bias + kLanes) : Vector{};
  for (int r = 0; r < f.rows; ++r) {
    const Vector first = Target::value(f, r, 0) + bias0;
    const Vector second = Target::value(f, r, 1) + bias1;
    const Vector y = activate<Target, kActivation>(f, first);
    const int64_t at = r * f.out_stride;
    if constexpr (kGated && kActivation == MR_ACT_SWIGLU) {
      write<kLanes>(f, at, y * (clamp<kLanes>(second, f.act_a) + 1.0f), f.columns);
      continue;
    }
    if constexpr (kGated) {
      write<kLanes>(f, at, y * second, f.columns);
      continue;
    }
    write<kLanes>(f, at, y, f.columns < kLanes ? f.columns : kLanes);
    if (f.columns > kLanes) {
      write<kLanes>(f, at + kLanes, activate<Target, kActivation>(f, second), f.columns - kLanes);
    }
  }
}

template <class Target, int kActivation>
void finish_activated(const Finish& f) {
  f.gated ? finish_rows<Target, kActivation, true>(f) : finish_rows<Target, kActivation, false>(f);
}

// Not inlined anywhere, so that there is one sequence of operations for all rows.
template <class Target>
[[gnu::noinline]] void finish(const Finish& f) {
  switch (f.activation) {
    case MR_ACT_SILU:
      return finish_activated<Target, MR_ACT_SILU>(f);
    case MR_ACT_GELU_TANH:
      return finish_activated<Target, MR_ACT_GELU_TANH>(f);
    case MR_ACT_GELU_ERF:
      return finish_activated<Target, MR_ACT_GELU_ERF>(f);
    case MR_ACT_RELU:
      return finish_activated<Target, MR_ACT_RELU>(f);
    case MR_ACT_RELU2:
      return finish_activated<Target, MR_ACT_RELU2>(f);
    case MR_ACT_XIELU:
      return finish_activated<Target, MR_ACT_XIELU>(f);
    case MR_ACT_CLAMP:
      return finish_activated<Target, MR_ACT_CLAMP>(f);
    case MR_ACT_SOFTCAP:
      return finish_activated<Target, MR_ACT_SOFTCAP>(f);
    case MR_ACT_SWIGLU:
      return finish_activated<Target, MR_ACT_SWIGLU>(f);
    default:
      return finish_activated<Target, MR_ACT_NONE>(f);
  }
}

// ---- What the machine can do -------------------------------------------------

template <class Target, int kPanels, Prefetch kPrefetch>
uint64_t read(const void* data, size_t bytes, int distance) {
  typedef uint64_t Words __attribute__((vector_size(64)));
  const size_t panel = bytes / kPanels;
  const auto* begin = static_cast<const char*>(data);
  Words sums[kPanels] = {};
  for (size_t i = 0; i < panel; i += 2 * kLine) {
#pragma GCC unroll 4
    for (size_t p = 0; p < kPanels; ++p) {
      const char* at = begin + p * panel + i;
      for (size_t line = 0; line < 2 * kLine; line += kLine) {
        if constexpr (kPrefetch == Prefetch::l1_and_l2)
          __builtin_prefetch(at + line + kL2PrefetchDistance, 0, 2);
        if constexpr (kPrefetch != Prefetch::hardware) __builtin_prefetch(at + line + distance);
        Words words;
        std::memcpy(&words, at + line, kLine);
        sums[p] ^= words;
      }
    }
  }
  uint64_t sum = 0;
  for (const Words& words : sums) {
    for (int i = 0; i < 8; ++i) sum ^= words[i];
  }
  return sum;
}

template <class Target>
double products(int64_t rounds) {
  using Vector = typename Target::Vector;
  constexpr int kSums = kPanelVectors * Target::kMaxRows;
  volatile char zero = 0;  // or the compiler would see that all sums are one, and nothing
  typename Target::Weights w[kPanelVectors];
  std::memset(w, zero, sizeof w);
  typename Target::Pair operand[Target::kMaxRows];
  std::memset(operand, 0x3f, sizeof operand);
  Vector sums[kSums];  // unrolled everywhere, or it would not be in registers
#pragma GCC unroll 32
  for (int s = 0; s < kSums; ++s) sums[s] = Vector{} + zero;
  for (int64_t i = 0; i < rounds; ++i) {
    // Weights and operand may be others each time, or what does not depend on the sums, all of
    // a product of bytes but its addition, would leave the loop or be done once for a row.
    asm volatile("" : : "r"(operand), "r"(w) : "memory");
#pragma GCC unroll 32
    for (int s = 0; s < kSums; ++s) {
      Target::multiply(sums[s], w[s % kPanelVectors], Target::spread(&operand[s / kPanelVectors]));
    }
  }
  Vector all{};
#pragma GCC unroll 32
  for (int s = 0; s < kSums; ++s) all += sums[s];
  volatile char sink;  // the sums are of use
  char bytes[sizeof all];
  std::memcpy(bytes, &all, sizeof all);
  for (const char byte : bytes) sink = byte;
  (void)sink;
  return 2.0 * Target::kDepth * Target::kLanes * kSums * static_cast<double>(rounds);
}

// Panels of a wide tile: as many as the registers hold sums for.
template <class Target, int kRows>
constexpr int wide_panels() {
  return kRows * kMaxTilePanels <= Target::kMaxRows ? kMaxTilePanels
         : kRows * 2 <= Target::kMaxRows            ? 2
                                                    : 1;
}

// Kernels: the tiles of a target, of() for rows, panels and prefetching, and products() in
// registers alone.
template <class Target>
struct Tiles {
  static double products(int64_t rounds) { return cpu::products<Target>(rounds); }
  template <int kRows, int kPanels, Prefetch kPrefetch>
  static constexpr TileKernel of() {
    return tile<Target, kRows, kPanels, kPrefetch>;
  }
};

template <class Target, class Kernels, int kPanels, Prefetch kPrefetch, int... kIndex>
constexpr PrefetchVariant make_prefetch_variant(std::integer_sequence<int, kIndex...>,
                                                int distance) {
  PrefetchVariant v{};
  v.distance = distance;
  ((v.panels[kIndex + 1] = std::min(kPanels, wide_panels<Target, kIndex + 1>())), ...);
  ((v.kernel[kIndex + 1] =
        Kernels::template of<kIndex + 1, std::min(kPanels, wide_panels<Target, kIndex + 1>()),
                             kPrefetch>()),
   ...);
  v.read = read<Target, kPanels, kPrefetch>;
  return v;
}

template <class Target, class Kernels, int... kIndex>
constexpr LinearKernels make_kernels(std::integer_sequence<int, kIndex...> rows) {
  LinearKernels k{};
  k.lanes = Target::kLanes;
  k.max_rows = Target::kMaxRows;
  k.unit = Target::kDepth;
  k.operand_bytes = sizeof(typename Target::Pair);
  ((k.block[kIndex + 1] = Kernels::template of<kIndex + 1, 1, Prefetch::l1_and_next_block>()), ...);
  auto& v = k.prefetch_variants;
  v[kOnePanel] =
      make_prefetch_variant<Target, Kernels, 1, Prefetch::l1_and_l2>(rows, kLongPrefetchDistance);
  v[1] = make_prefetch_variant<Target, Kernels, 1, Prefetch::hardware>(rows, 0);
  v[2] = make_prefetch_variant<Target, Kernels, kMaxTilePanels, Prefetch::hardware>(rows, 0);
  v[3] = make_prefetch_variant<Target, Kernels, kMaxTilePanels, Prefetch::l1_and_l2>(
      rows, kLongPrefetchDistance);
  v[4] = make_prefetch_variant<Target, Kernels, 1, Prefetch::l1_and_l2>(rows, kPrefetchDistance);
  k.multi_tile_limit = 6;
  k.finish = finish<Target>;
  k.products = Kernels::products;
  return k;
}

template <class Target, class Kernels = Tiles<Target>>
constexpr LinearKernels make_kernels() {
  static_assert(Target::kMaxRows <= kMaxTileRows);
  return make_kernels<Target, Kernels>(std::make_integer_sequence<int, Target::kMaxRows>());
}

// The kernels of targets whose units are pairs of bf16.
template <class Target>
constexpr LinearKernels make_pair_kernels(const char* name) {
  LinearKernels k = make_kernels<Target>();
  k.name = name;
  k.pack_operand = pack_pairs<Target>;
  return k;
}

}  // namespace
}  // namespace millrace::cpu

#endif
