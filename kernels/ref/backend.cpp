#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>

#include "cpu/machine/cores.hpp"
#include "cpu/machine/rank_places.hpp"
#include "exec/abi.hpp"
#include "exec/error.hpp"
#include "exec/limits.hpp"
#include "ref/ref.hpp"

namespace millrace::ref {
namespace {

// Grows whenever some bit of a result changes (docs/decisions/numerics-classes.md).
constexpr int kNumericsVersion = 1;

// What the C library makes of some numbers: its functions are part of what these kernels do, and
// have other bits in other versions and on other processors.
uint32_t libm_bits() {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (int i = -512; i < 512; ++i) {
    const float x = static_cast<float>(i) / 32;
    for (const float y : {std::exp(x), std::tanh(x), std::erf(x)}) {
      hash = (hash ^ std::bit_cast<uint32_t>(y)) * 16777619u;
    }
  }
  return hash;
}

class RefDevice : public Device {
 public:
  explicit RefDevice(int threads) : pool_(threads) {}

  void info(mr_device_info& out) const override {
    std::snprintf(out.name, sizeof out.name, "%s", cpu_model().c_str());
    std::snprintf(out.isa, sizeof out.isa, "portable");
    std::snprintf(out.isas, sizeof out.isas, "portable");
    const MemoryLimits memory = memory_limits();
    out.threads = pool_.size();
    out.on_cpu = 1;
    out.keeps_blocks = 1;
    out.memory_total = memory.total;
    out.memory_available = memory.available;
  }
  mr_measurement measure() override {
    fail(MR_UNSUPPORTED, "the ref backend measures nothing: it is an oracle");
  }
  mr_dtype kv_dtype(const Program&) const override { return MR_F32; }
  // As floats too: what the codes stand for.
  // KIVI's block has what each token is, and then what its codes stand for.
  size_t kv_code_block_bytes(int width, int32_t type) const override {
    return size_t{MR_SLAB_TOKENS} * width * sizeof(float) * (type == MR_KV_KIVI ? 2 : 1);
  }
  // Not used: a cache without beams is recognized by it.
  int kv_head_slabs(int32_t type) const override { return type == MR_KV_KIVI ? 1 : 0; }
  bool takes_h2o() const override { return true; }
  mr_dtype operand_dtype(const Program&) const override { return MR_F32; }
  std::unique_ptr<Kernels> load(const Program& program, const KvLayout& kv) override {
    return std::make_unique<RefKernels>(program, kv, pool_);
  }

 private:
  ThreadPool pool_;
};

std::unique_ptr<Device> open(const mr_device_config& config, int /*rank*/) {
  if (config.threads < 0 || config.threads > 1024) {
    fail(MR_INVALID, "%d threads, expected 0 to 1024", config.threads);
  }
  return std::make_unique<RefDevice>(config.threads > 0 ? config.threads : cpu::usable_cores());
}

int32_t device_open(const mr_device_config* config, mr_device** out, mr_error* error) {
  return open_device(open, config, out, error, cpu::rank_places);
}

}  // namespace

std::string RefKernels::numerics() const {
  char text[64];
  std::snprintf(text, sizeof text, "ref %d float libm-%08x", kNumericsVersion, libm_bits());
  return text;
}

}  // namespace millrace::ref

extern "C" const mr_backend* millrace_backend_ref(void) {
  static const mr_backend backend = millrace::backend_table("ref", millrace::ref::device_open);
  return &backend;
}
