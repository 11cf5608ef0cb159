// Times linear ops shape by shape against what the machine can do.
//
//   linear_bench [--isa NAME] [--weights 16bit|int8|int4|fp8|nf4|Q4_K|...] [--threads N]
//                [--rows 1,8,512] [--shape NxK[g]]...
//
// One line per shape and number of rows: GFLOP/s and its share of the peak of
// products from registers, GB/s of weights and its share of the bandwidth of
// reading memory, all measured in this run. The op of NxKg is gated. The weights of a shape are held in
// as many copies as make them much larger than the caches, and read in turn.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/linear/measure.hpp"
#include "cpu/linear/tune.hpp"
#include "cpu/machine/cores.hpp"
#include "cpu/machine/thread_pool.hpp"
#include "exec/blocks.hpp"

namespace {

using namespace millrace::cpu;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kWorkingSet = uint64_t{1} << 30;
constexpr double kSecondsPerCase = 0.6;
constexpr size_t kLeastRuns = 5;

struct Shape {
  int64_t n, k;
  bool gated = false;  // half of the columns gate the others, and out is bf16
};

struct Options {
  Isa isa = available_isas().front();
  int threads = 0;
  int weights = MR_WEIGHTS_16BIT;
  const millrace::BlockType* blocks = nullptr;  // of MR_WEIGHTS_BLOCKS
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64, 128, 512};
  // A Llama of 1.1 B: QKV, O, gate and up, down.
  std::vector<Shape> shapes = {{2560, 2048}, {2048, 2048}, {11264, 2048, true}, {2048, 5632}};
};

std::vector<bf16> random_bf16(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<bf16> values(n);
  for (bf16& v : values) v = from_float((static_cast<float>(random() >> 8) * 0x1p-24f) - 0.5f);
  return values;
}

std::vector<std::unique_ptr<Linear>> pack_copies(Shape s, const Options& o, ThreadPool& pool) {
  const std::vector<bf16> values = random_bf16(s.n * s.k, 1);
  mr_tensor weight{values.data(), MR_BF16, 2, {s.n, s.k}, 0, nullptr};
  int group = o.weights == MR_WEIGHTS_INT4 ? 32 : o.weights == MR_WEIGHTS_NF4 ? 64 : 0;
  if (o.blocks != nullptr) {
    weight.dtype = o.blocks->dtype;
    group = o.blocks->group;
  }
  LinearSpec spec{};
  const int parts = s.gated ? 2 : 1;
  for (int i = 0; i < parts; ++i) {
    spec.parts.push_back({&weight, nullptr, i * s.n / parts, s.n / parts, s.n / parts, 0});
  }
  spec.in_width = s.k;
  spec.out_width = s.n / parts;
  spec.activation = s.gated ? MR_ACT_SILU : MR_ACT_NONE;
  spec.gated = s.gated;
  spec.out_f32 = !s.gated;
  spec.weights = o.weights;
  spec.group = group;
  std::vector<std::unique_ptr<Linear>> copies;
  for (uint64_t bytes = 0; bytes < kWorkingSet; bytes += copies.back()->bytes()) {
    copies.push_back(Linear::pack(spec, o.isa, pool));
  }
  std::vector<Linear*> linears;
  for (const auto& copy : copies) linears.push_back(copy.get());
  tune_prefetch(linears, pool);
  return copies;
}

// Seconds of an op, the best of many: what others do to the machine is not ours.
double time_op(const std::vector<std::unique_ptr<Linear>>& copies, const bf16* in, int rows,
               void* out, ThreadPool& pool) {
  double best = 1e30, total = 0;
  for (size_t i = 0; total < kSecondsPerCase || i < kLeastRuns; ++i) {
    const auto begin = Clock::now();
    copies[i % copies.size()]->run(in, rows, out, pool);
    const double t = std::chrono::duration<double>(Clock::now() - begin).count();
    best = std::min(best, t);
    total += t;
  }
  return best;
}

bool parse(int argc, char** argv, Options& options) {
  bool own_shapes = false;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return false;
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--isa") {
      const auto isa = isa_from_name(value);
      if (!isa) return false;
      options.isa = *isa;
    } else if (flag == "--weights") {
      const std::vector<std::string> names = {"16bit", "int8", "int4", "fp8", "nf4"};
      const auto at = std::find(names.begin(), names.end(), value);
      options.weights = static_cast<int>(at - names.begin());
      for (int i = 0; i < 64 && at == names.end(); ++i) {
        const millrace::BlockType* type = millrace::block_type(MR_BLOCKS + i);
        if (type != nullptr && value == type->name) options.blocks = type;
      }
      if (at == names.end() && options.blocks == nullptr) return false;
    } else if (flag == "--threads") {
      options.threads = std::atoi(value.c_str());
    } else if (flag == "--rows") {
      options.rows.clear();
      for (const char* p = value.c_str(); p != nullptr; p = std::strchr(p, ',')) {
        if (*p == ',') ++p;
        options.rows.push_back(std::atoi(p));
      }
    } else if (flag == "--shape") {
      Shape s{};
      if (std::sscanf(value.c_str(), "%ldx%ld", &s.n, &s.k) != 2) return false;
      s.gated = value.back() == 'g';
      if (!own_shapes) options.shapes.clear();
      own_shapes = true;
      options.shapes.push_back(s);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  if (!parse(argc, argv, options)) {
    std::fprintf(stderr,
                 "usage: linear_bench [--isa NAME] [--weights 16bit|int8|int4|fp8|nf4|Q4_K|...] "
                 "[--threads N] "
                 "[--rows 1,8] [--shape NxK[g]]...\n");
    return 2;
  }
  ThreadPool pool(options.threads > 0 ? options.threads : usable_cores());
  Limits limits(options.isa, pool, kWorkingSet);
  const double gbps = limits.read_gbps(), peak = limits.peak_gflops(options.weights);
  std::printf("%s, %d threads: read %.1f GB/s, products %.0f GFLOP/s\n", isa_name(options.isa),
              pool.size(), gbps, peak);
  std::printf("%6s %6s %5s %10s %7s %7s %7s %7s\n", "N", "K", "rows", "us", "GFLOP/s", "peak",
              "GB/s", "read");
  for (const Shape s : options.shapes) {
    const auto copies = pack_copies(s, options, pool);
    for (const int rows : options.rows) {
      const std::vector<bf16> in = random_bf16(rows * s.k, 2);
      Pages out(rows * s.n * sizeof(float));
      const double t = time_op(copies, in.data(), rows, out.data(), pool);
      const double gflops = 2e-9 * rows * s.n * s.k / t;
      const double read = 1e-9 * static_cast<double>(copies[0]->bytes()) / t;
      std::printf("%6ld %6ld %5d %10.1f %7.1f %6.1f%% %7.1f %6.1f%%\n", s.n, s.k, rows, t * 1e6,
                  gflops, 100 * gflops / peak, read, 100 * read / gbps);
    }
  }
}
