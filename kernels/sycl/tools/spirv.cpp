// Compiles device code for scripts/sycl-isa: millrace_sycl_spirv FILE,... OPTION...
// With SYCL_DUMP_IMAGES=1 the runtime writes the SPIR-V into the working folder;
// it is not built for a device: the CPU device does not know the instructions of
// the matrix engine.
#include <cstdio>
#include <sstream>
#include <string>
#include <sycl/sycl.hpp>
#include <vector>

#include "gpu/sources.hpp"
#include "platform/runtime.hpp"

namespace ex = sycl::ext::oneapi::experimental;
using namespace millrace::gpu;

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FILE,... OPTION...\n", argv[0]);
    return 2;
  }
  prepare_environment(0);
  std::istringstream files(argv[1]);
  std::string text;
  for (std::string name; std::getline(files, name, ',');) text += "#include \"" + name + "\"\n";
  try {
    const sycl::queue queue(choose_device("cpu").device);
    ex::include_files includes;
    for (const Source& source : sources()) includes.add(source.name, source.text);
    auto source = ex::create_kernel_bundle_from_source(
        queue.get_context(), ex::source_language::sycl, text, ex::properties{includes});
    const std::vector<std::string> options(argv + 2, argv + argc);
    ex::compile(source, ex::properties{ex::build_options{options}});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
