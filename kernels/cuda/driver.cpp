#include "driver.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <vector>

#include "exec/error.hpp"

namespace millrace::gpu {
namespace {

namespace fs = std::filesystem;

// dlerror, or "" where there is nothing to say.
std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "" : text;
}

template <class F>
void find(void* library, const char* symbol, F*& out) {
  out = reinterpret_cast<F*>(dlsym(library, symbol));
  if (out == nullptr) fail(MR_UNSUPPORTED, "%s", loader_error().c_str());
}

// The file of a function of a library.
fs::path file_of(const void* function) {
  Dl_info info;
  if (dladdr(function, &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : path;
}

CudaDriver open_driver() {
  constexpr char kInstall[] =
      "an NVIDIA GPU needs NVIDIA's driver, release 525 or later (Debian and Ubuntu: "
      "nvidia-driver); a container "
      "needs the NVIDIA container toolkit";
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    fail(MR_UNSUPPORTED, "no CUDA driver: %s; %s", loader_error().c_str(), kInstall);
  }
  CudaDriver driver;
  const auto found = [&](auto& call) {
    try {
      find(library, call.name, call.address);
    } catch (const Error& e) {
      fail(MR_UNSUPPORTED, "the CUDA driver is too old: %s; %s", e.what(), kInstall);
    }
  };
#define MILLRACE_CUDA_CALL(member, symbol, ...) found(driver.member);
  MILLRACE_CUDA_CALLS(MILLRACE_CUDA_CALL)
#undef MILLRACE_CUDA_CALL
  const int result = driver.init.address(0);
  driver.devices = result != kCudaNoDevice;
  if (result != 0 && driver.devices) {
    const char* text = nullptr;
    driver.error_string.address(result, &text);
    fail(MR_UNSUPPORTED, "the CUDA driver does not start: cuInit: %d (%s); %s", result,
         text == nullptr ? "unknown" : text, kInstall);
  }
  driver.driver_version.address(&driver.version);
  // libcuda.so.580.159.04
  const std::string file = file_of(reinterpret_cast<const void*>(driver.init.address)).filename();
  constexpr std::string_view kName = "libcuda.so.";
  if (file.starts_with(kName) && file.find('.', kName.size()) != std::string::npos) {
    driver.release = file.substr(kName.size());
  }
  return driver;
}

// NVRTC opens its builtins by their name alone: this way LD_LIBRARY_PATH need not say where they are.
void open_builtins(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (entry.path().filename().string().starts_with("libnvrtc-builtins.so.")) {
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
    }
  }
}

Nvrtc find_nvrtc() {
  std::vector<std::string> candidates{"libnvrtc.so.13", "libnvrtc.so.12"};
  // This library lies in build/lib, what the build has fetched in build/cuda.
  const fs::path own = file_of(reinterpret_cast<const void*>(&cuda));
  candidates.push_back((own.parent_path().parent_path() / "cuda/nvrtc/libnvrtc.so.13").string());
  candidates.push_back("/usr/local/cuda/lib64/libnvrtc.so");
  std::string looked;
  for (const std::string& path : candidates) {
    std::string why;
    try {
      Nvrtc found = open_nvrtc(path);
      if (found.major <= cuda().version / 1000) return found;
      why = "of CUDA " + std::to_string(found.major) + ", the driver takes " +
            std::to_string(cuda().version / 1000);
    } catch (const Error&) {
      why = "not found";
    }
    looked += (looked.empty() ? "" : ", ") + path + " (" + why + ")";
  }
  const char* const package =
      cuda().version < 13000 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc";
  fail(MR_UNSUPPORTED,
       "no NVRTC: looked for %s; install a CUDA toolkit, or the Python package %s and add its "
       "folder with libnvrtc.so to LD_LIBRARY_PATH",
       looked.c_str(), package);
}

// A value that is made at the first call that succeeds. Never freed: at the process's end the driver may be
// gone before it.
template <class T, class F>
const T& once(F&& make) {
  static std::mutex mutex;
  static T* value = nullptr;
  const std::lock_guard lock(mutex);
  if (value == nullptr) value = new T(make());
  return *value;
}

}  // namespace

const CudaDriver& cuda() { return once<CudaDriver>(open_driver); }

const Nvrtc& nvrtc() { return once<Nvrtc>(find_nvrtc); }

std::string cuda_error(const char* call, int result) {
  const char *name = nullptr, *text = nullptr;
  cuda().error_name.address(result, &name);
  cuda().error_string.address(result, &text);
  return std::string(call) + ": " + (name == nullptr ? std::to_string(result) : name) + " (" +
         (text == nullptr ? "unknown" : text) + ")";
}

void fail_cuda(const char* call, int result) {
  fail(MR_DEVICE, "CUDA: %s", cuda_error(call, result).c_str());
}

Nvrtc open_nvrtc(const std::string& path) {
  if (path.find('/') != std::string::npos) open_builtins(fs::path(path).parent_path());
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(MR_UNSUPPORTED, "%s", loader_error().c_str());
  Nvrtc n;
  find(library, "nvrtcGetErrorString", n.error);
  find(library, "nvrtcVersion", n.version);
  find(library, "nvrtcGetNumSupportedArchs", n.count_architectures);
  find(library, "nvrtcGetSupportedArchs", n.architectures);
  find(library, "nvrtcCreateProgram", n.create);
  find(library, "nvrtcDestroyProgram", n.destroy);
  find(library, "nvrtcCompileProgram", n.compile);
  find(library, "nvrtcGetProgramLogSize", n.log_size);
  find(library, "nvrtcGetProgramLog", n.log);
  find(library, "nvrtcGetPTXSize", n.ptx_size);
  find(library, "nvrtcGetPTX", n.ptx);
  find(library, "nvrtcGetCUBINSize", n.cubin_size);
  find(library, "nvrtcGetCUBIN", n.cubin);
  n.version(&n.major, &n.minor);
  n.path = file_of(reinterpret_cast<const void*>(n.version)).string();
  return n;
}

}  // namespace millrace::gpu
