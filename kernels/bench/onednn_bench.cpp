// Our linear ops beside oneDNN's bf16 matmul (weights packed as it likes best,
// float sums and output), turn by turn in one run, and whether bits are equal:
// oneDNN's rows among few and among many rows, and oneDNN's rows and ours.
//
//   OMP_NUM_THREADS=2 linear_onednn_bench [threads] [isa]
//
// With one thread the clock is that thread's CPU time, which a busy machine
// disturbs less. Shares are of the peak measured beside each pair of turns.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cpu/linear/kernels.hpp"
#include "cpu/linear/linear.hpp"
#include "cpu/linear/measure.hpp"
#include "cpu/machine/cores.hpp"
#include "dnnl.hpp"

namespace {

using namespace millrace::cpu;

constexpr int kMostRows = 512, kTurns = 9;

std::vector<bf16> random_bf16(int64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<bf16> values(n);
  for (bf16& v : values) v = from_float((static_cast<float>(random() >> 8) * 0x1p-24f) - 0.5f);
  return values;
}

double now(bool cpu_time) {
  timespec t;
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

template <class F>
double seconds(bool cpu_time, F&& f) {
  const double begin = now(cpu_time);
  f();
  return now(cpu_time) - begin;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// GFLOP/s of products from registers, in about a millisecond.
double peak_now(Isa isa, ThreadPool& pool) {
  std::vector<double> done(pool.size());
  const double s = seconds(pool.size() == 1, [&] {
    pool.parallel_for(pool.size(), [&](int task, int) {
      done[task] = linear_kernels(isa, MR_WEIGHTS_16BIT).products(50'000);
    });
  });
  double operations = 0;
  for (const double d : done) operations += d;
  return operations / s * 1e-9;
}

// One product of oneDNN, for one number of rows.
class OneDnn {
 public:
  OneDnn(const std::vector<bf16>& weights, int rows, int64_t n, int64_t k) : stream_(engine_) {
    using dnnl::memory;
    const memory::desc in({rows, k}, memory::data_type::bf16, memory::format_tag::ab);
    const memory::desc any({k, n}, memory::data_type::bf16, memory::format_tag::any);
    const memory::desc out({rows, n}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc desc(engine_, in, any, out);
    weights_ = memory(desc.weights_desc(), engine_);
    memory plain({{k, n}, memory::data_type::bf16, memory::format_tag::ba}, engine_,
                 const_cast<bf16*>(weights.data()));
    dnnl::reorder(plain, weights_).execute(stream_, plain, weights_);
    in_ = memory(in, engine_, nullptr);
    out_ = memory(out, engine_, nullptr);
    name_ = desc.impl_info_str();
    matmul_ = dnnl::matmul(desc);
  }

  void run(const bf16* in, float* out) {
    in_.set_data_handle(const_cast<bf16*>(in));
    out_.set_data_handle(out);
    matmul_.execute(stream_,
                    {{DNNL_ARG_SRC, in_}, {DNNL_ARG_WEIGHTS, weights_}, {DNNL_ARG_DST, out_}});
    stream_.wait();
  }
  const std::string& name() const { return name_; }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_;
  dnnl::memory weights_, in_, out_;
  dnnl::matmul matmul_;
  std::string name_;
};

void compare(int64_t n, int64_t k, Isa isa, ThreadPool& pool) {
  const std::vector<bf16> weights = random_bf16(n * k, 1), in = random_bf16(kMostRows * k, 2);
  const mr_tensor tensor{weights.data(), MR_BF16, 2, {n, k}, 0, nullptr};
  const LinearSpec spec{{{&tensor, nullptr, 0, n, n, 0}}, k, n, MR_ACT_NONE, false, false, true};
  const auto ours = Linear::pack(spec, isa, pool);
  std::vector<float> all(kMostRows * n), out(kMostRows * n), mine(kMostRows * n);
  OneDnn(weights, kMostRows, n, k).run(in.data(), all.data());
  for (const int rows : {1, 2, 8, 16, 33, 64, 100, 256, 512}) {
    OneDnn theirs(weights, rows, n, k);
    theirs.run(in.data(), out.data());
    const double gflop = 2e-9 * rows * static_cast<double>(n * k);
    const bool cpu_time = pool.size() == 1;
    std::vector<double> peaks, rates, their_rates;
    for (int turn = 0; turn < kTurns; ++turn) {
      peaks.push_back(peak_now(isa, pool));
      their_rates.push_back(gflop / seconds(cpu_time, [&] { theirs.run(in.data(), out.data()); }));
      rates.push_back(gflop /
                      seconds(cpu_time, [&] { ours->run(in.data(), rows, mine.data(), pool); }));
    }
    const size_t bytes = rows * n * sizeof(float);
    const double peak = median(peaks), rate = median(rates), their_rate = median(their_rates);
    std::printf("%6ld %6ld %5d  %7.1f %5.1f%%  %7.1f %5.1f%%  %-6s %-6s %s\n", n, k, rows, rate,
                100 * rate / peak, their_rate, 100 * their_rate / peak,
                std::memcmp(out.data(), all.data(), bytes) == 0 ? "equal" : "differ",
                std::memcmp(out.data(), mine.data(), bytes) == 0 ? "equal" : "differ",
                theirs.name().c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  ThreadPool pool(argc > 1 ? std::atoi(argv[1]) : usable_cores());
  const Isa isa =
      argc > 2 ? isa_from_name(argv[2]).value_or(Isa::portable) : available_isas().front();
  for (const Isa each : available_isas()) {
    std::printf("%-12s products %.0f GFLOP/s\n", isa_name(each),
                Limits(each, pool, 0).peak_gflops(MR_WEIGHTS_16BIT));
  }
  std::printf(
      "%d threads; GFLOP/s and share of the peak of %s; bits: oneDNN's rows among few and "
      "among 512, oneDNN's and ours\n%6s %6s %5s  %14s  %14s  %s\n",
      pool.size(), isa_name(isa), "N", "K", "rows", "ours", "oneDNN", "bits");
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{2560, 2048}, {2048, 2048}, {11264, 2048}, {2048, 5632}}) {
    compare(n, k, isa, pool);
  }
}
