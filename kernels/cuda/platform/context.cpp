#include "platform/context.hpp"

#include <algorithm>

#include "exec/error.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {
namespace {

struct All {
  std::mutex mutex;
  std::vector<std::shared_ptr<Context>> contexts;
};

// Never freed: at the process's end the driver may be gone before it.
All& all() {
  static auto& all = *new All;
  return all;
}

}  // namespace

std::shared_ptr<Context> Context::of(const DeviceHandle& device) {
  const std::lock_guard lock(all().mutex);
  for (const auto& context : all().contexts) {
    if (context->device().ordinal == device.ordinal) return context;
  }
  return all().contexts.emplace_back(std::make_shared<Context>(device));
}

void Context::forget(const Context* context) {
  std::shared_ptr<Context> last;  // ends after the lock
  const std::lock_guard lock(all().mutex);
  auto& contexts = all().contexts;
  const auto found = std::find_if(contexts.begin(), contexts.end(),
                                  [&](const auto& c) { return c.get() == context; });
  if (found == contexts.end()) return;
  last = std::move(*found);
  contexts.erase(found);
}

Context::Context(const DeviceHandle& device) : device_(device) {
  constexpr unsigned kSpinOrBlock = 0;  // CU_CTX_SCHED_AUTO
  CUdevice ordinal = 0;
  cuda().device_get(&ordinal, device.ordinal);
  const auto& create = cuda().context_create;
  if (const int result = create.address(&handle_, kSpinOrBlock, ordinal); result != 0) {
    // An illegal address, for one, ends the process's use of the GPU.
    const bool of_kernel = result >= kCudaKernelErrors[0] && result <= kCudaKernelErrors[1];
    fail(MR_DEVICE, "CUDA: %s%s", cuda_error(create.name, result).c_str(),
         of_kernel ? "; only a new process can use the GPU" : "");
  }
  CUcontext current;
  cuda().context_pop(&current);
}

Context::~Context() {
  code_.clear();  // waits for compilers, which load into it
  // Frees what it holds. What fails here has failed before.
  cuda().context_destroy.address(handle_);
}

void Context::make_current() const { cuda().context_set_current(handle_); }

std::shared_future<CUmodule> Context::code(const std::vector<std::string>& files,
                                           const std::vector<std::string>& options) {
  const std::lock_guard lock(mutex_);
  for (const Code& c : code_) {
    if (c.files == files && c.options == options) return c.loaded;
  }
  // Not a shared pointer: the future lives in this context.
  auto loaded = std::async(std::launch::async, load_code, std::cref(*this), files, options).share();
  return code_.emplace_back(Code{files, options, std::move(loaded)}).loaded;
}

}  // namespace millrace::gpu
