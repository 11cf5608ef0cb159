#include "platform/compiler.hpp"

#include <cstdint>
#include <cstdio>

#include "exec/error.hpp"
#include "gpu/sources.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {
namespace {

// Their content is in shim.hpp.
constexpr const char* kStandardHeaders[] = {"sycl/sycl.hpp", "cstdint", "limits", "type_traits"};

std::vector<std::string> compiler_options(const std::vector<std::string>& options,
                                          const std::string& architecture) {
  std::vector<std::string> all{"--gpu-architecture=" + architecture, "--std=c++20",
                               "-default-device",
                               "-diag-suppress=1097",  // attributes that it does not know
                               "-DMR_MOST_SLICES=" + std::to_string(kMostSlices)};
  for (const std::string& option : options) {
    all.push_back(option == "-ffp-contract=off" ? "--fmad=false" : option);
  }
  return all;
}

std::vector<const char*> pointers(const std::vector<std::string>& texts) {
  std::vector<const char*> all;
  for (const std::string& text : texts) all.push_back(text.c_str());
  return all;
}

class Program {
 public:
  Program(const Nvrtc& nvrtc, const std::string& text, const std::vector<const char*>& texts,
          const std::vector<const char*>& names)
      : nvrtc_(nvrtc) {
    check("nvrtcCreateProgram",
          nvrtc_.create(&program_, text.c_str(), "millrace.cu", static_cast<int>(texts.size()),
                        texts.data(), names.data()));
  }
  ~Program() { nvrtc_.destroy(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Empty if it compiles, else the error.
  std::string compile(const std::vector<std::string>& options) {
    const auto all = pointers(options);
    const int result = nvrtc_.compile(program_, static_cast<int>(all.size()), all.data());
    return result == 0 ? "" : nvrtc_.error(result);
  }
  using Size = int (*)(nvrtcProgram, size_t*);
  using Read = int (*)(nvrtcProgram, char*);
  std::string read(const char* what, Size size, Read read) {
    size_t bytes = 0;
    check(what, size(program_, &bytes));
    std::string data(bytes, '\0');
    check(what, read(program_, data.data()));
    return data;
  }

 private:
  void check(const char* call, int result) const {
    if (result != 0) fail(MR_DEVICE, "%s: %s", call, nvrtc_.error(result));
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

}  // namespace

std::string recipe_name(const std::vector<std::string>& files,
                        const std::vector<std::string>& options) {
  std::string name;
  for (const auto* part : {&files, &options}) {
    for (const std::string& text : *part) name += (name.empty() ? "" : " ") + text;
  }
  return name;
}

std::string compile(const Nvrtc& nvrtc, const std::vector<std::string>& files,
                    const std::vector<std::string>& options, const std::string& architecture) {
  std::string text;
  for (const std::string& file : files) text += "#include \"" + file + "\"\n";
  std::vector<const char*> texts, names;
  for (const Source& source : sources()) {
    names.push_back(source.name);
    texts.push_back(source.text);
  }
  for (const char* name : kStandardHeaders) {
    names.push_back(name);
    texts.push_back("#include \"shim.hpp\"\n");
  }
  Program program(nvrtc, text, texts, names);
  const std::string error = program.compile(compiler_options(options, architecture));
  if (!error.empty()) {
    // The log is longer than an error's message.
    const std::string log = program.read("nvrtcGetProgramLog", nvrtc.log_size, nvrtc.log);
    const std::string name = recipe_name(files, options);
    std::fprintf(stderr, "millrace: CUDA kernels (%s):\n%s\n", name.c_str(), log.c_str());
    fail(MR_DEVICE, "the CUDA kernels of %s do not build: %s: %s", name.c_str(), error.c_str(),
         log.c_str());
  }
  const bool ptx = architecture.starts_with("compute_");
  return ptx ? program.read("nvrtcGetPTX", nvrtc.ptx_size, nvrtc.ptx)
             : program.read("nvrtcGetCUBIN", nvrtc.cubin_size, nvrtc.cubin);
}

// FNV-1a.
std::string code_hash(const Nvrtc& nvrtc, const std::vector<std::string>& files,
                      const std::vector<std::string>& options, const std::string& architecture) {
  uint64_t h = 0xcbf29ce484222325;
  const auto add = [&h](const std::string& text) {
    for (const unsigned char c : text + '\n') h = (h ^ c) * 0x100000001b3;
  };
  for (const Source& source : sources()) add(source.text);
  for (const std::string& file : files) add(file);
  for (const std::string& option : compiler_options(options, architecture)) add(option);
  add(std::to_string(nvrtc.major) + "." + std::to_string(nvrtc.minor));
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(h));
  return digits;
}

}  // namespace millrace::gpu
