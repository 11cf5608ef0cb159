#include "sycl/bundle.hpp"

#include <cstdio>
#include <deque>
#include <mutex>

#include "exec/error.hpp"
#include "sycl/sources.hpp"

namespace millrace::sycl_backend {
namespace {

namespace ex = sycl::ext::oneapi::experimental;

Bundle::State build(const sycl::queue& queue, const std::vector<std::string>& files,
                    const std::vector<std::string>& options) {
  if (!queue.get_device().ext_oneapi_can_compile(ex::source_language::sycl)) {
    fail(MR_UNSUPPORTED, "this SYCL runtime cannot compile SYCL source (libsycl-jit.so)");
  }
  std::string text;
  for (const std::string& file : files) text += "#include \"" + file + "\"\n";
  ex::include_files includes;
  for (const Source& source : sources()) includes.add(source.name, source.text);
  try {
    auto source = ex::create_kernel_bundle_from_source(
        queue.get_context(), ex::source_language::sycl, text, ex::properties{includes});
    return ex::build(source, {queue.get_device()}, ex::properties{ex::build_options{options}});
  } catch (const sycl::exception& e) {
    // The log is longer than an error's message.
    std::fprintf(stderr, "millrace: SYCL kernels (%s):\n%s\n", files.back().c_str(), e.what());
    fail(MR_DEVICE, "the SYCL kernels of %s do not build: %s", files.back().c_str(), e.what());
  }
}

// Programs of one process share what is compiled: loading a second one, or the
// first one again after a failure, takes no time. All queues of a device are in
// its platform's default context, to which a bundle belongs.
Bundle::State build_once(const sycl::queue& queue, const std::vector<std::string>& files,
                         const std::vector<std::string>& options) {
  struct Built {
    sycl::device device;
    std::vector<std::string> files, options;
    Bundle::State bundle;
  };
  static std::mutex mutex;
  // Never freed: at the process's end the runtime may be gone before it.
  static auto& all = *new std::deque<Built>;
  const std::lock_guard lock(mutex);
  for (const Built& b : all) {
    if (b.device == queue.get_device() && b.files == files && b.options == options) return b.bundle;
  }
  return all.emplace_back(Built{queue.get_device(), files, options, build(queue, files, options)})
      .bundle;
}

}  // namespace

Bundle::Bundle(const sycl::queue& queue, const std::vector<std::string>& files,
               const std::vector<std::string>& options)
    : bundle_(build_once(queue, files, options)) {}

sycl::kernel Bundle::kernel(const std::string& name) const {
  State handle = bundle_;  // the call is not const
  return handle.ext_oneapi_get_kernel(name);
}

}  // namespace millrace::sycl_backend
