// Tests of device/attention_mma.cpp by itself, on a GPU or on the emulator: results against float64, and the same bits
// of a query in a prompt, in every chunk of it, and as a decode row. With --bench, times on a GPU instead.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "driver.hpp"
#include "gpu/shapes.hpp"
#include "platform/compiler.hpp"

namespace millrace::gpu {
namespace {

constexpr int kLocalBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

float bf16_value(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
uint16_t bf16_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// Normal numbers of f16 only.
float f16_value(uint16_t x) {
  const int exponent = x >> 10 & 31;
  const float f = std::ldexp(static_cast<float>((x & 1023) | (exponent ? 1024 : 0)),
                             (exponent ? exponent : 1) - 25);
  return x & 0x8000 ? -f : f;
}
uint16_t f16_bits(float x) {
  uint16_t best = 0;
  int exponent;
  const float m = std::frexp(std::fabs(x), &exponent);  // 0.5 to 1
  const int shift = std::max(exponent, -13);
  const float scaled = std::nearbyint(std::ldexp(m, exponent - shift + 11));
  const int whole = static_cast<int>(scaled);
  best = static_cast<uint16_t>(whole + ((shift + 13) << 10));
  return static_cast<uint16_t>(best | (x < 0 ? 0x8000 : 0));
}

class Memory {
 public:
  explicit Memory(size_t bytes) : bytes_(bytes) { cuda().memory_allocate(&data_, bytes + 16); }
  template <class T>
  explicit Memory(const std::vector<T>& values) : Memory(values.size() * sizeof(T)) {
    write(values.data());
  }
  ~Memory() { cuda().memory_free.address(data_); }
  Memory(const Memory&) = delete;
  void write(const void* from) const {
    if (bytes_ == 0) return;
    cuda().copy(data_, reinterpret_cast<CUdeviceptr>(from), bytes_, nullptr);
    cuda().stream_synchronize(nullptr);
  }
  void read(void* to) const {
    cuda().copy(reinterpret_cast<CUdeviceptr>(to), data_, bytes_, nullptr);
    cuda().stream_synchronize(nullptr);
  }
  void* data() const { return reinterpret_cast<void*>(data_); }

 private:
  CUdeviceptr data_ = 0;
  size_t bytes_;
};

struct Kernels {
  CUmodule module = nullptr;
  CUfunction prompt = nullptr, decode = nullptr;

  Kernels(bool bf16, int head_dim, const std::string& architecture) {
    const std::string code = compile(
        nvrtc(), {"attention_mma.cpp"},
        {"-ffp-contract=off", bf16 ? "-DMR_BF16=1" : "-DMR_BF16=0", "-DMR_LANES=32", "-DMR_XMX=0",
         "-DMR_MMA=1", "-DMR_HEAD_DIM=" + std::to_string(head_dim), "-DMR_KV_BITS=16"},
        architecture);
    cuda().module_load(&module, code.c_str(), 0, nullptr, nullptr);
    cuda().module_function(&prompt, module, "mr_attention_prompt");
    cuda().module_function(&decode, module, "mr_attention_decode");
    cuda().function_set_attribute(prompt, kLocalBytes, prompt_local_bytes(head_dim));
    cuda().function_set_attribute(decode, kLocalBytes, decode_local_bytes(head_dim));
  }
};

void launch(const Kernels& kernels, bool prompt, int tasks, const void* qkv, const void* sequences,
            const void* tasks_at, const void* slabs, const void* slopes, void* out,
            AttentionShape shape) {
  const void* none = nullptr;
  char local = 0;
  void* arguments[] = {&qkv,    &none, &sequences, &tasks_at, &slabs, &none,
                       &slopes, &none, &out,       &none,     &local, &shape};
  const int d = shape.kv.head_dim;
  const CUlaunchConfig config{
      {static_cast<unsigned>(tasks * shape.kv.kv_heads), 1, 1},
      {32u * static_cast<unsigned>(prompt ? kPromptWarps : decode_warps(d)), 1, 1},
      static_cast<unsigned>(prompt ? prompt_local_bytes(d) : decode_local_bytes(d)),
      nullptr,
      nullptr,
      0};
  cuda().launch_kernel(&config, prompt ? kernels.prompt : kernels.decode, arguments, nullptr);
}

struct Case {
  bool bf16;
  int head_dim, kv_heads, group, window;
  bool alibi;
  int length;
};

// Rows [first, first + rows) of the sequence as one sequence of a step.
struct Part {
  int first, rows;
};

class Test {
 public:
  Test(const Case& c, const Kernels& kernels) : c_(c), kernels_(kernels), random_(c.length + 7) {
    std::normal_distribution<float> normal;
    const size_t n = size_t(c.length) * c.kv_heads * c.head_dim;
    for (size_t i = 0; i < n; ++i) keys_.push_back(bits(normal(random_) * 2));
    for (size_t i = 0; i < n; ++i) values_.push_back(bits(normal(random_)));
    for (size_t i = 0; i < n * c.group; ++i) queries_.push_back(normal(random_));
    for (int h = 0; h < heads(); ++h) {
      slopes_.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / static_cast<float>(heads())));
    }
  }

  bool run() {
    const std::vector<float> reference = exact();
    const std::vector<float> whole = results(true, {{0, c_.length}}, false);
    double most = 0;
    for (size_t i = 0; i < whole.size(); ++i) {
      const double error = std::fabs(double(whole[i]) - reference[i]);
      most = error <= most ? most : error;  // a NaN stays
    }
    bool good = most < (c_.bf16 ? 2e-2 : 3e-3);
    std::vector<Part> rows, chunks;
    for (int i = 0; i < c_.length; ++i) rows.push_back({i, 1});
    const int sizes[] = {1, 37, 2, 64, 5, 16, 3, 100};
    for (int at = 0, i = 0; at < c_.length; ++i) {
      chunks.push_back({at, std::min(sizes[i % 8], c_.length - at)});
      at += chunks.back().rows;
    }
    const auto same = [&](const char* name, bool prompt, const std::vector<Part>& parts,
                          bool unwritten) {
      const std::vector<float> other = results(prompt, parts, unwritten);
      if (std::memcmp(other.data(), whole.data(), whole.size() * sizeof(float)) == 0) return;
      good = false;
      size_t i = 0;
      while (std::memcmp(&other[i], &whole[i], 4) == 0) ++i;
      const size_t width = size_t(heads()) * c_.head_dim;
      std::printf("  %s: row %zu, head %zu, element %zu is %.9g, in one prompt %.9g\n", name,
                  i / width, i % width / c_.head_dim, i % c_.head_dim, other[i], whole[i]);
    };
    same("decode", false, rows, false);
    same("prompt of one row", true, rows, false);
    same("chunks", true, chunks, true);
    same("chunks by decode", false, chunks, true);
    std::printf("%s %s d=%d, %d x %d heads, window %d, alibi %d, %d tokens: error %.2g\n",
                good ? "ok  " : "FAIL", c_.bf16 ? "bf16" : "f16", c_.head_dim, c_.kv_heads,
                c_.group, c_.window, c_.alibi, c_.length, most);
    std::fflush(stdout);
    return good;
  }

 private:
  int heads() const { return c_.kv_heads * c_.group; }
  uint16_t bits(float x) const { return c_.bf16 ? bf16_bits(x) : f16_bits(x); }
  float value(uint16_t x) const { return c_.bf16 ? bf16_value(x) : f16_value(x); }
  int first_key(int position) const {
    return c_.window > 0 ? std::max(0, position - c_.window + 1) : 0;
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(c_.head_dim)); }

  std::vector<float> exact() const {
    std::vector<float> out;
    const int d = c_.head_dim;
    for (int row = 0; row < c_.length; ++row) {
      for (int h = 0; h < heads(); ++h) {
        std::vector<double> scores, sums(d);
        double most = -1e300, total = 0;
        const auto token = [&](int key) { return (size_t(key) * c_.kv_heads + h / c_.group) * d; };
        for (int key = first_key(row); key <= row; ++key) {
          double score = 0;
          for (int i = 0; i < d; ++i) {
            score += double(value(bits(queries_[(size_t(row) * heads() + h) * d + i]))) *
                     value(keys_[token(key) + i]);
          }
          score = score * scale() + (c_.alibi ? slopes_[h] * double(key - row) : 0.0);
          scores.push_back(score);
          most = std::max(most, score);
        }
        for (int key = first_key(row); key <= row; ++key) {
          const double p = std::exp(scores[key - first_key(row)] - most);
          total += p;
          for (int i = 0; i < d; ++i) sums[i] += p * value(values_[token(key) + i]);
        }
        for (int i = 0; i < d; ++i) out.push_back(static_cast<float>(sums[i] / total));
      }
    }
    return out;
  }

  // The sequence in parts, which are sequences of one step, or, with `unwritten`, of steps of their own, where
  // later tokens are NaN and slabs that nothing reads are not there.
  std::vector<float> results(bool prompt, const std::vector<Part>& parts, bool unwritten) const {
    std::vector<float> out(size_t(c_.length) * heads() * c_.head_dim);
    if (!unwritten) {
      step(prompt, parts, c_.length, out);
    } else {
      for (const Part& p : parts) step(prompt, {p}, p.first + p.rows, out);
    }
    return out;
  }

  void step(bool prompt, const std::vector<Part>& parts, int written,
            std::vector<float>& out) const {
    const int d = c_.head_dim, head_block = kSlabTokens * 2 * d;
    const int slabs = (c_.length + kSlabTokens - 1) / kSlabTokens;
    const KvShape kv{256, 256 + int64_t{c_.kv_heads} * head_block, c_.kv_heads, d, 16};
    const size_t slab_bytes = 256 + 2 * size_t(c_.kv_heads) * head_block;
    std::vector<uint16_t> pool(slab_bytes / 2 * slabs, 0xffff);
    const auto place = [&](int slab) { return (slab * 7 + 3) % slabs * slab_bytes; };
    const bool spread = slabs % 7 != 0;
    const auto slab_at = [&](int slab) { return spread ? place(slab) : slab * slab_bytes; };
    for (int key = 0; key < written; ++key) {
      for (int h = 0; h < c_.kv_heads; ++h) {
        for (int v = 0; v < 2; ++v) {
          uint16_t* to =
              &pool[(slab_at(key / kSlabTokens) + (v ? kv.values : kv.keys) + h * head_block) / 2 +
                    key % kSlabTokens * d];
          std::memcpy(to, &(v ? values_ : keys_)[(size_t(key) * c_.kv_heads + h) * d], 2 * d);
        }
      }
    }
    const Memory pool_memory(pool);

    std::vector<SequenceEntry> sequences;
    std::vector<AttentionTask> tasks;
    std::vector<uint64_t> table;
    std::vector<float> qkv;
    const int queries = prompt ? kPromptQueries : kProductQueries;
    const size_t width = size_t(heads()) * d;
    int rows = 0;
    for (const Part& p : parts) {
      for (int first = 0; first < p.rows * c_.group; first += queries) {
        tasks.push_back({static_cast<int32_t>(sequences.size()), first});
      }
      sequences.push_back(
          {rows, p.rows, p.first, static_cast<int32_t>(table.size()), kNoPrompt, 0, 0, 0, 0, 0});
      for (int slab = 0; slab <= (p.first + p.rows - 1) / kSlabTokens; ++slab) {
        const bool there = slab >= first_key(p.first) / kSlabTokens;
        table.push_back(there ? reinterpret_cast<uint64_t>(pool_memory.data()) + slab_at(slab) : 0);
      }
      for (int row = p.first; row < p.first + p.rows; ++row) {
        qkv.insert(qkv.end(), &queries_[row * width], &queries_[row * width] + width);
        qkv.insert(qkv.end(), 2 * size_t(c_.kv_heads) * d, std::nanf(""));
      }
      rows += p.rows;
    }
    const Memory q(qkv), entries(sequences), task_memory(tasks), slab_table(table), slopes(slopes_);
    std::vector<float> result(rows * width, std::nanf(""));
    const Memory results(result);
    launch(kernels_, prompt, static_cast<int>(tasks.size()), q.data(), entries.data(),
           task_memory.data(), slab_table.data(), slopes.data(), results.data(),
           {kv, (heads() + 2 * c_.kv_heads) * d, heads(), c_.window, 0, c_.alibi, 1, 0, 0, 0,
            kAllKeys, scale(), 0});
    cuda().stream_synchronize(nullptr);
    results.read(result.data());
    size_t row = 0;
    for (const Part& p : parts) {
      std::memcpy(&out[p.first * width], &result[row * width], p.rows * width * sizeof(float));
      row += p.rows;
    }
  }

  Case c_;
  const Kernels& kernels_;
  std::mt19937 random_;
  std::vector<uint16_t> keys_, values_;
  std::vector<float> queries_, slopes_;
};

// Microseconds of a launch.
double time(const Kernels& kernels, bool prompt, int head_dim, int kv_heads, int group,
            int sequences, int rows, int context) {
  const int d = head_dim, heads = kv_heads * group;
  const int64_t block = int64_t{kSlabTokens} * 2 * d * kv_heads;
  const int slabs = (context + rows + kSlabTokens - 1) / kSlabTokens;
  const Memory pool(size_t(sequences) * slabs * 2 * block);
  const std::vector<float> ones(size_t(sequences) * rows * (heads + 2 * kv_heads) * d, 0.5f);
  const std::vector<uint16_t> half(size_t(sequences) * slabs * block, 0x3f00);
  pool.write(half.data());
  std::vector<SequenceEntry> entries;
  std::vector<AttentionTask> tasks;
  std::vector<uint64_t> table;
  for (int s = 0; s < sequences; ++s) {
    entries.push_back(
        {s * rows, rows, context, static_cast<int32_t>(table.size()), kNoPrompt, 0, 0, 0, 0, 0});
    for (int i = 0; i < slabs; ++i) {
      table.push_back(reinterpret_cast<uint64_t>(pool.data()) + 2 * block * (s * slabs + i));
    }
    const int queries = prompt ? kPromptQueries : kProductQueries;
    const int n = (rows * group + queries - 1) / queries;
    for (int i = n - 1; i >= 0; --i) tasks.push_back({s, i * queries});
  }
  const Memory q(ones), sequence_memory(entries), task_memory(tasks), slab_table(table);
  const Memory out(ones.size() * 4);
  CUevent begin, end;
  cuda().event_create(&begin, 0);
  cuda().event_create(&end, 0);
  float best = std::numeric_limits<float>::max();
  constexpr int kLaunches = 50;
  for (int i = 0; i < 4; ++i) {
    cuda().event_record(begin, nullptr);
    for (int k = 0; k < kLaunches; ++k) {
      launch(kernels, prompt, static_cast<int>(tasks.size()), q.data(), sequence_memory.data(),
             task_memory.data(), slab_table.data(), nullptr, out.data(),
             {{0, block, kv_heads, d, 16},
              (heads + 2 * kv_heads) * d,
              heads,
              0,
              0,
              0,
              0,
              0,
              0,
              0,
              kAllKeys,
              0.125f,
              0});
    }
    cuda().event_record(end, nullptr);
    cuda().event_synchronize(end);
    float ms;
    cuda().event_elapsed(&ms, begin, end);
    best = std::min(best, ms);
  }
  return best * 1000 / kLaunches;
}

void bench(const std::string& architecture) {
  const Kernels small(true, 64, architecture), large(true, 128, architecture);
  for (const int rows : {128, 512, 2048}) {
    std::printf("prompt d=64, 4 x 8 heads, %d tokens: %.2f us\n", rows,
                time(small, true, 64, 4, 8, 1, rows, 0));
    std::printf("prompt d=128, 8 x 4 heads, %d tokens: %.2f us\n", rows,
                time(large, true, 128, 8, 4, 1, rows, 0));
  }
  for (const int sequences : {1, 8, 32, 128}) {
    for (const int context : {1, 127, 511, 2047}) {
      std::printf(
          "decode of %d, context %d: d=64, 4 x 8 heads %.2f us, d=128, 8 x 4 heads %.2f us\n",
          sequences, context, time(small, false, 64, 4, 8, sequences, 1, context),
          time(large, false, 128, 8, 4, sequences, 1, context));
    }
  }
}

int run(int argc, char** argv) {
  const bool measures = argc > 1 && std::strcmp(argv[1], "--bench") == 0;
  CUdevice device;
  CUcontext context;
  cuda().init(0);
  cuda().device_get(&device, 0);
  cuda().context_create(&context, 0, device);
  int major = 0, minor = 0;
  cuda().device_attribute(&major, 75, device);
  cuda().device_attribute(&minor, 76, device);
  const std::string architecture =
      "sm_" + std::to_string(major * 10 + minor) + (major == 9 ? "a" : "");
  if (measures) {
    bench(architecture);
    return 0;
  }
  bool good = true;
  for (const bool bf16 : {true, false}) {
    for (const int d : {64, 128, 40, 72, 256, 8}) {
      if (!bf16 && d != 64 && d != 128) continue;
      const Kernels kernels(bf16, d, architecture);
      const Case cases[] = {
          {bf16, d, 1, 1, 0, false, 1},    {bf16, d, 2, 3, 0, false, 70},
          {bf16, d, 1, 8, 0, true, 130},   {bf16, d, 2, 1, 33, false, 150},
          {bf16, d, 1, 3, 100, true, 300}, {bf16, d, 1, 20, 0, false, 18},
      };
      for (const Case& c : cases) good = Test(c, kernels).run() && good;
    }
  }
  std::puts(good ? "all good" : "FAILED");
  return good ? 0 : 1;
}

}  // namespace
}  // namespace millrace::gpu

int main(int argc, char** argv) {
  try {
    return millrace::gpu::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  }
}
