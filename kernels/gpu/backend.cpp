// The backend of a platform, with the C ABI: libmillrace_sycl.so, libmillrace_cuda.so.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "exec/abi.hpp"
#include "exec/error.hpp"
#include "gpu/fault.hpp"
#include "gpu/kernels.hpp"
#include "gpu/measure.hpp"
#include "gpu/pool.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {
namespace {

constexpr int kMostHeadDim = 576;

void check_program(const Program& p, int lanes, int kv_bits) {
  for (const LayerShape& layer : p.kv_layers) {
    for (const int dim : {layer.key, layer.value}) {
      if (dim % 8 != 0 || dim > kMostHeadDim) {
        fail(MR_UNSUPPORTED, "head_dim is %d, the %s backend runs multiples of 8 up to %d", dim,
             kPlatform, kMostHeadDim);
      }
      if (!takes_kv_bits(dim, lanes, kv_bits)) {
        fail(MR_UNSUPPORTED,
             "a KV cache of int4 with heads of %d elements: a device with sub-groups of 8 has "
             "registers for up to 96; int8 takes every size",
             dim);
      }
    }
  }
}

class GpuDevice : public Device {
 public:
  GpuDevice(const Found& found, const std::string& isa, int threads, int32_t operands, bool profile)
      : id_(found.id),
        operands_(operands),
        target_(choose_target(found.device, isa)),
        threads_(bound_threads(found.device, threads)),
        stream_(std::make_shared<Stream>(found.device, profile)) {}

  void info(mr_device_info& out) const override {
    const DeviceHandle device = stream_->device();
    const DeviceMemory memory = device_memory(device);
    std::snprintf(out.name, sizeof out.name, "%s (%s)", device_name(device).c_str(), id_.c_str());
    std::snprintf(out.isa, sizeof out.isa, "%s", target_.name().c_str());
    std::snprintf(out.isas, sizeof out.isas, "%s", isa_names(device).c_str());
    out.threads = compute_units(device);
    out.on_cpu = on_cpu(device);
    out.keeps_logits = 1;
    out.memory_total = memory.total;
    out.memory_available = memory.available;
  }
  mr_measurement measure() override { return millrace::gpu::measure(*stream_, target_); }
  mr_dtype kv_dtype(const Program& p) const override { return operand_type(p, operands_); }
  size_t kv_code_block_bytes(int width, int32_t type) const override {
    if (type == MR_KV_KIVI) return 0;
    return size_t{kSlabTokens} * kv_token_bytes(width, kv_bits(type));
  }
  mr_dtype operand_dtype(const Program& p) const override { return operand_type(p, operands_); }
  Buffer allocate(size_t bytes) override { return stream_->allocate(bytes); }
  int32_t max_slabs() const override { return INT32_MAX; }

  std::shared_ptr<KvPool> pool(const KvLayout& layout, int slabs, const PoolFile& file) override {
    if (file.file >= 0) fail(MR_UNSUPPORTED, "the memory of a device is not a file");
    return std::make_shared<DevicePool>(stream_, common(MR_BF16)->copy_slab, layout, slabs);
  }

  std::unique_ptr<Kernels> load(const Program& program, const KvLayout& layout) override {
    check_program(program, target_.lanes, kv_bits(layout.type));
    // First: it takes the compiler longest, and runs beside the others'.
    const mr_dtype type = operand_type(program, operands_);
    const ProgramBundles bundles(*stream_, target_, program, type, layout.type);
    return std::make_unique<GpuKernels>(stream_, target_, type, common(type), bundles, choices_,
                                        program, layout);
  }

 private:
  // Compiled when first wanted.
  std::shared_ptr<const CommonKernels> common(mr_dtype type) {
    std::shared_ptr<const CommonKernels>& kernels = common_[type];
    if (!kernels) kernels = std::make_shared<CommonKernels>(*stream_, target_, type);
    return kernels;
  }

  std::string id_;
  int32_t operands_;  // of mr_device_config
  Target target_;
  std::shared_ptr<void> threads_;
  std::shared_ptr<Stream> stream_;
  std::map<mr_dtype, std::shared_ptr<const CommonKernels>> common_;
  LinearChoices choices_;
};

std::string text(const char* chars, size_t size) { return {chars, strnlen(chars, size)}; }

std::unique_ptr<Device> open(const mr_device_config& config, int rank) {
  constexpr int kMostThreads = 1024;
  if (config.threads < 0 || config.threads > kMostThreads) {
    fail(MR_INVALID, "%d threads, expected 0 to %d", config.threads, kMostThreads);
  }
  if (config.operands != 0 && config.operands != MR_F16 && config.operands != MR_BF16) {
    fail(MR_INVALID, "operands of type %d, expected %d (F16) or %d (BF16)", config.operands, MR_F16,
         MR_BF16);
  }
  read_fault(std::getenv(kFaultVariable));
  const int ranks = std::max(1, config.ranks);
  prepare_environment(config.threads * ranks);
  Found found = choose_device(text(config.device, sizeof config.device));
  // The threads of a part of a device are its own.
  const int bound = ranks > 1 ? 0 : config.threads;
  if (ranks > 1) found.device = part_of(found.device, rank, ranks);
  return std::make_unique<GpuDevice>(found, text(config.isa, sizeof config.isa), bound,
                                     config.operands, config.profile != 0);
}

// Where ranks run is up to the device.
std::vector<RankPlace> rank_places(const mr_device_config& config) {
  if (config.ranks > kMostRanks) {
    fail(MR_UNSUPPORTED, "%d ranks, the %s backend has at most %d", config.ranks, kPlatform,
         kMostRanks);
  }
  return std::vector<RankPlace>(config.ranks, RankPlace{config.threads / config.ranks, {}});
}

int32_t device_open(const mr_device_config* config, mr_device** out, mr_error* error) {
  return open_device(open, config, out, error, rank_places);
}

}  // namespace
}  // namespace millrace::gpu

extern "C" {

__attribute__((visibility("default"))) const mr_backend* millrace_backend(void) {
  static const mr_backend backend =
      millrace::backend_table(millrace::gpu::kPlatform, millrace::gpu::device_open);
  return &backend;
}

// One line per device, for people, as much as fits.
__attribute__((visibility("default"))) void millrace_describe_devices(char* out, size_t size) {
  if (out == nullptr || size == 0) return;
  std::string lines;
  try {
    millrace::gpu::prepare_environment(0);
    for (const auto& found : millrace::gpu::find_devices()) {
      lines += millrace::gpu::describe(found) + "\n";
    }
  } catch (const std::exception& e) {
    lines = std::string("error: ") + e.what() + "\n";
  }
  std::snprintf(out, size, "%s", lines.c_str());
}
}
