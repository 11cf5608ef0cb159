#include "sycl/bundle.hpp"

#include <cstdio>

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

}  // namespace

Bundle::Bundle(const sycl::queue& queue, const std::vector<std::string>& files,
               const std::vector<std::string>& options)
    : bundle_(build(queue, files, options)) {}

sycl::kernel Bundle::kernel(const std::string& name) const {
  State handle = bundle_;  // the call is not const
  return handle.ext_oneapi_get_kernel(name);
}

}  // namespace millrace::sycl_backend
