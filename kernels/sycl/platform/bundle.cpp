#include "platform/bundle.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>

#include "exec/error.hpp"
#include "gpu/sources.hpp"

namespace millrace::gpu {
namespace {

namespace ex = sycl::ext::oneapi::experimental;
namespace fs = std::filesystem;

struct Recipe {
  sycl::context context;
  sycl::device device;
  std::vector<std::string> files, options;

  bool operator==(const Recipe&) const = default;
};

// FNV-1a of everything that decides what is compiled, and by what.
std::string hash(const Recipe& recipe) {
  uint64_t h = 0xcbf29ce484222325;
  const auto add = [&h](const std::string& text) {
    for (const unsigned char c : text + '\n') h = (h ^ c) * 0x100000001b3;
  };
  for (const Source& source : sources()) add(source.text);
  for (const std::string& file : recipe.files) add(file);
  for (const std::string& option : recipe.options) add(option);
  add(recipe.device.get_info<sycl::info::device::name>());
  add(recipe.device.get_info<sycl::info::device::driver_version>());
  add(std::to_string(__SYCL_COMPILER_VERSION));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(h));
  return digits;
}

// The file that says that the runtime's cache holds the recipe's result; empty
// where nothing is kept.
fs::path mark(const Recipe& recipe) {
  const char* persistent = std::getenv("SYCL_CACHE_PERSISTENT");
  const char* folder = std::getenv("SYCL_CACHE_DIR");
  if (persistent == nullptr || std::string(persistent) != "1" || folder == nullptr) return {};
  const fs::path marks = fs::path(folder) / "millrace";
  std::error_code error;
  fs::create_directories(marks, error);
  if (error) return {};
  return marks / hash(recipe);
}

// Held by one process at a time. Those that start together compile a recipe once: it takes a gigabyte and more, and
// the others find the result.
class FileLock {
 public:
  explicit FileLock(const fs::path& path)
      : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {
    if (file_ >= 0) flock(file_, LOCK_EX);  // without it a process compiles what another does, too
  }
  ~FileLock() {
    if (file_ >= 0) close(file_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

Bundle::State build(const Recipe& recipe) {
  std::vector<sycl::device> devices{recipe.device};
  if (!devices[0].ext_oneapi_can_compile(ex::source_language::sycl)) {
    fail(MR_UNSUPPORTED, "this SYCL runtime cannot compile SYCL source (libsycl-jit.so)");
  }
  std::string text;
  for (const std::string& file : recipe.files) text += "#include \"" + file + "\"\n";
  ex::include_files includes;
  for (const Source& source : sources()) includes.add(source.name, source.text);
  const ex::properties options{ex::build_options{recipe.options}};
  try {
    auto source = ex::create_kernel_bundle_from_source(recipe.context, ex::source_language::sycl,
                                                       text, ex::properties{includes});
    const fs::path kept = mark(recipe);
    std::optional<FileLock> lock;
    if (!kept.empty() && !fs::exists(kept)) lock.emplace(fs::path(kept).concat(".lock"));
    const bool first = lock && !fs::exists(kept);
    // The runtime has two caches: of the front end's result, and, under a hash of
    // it, of the device's. Read back from the first one it has another hash than
    // when it was new. So it is read back even the first time, or else the second
    // start would not find the device's result.
    if (first) ex::compile(source, devices, options);
    Bundle::State bundle = ex::build(source, devices, options);
    if (first) std::ofstream(kept).flush();
    return bundle;
  } catch (const sycl::exception& e) {
    // The log is longer than an error's message.
    const char* last = recipe.files.back().c_str();
    std::fprintf(stderr, "millrace: SYCL kernels (%s):\n%s\n", last, e.what());
    fail(MR_DEVICE, "the SYCL kernels of %s do not build: %s", last, e.what());
  }
}

// Programs of one process share what is compiled, as long as they share a
// context: loading a second one takes no time.
std::shared_future<Bundle::State> build_once(Recipe recipe) {
  struct Built {
    Recipe recipe;
    std::shared_future<Bundle::State> bundle;
  };
  static std::mutex mutex;
  // Never freed: at the process's end the runtime may be gone before it.
  static auto& all = *new std::vector<Built>;
  const std::lock_guard lock(mutex);
  for (const Built& b : all) {
    if (b.recipe == recipe) return b.bundle;
  }
  // Kernels of a context that failed are not used again.
  std::erase_if(all, [&](const Built& b) {
    return b.recipe.device == recipe.device && b.recipe.context != recipe.context;
  });
  auto bundle = std::async(std::launch::async, build, recipe).share();
  return all.emplace_back(Built{std::move(recipe), std::move(bundle)}).bundle;
}

}  // namespace

Bundle::Bundle(const Stream& stream, const std::vector<std::string>& files,
               const std::vector<std::string>& options)
    : bundle_(build_once({stream.queue().get_context(), stream.device(), files, options})) {}

Kernel Bundle::kernel(const std::string& name) const {
  State bundle = bundle_.get();  // the call is not const
  return bundle.ext_oneapi_get_kernel(name);
}

}  // namespace millrace::gpu
