// The CPU as a device.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "cpu/linear/measure.hpp"
#include "cpu/machine/cores.hpp"
#include "cpu/machine/isa.hpp"
#include "cpu/machine/rank_places.hpp"
#include "cpu/ops/kv_codes.hpp"
#include "cpu/program.hpp"
#include "exec/abi.hpp"
#include "exec/error.hpp"
#include "exec/limits.hpp"

namespace millrace::cpu {
namespace {

// Several times the last cache, so that the bandwidth is the memory's.
constexpr uint64_t kMeasuredBytes = uint64_t{256} << 20;

// The names of what this machine runs, best first.
std::string isa_names() {
  std::string names;
  for (const Isa isa : available_isas()) {
    if (!names.empty()) names.push_back(',');
    names.append(isa_name(isa));
  }
  return names;
}

class CpuDevice : public Device {
 public:
  CpuDevice(Isa isa, int threads) : kernels_(op_kernels(isa)), pool_(threads) {}

  void info(mr_device_info& out) const override {
    const std::string isas = isa_names();
    std::snprintf(out.name, sizeof out.name, "%s", cpu_model().c_str());
    std::snprintf(out.isa, sizeof out.isa, "%s", isa_name(kernels_.isa));
    std::snprintf(out.isas, sizeof out.isas, "%s", isas.c_str());
    const MemoryLimits memory = memory_limits();
    out.threads = pool_.size();
    out.on_cpu = 1;
    out.keeps_blocks = 1;
    out.memory_total = memory.total;
    out.memory_available = memory.available;
  }
  mr_measurement measure() override {
    if (!limits_) limits_.emplace(kernels_.isa, pool_, kMeasuredBytes);
    return {limits_->read_gbps(), limits_->peak_gflops(MR_WEIGHTS_16BIT),
            limits_->peak_gflops(MR_WEIGHTS_INT8)};
  }
  bool takes_packed() const override { return true; }
  mr_dtype kv_dtype(const Program&) const override { return MR_BF16; }
  size_t kv_code_block_bytes(int width, int32_t type) const override {
    switch (type) {
      case MR_KV_INT8:
        return KvCodes<8>{width}.block_bytes();
      case MR_KV_INT4:
        return KvCodes<4>{width}.block_bytes();
      default:
        return KiviCodes{width}.block_bytes();
    }
  }
  int kv_head_slabs(int32_t type) const override { return type == MR_KV_KIVI ? kExactSlabs : 0; }
  bool takes_h2o() const override { return true; }
  mr_dtype operand_dtype(const Program&) const override { return MR_BF16; }
  std::unique_ptr<Kernels> load(const Program& program, const KvLayout& kv) override {
    return load_program(program, kv, kernels_, pool_);
  }

 private:
  const OpKernels& kernels_;
  ThreadPool pool_;
  std::optional<Limits> limits_;  // of the first measurement
};

Isa choose_isa(std::string_view name) {
  const std::vector<Isa> isas = available_isas();
  if (name.empty()) {
    // Tiles multiply several times as fast as vectors, so that no noise decides; where they
    // do not (they may be emulated), vectors it is.
    const bool slow_tiles = isas.front() == Isa::amx && !multiplies_faster(isas[0], isas[1]);
    return isas[slow_tiles ? 1 : 0];
  }
  const std::optional<Isa> isa = isa_from_name(name);
  if (isa && std::find(isas.begin(), isas.end(), *isa) != isas.end()) return *isa;
  fail(isa ? MR_UNSUPPORTED : MR_INVALID, "instruction set \"%.*s\", this machine runs %s",
       static_cast<int>(name.size()), name.data(), isa_names().c_str());
}

std::unique_ptr<Device> open(const mr_device_config& config, int /*rank*/) {
  constexpr int kMostThreads = 1024;
  if (config.threads < 0 || config.threads > kMostThreads) {
    fail(MR_INVALID, "%d threads, expected 0 to %d", config.threads, kMostThreads);
  }
  const std::string_view name(config.isa, strnlen(config.isa, sizeof config.isa));
  const int threads = config.threads > 0 ? config.threads : usable_cores();
  return std::make_unique<CpuDevice>(choose_isa(name), threads);
}

int32_t device_open(const mr_device_config* config, mr_device** out, mr_error* error) {
  return open_device(open, config, out, error, rank_places);
}

}  // namespace
}  // namespace millrace::cpu

extern "C" const mr_backend* millrace_backend_cpu(void) {
  static const mr_backend backend = millrace::backend_table("cpu", millrace::cpu::device_open);
  return &backend;
}
