#include "platform/bundle.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "exec/error.hpp"
#include "platform/compiler.hpp"

namespace millrace::gpu {
namespace {

namespace fs = std::filesystem;

std::atomic<bool> compiled{false};  // NVRTC has made some of this process's code

// Empty where nothing can be kept.
fs::path cache_folder() {
  fs::path folder;
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    folder = cache;
  } else if (home != nullptr && *home == '/') {
    folder = fs::path(home) / ".cache";
  } else {
    return {};
  }
  folder /= "millrace/cuda";
  std::error_code error;
  fs::create_directories(folder, error);
  return error ? fs::path() : folder;
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Other processes see all of it or nothing.
void write_file(const fs::path& path, const std::string& data) {
  fs::path part = path;
  part += "." + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  file.write(data.data(), static_cast<std::streamsize>(data.size()));
  file.close();
  std::error_code error;
  if (file) fs::rename(part, path, error);
  if (!file || error) fs::remove(part, error);
}

// The device's own architecture; one that this NVRTC does not know gets PTX of the newest that it does.
std::string architecture(const Nvrtc& nvrtc, const DeviceHandle& device) {
  int count = 0;
  nvrtc.count_architectures(&count);
  std::vector<int> known(count);
  nvrtc.architectures(known.data());
  const int own = device.major * 10 + device.minor;
  if (std::find(known.begin(), known.end(), own) != known.end()) {
    return "sm_" + std::to_string(own) + (own == 90 ? "a" : "");
  }
  int best = 80;
  for (const int other : known) {
    if (other < own) best = std::max(best, other);
  }
  return "compute_" + std::to_string(best);
}

// Loads PTX or a cubin; returns the driver's result, and what it says.
int load(const char* code, CUmodule& module, std::string& log) {
  constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER
  char text[4096] = "";
  int options[] = {kErrorLog, kErrorLogBytes};
  void* values[] = {text, reinterpret_cast<void*>(sizeof text)};
  const auto& call = cuda().module_load;
  const int result = call.address(&module, code, 2, options, values);
  if (result != 0) log = cuda_error(call.name, result) + (*text == '\0' ? "" : ": ") + text;
  return result;
}

// The driver cannot take this code, which does not end the context.
bool refused(int result) {
  constexpr int kNoJitCompiler = 221;
  return result == kCudaInvalidImage || result == kCudaNoBinaryForGpu ||
         result == kCudaInvalidPtx || result == kNoJitCompiler ||
         result == kCudaUnsupportedPtxVersion;
}

// Compiles, or reads code compiled before.
CUmodule load_compiled(const Nvrtc& nvrtc, const DeviceHandle& device,
                       const std::vector<std::string>& files,
                       const std::vector<std::string>& options) {
  const std::string target = architecture(nvrtc, device);
  const fs::path folder = cache_folder();
  const fs::path kept =
      folder.empty() ? folder : folder / (code_hash(nvrtc, files, options, target) + ".bin");
  compiled = true;
  CUmodule module = nullptr;
  std::string log;
  if (!kept.empty()) {
    // A file that was cut short is compiled anew.
    const std::string code = read_file(kept);
    if (!code.empty() && load(code.c_str(), module, log) == 0) return module;
  }
  const std::string code = compile(nvrtc, files, options, target);
  if (load(code.c_str(), module, log) != 0) {
    fail(MR_DEVICE, "CUDA: the driver does not take the kernels of %s (%s, NVRTC %d.%d): %s",
         recipe_name(files, options).c_str(), target.c_str(), nvrtc.major, nvrtc.minor,
         log.c_str());
  }
  if (!kept.empty()) write_file(kept, code);
  return module;
}

}  // namespace

CUmodule load_code(const Context& context, const std::vector<std::string>& files,
                   const std::vector<std::string>& options) {
  context.make_current();
  const std::string name = recipe_name(files, options);
  std::string why = "the library holds no code of them";
  const DeviceHandle& device = context.device();
  for (const EmbeddedCode& code : embedded_code()) {  // those of a recipe: the best first
    if (code.recipe != name || code.architecture > device.major * 10 + device.minor) continue;
    CUmodule module = nullptr;
    std::string log;
    const int result = load(code.ptx, module, log);
    if (result == 0) return module;
    if (!refused(result)) {
      fail(MR_DEVICE, "CUDA: loading the kernels of %s: %s", name.c_str(), log.c_str());
    }
    why = "the driver refuses the library's code: " + log;
  }
  const Nvrtc* found = nullptr;
  try {
    found = &nvrtc();
  } catch (const Error& e) {
    fail(MR_UNSUPPORTED, "kernels of %s: %s, and there is no compiler: %s", name.c_str(),
         why.c_str(), e.what());
  }
  return load_compiled(*found, context.device(), files, options);
}

std::string code_compilers() {
  std::string text;
  if (*embedded_by() != '\0') text = std::string("PTX ") + embedded_by();
  if (compiled) {
    text += (text.empty() ? "" : ", ") + ("NVRTC " + std::to_string(nvrtc().major)) + "." +
            std::to_string(nvrtc().minor);
  }
  return text;
}

Bundle::Bundle(const Stream& stream, const std::vector<std::string>& files,
               const std::vector<std::string>& options)
    : context_(stream.context()), code_(context_->code(files, options)) {}

Kernel Bundle::kernel(const std::string& name) const {
  CUmodule module = code_.get();
  context_->make_current();
  CUfunction function = nullptr;
  const auto& call = cuda().module_function;
  if (const int result = call.address(&function, module, name.c_str()); result != 0) {
    fail(MR_DEVICE, "CUDA: kernel %s: %s", name.c_str(), cuda_error(call.name, result).c_str());
  }
  return Kernel(context_, function);
}

}  // namespace millrace::gpu
