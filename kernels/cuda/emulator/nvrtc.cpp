// libnvrtc.so.13, emulated: compiles device code for the CPU with the host's g++.
//
// The "PTX" is a line that names the compiled library. Libraries are kept under a hash of all that
// decides what is compiled, in $XDG_CACHE_HOME/millrace/cuda-emulator or below ~/.cache.
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "machine.hpp"

#define EXPORT extern "C" MR_EMULATED_EXPORT

extern char** environ;

// The headers that every compilation gets.
asm(R"(
    .section .rodata
    .globl mr_emulation_text
    .hidden mr_emulation_text
mr_emulation_text:
    .incbin ")" MR_EMULATOR_SOURCE R"(/emulation.hpp"
    .byte 0
    .globl mr_emulated_ptx_text
    .hidden mr_emulated_ptx_text
mr_emulated_ptx_text:
    .incbin ")" MR_EMULATOR_SOURCE R"(/emulated_ptx.hpp"
    .byte 0
    .text
)");
extern "C" const char mr_emulation_text[], mr_emulated_ptx_text[];

namespace {

namespace fs = std::filesystem;

enum nvrtcResult {
  NVRTC_SUCCESS = 0,
  NVRTC_ERROR_OUT_OF_MEMORY = 1,
  NVRTC_ERROR_PROGRAM_CREATION_FAILURE = 2,
  NVRTC_ERROR_INVALID_INPUT = 3,
  NVRTC_ERROR_INVALID_PROGRAM = 4,
  NVRTC_ERROR_INVALID_OPTION = 5,
  NVRTC_ERROR_COMPILATION = 6,
  NVRTC_ERROR_BUILTIN_OPERATION_FAILURE = 7,
  NVRTC_ERROR_INTERNAL_ERROR = 11,
};

struct File {
  std::string name, text;
};

struct Program {
  std::string name, source;
  std::vector<File> headers;
  std::string ptx, log;
  bool cubin = false, compiled = false;
};

std::mutex mutex;
std::set<Program*>& programs() {
  static auto& all = *new std::set<Program*>;
  return all;
}
bool known(const Program* program) {
  const std::lock_guard lock(mutex);
  return programs().count(const_cast<Program*>(program)) != 0;
}

// FNV-1a, twice.
class Hash {
 public:
  void add(const std::string& text) {
    for (const unsigned char c : text) step(c);
    step(0);
  }
  std::string digits() const {
    char out[33];
    std::snprintf(out, sizeof out, "%016llx%016llx", static_cast<unsigned long long>(a_),
                  static_cast<unsigned long long>(b_));
    return out;
  }

 private:
  void step(unsigned char c) {
    a_ = (a_ ^ c) * 0x100000001b3;
    b_ = (b_ ^ c) * 0x100000001b3 + 1;
  }
  uint64_t a_ = 0xcbf29ce484222325, b_ = 0x9e3779b97f4a7c15;
};

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// What g++ gets of NVRTC's options.
nvrtcResult translate(const std::vector<std::string>& options, std::vector<std::string>& flags,
                      bool& cubin, int& architecture, std::string& log) {
  architecture = 75;
  for (size_t i = 0; i < options.size(); ++i) {
    const std::string& o = options[i];
    const auto value = [&](const char* with) { return o.substr(std::strlen(with)); };
    std::string arch;
    if (begins(o, "--gpu-architecture=")) {
      arch = value("--gpu-architecture=");
    } else if (begins(o, "-arch=")) {
      arch = value("-arch=");
    } else if ((o == "-D" || o == "--define-macro") && i + 1 < options.size()) {
      flags.push_back("-D" + options[++i]);
    } else if (begins(o, "--define-macro=")) {
      flags.push_back("-D" + value("--define-macro="));
    } else if (begins(o, "-D") || begins(o, "-U")) {
      flags.push_back(o);
    } else {
      // What changes nothing here.
      static const char* const kIgnored[] = {"--std=c++20",
                                             "-std=c++20",
                                             "-default-device",
                                             "--device-as-default-execution-space",
                                             "--fmad=false",
                                             "-fmad=false",
                                             "--ptxas-options",
                                             "-Xptxas",
                                             "-diag-suppress",
                                             "--diag-suppress",
                                             "-lineinfo",
                                             "--generate-line-info",
                                             "--restrict",
                                             "-restrict",
                                             "--maxrregcount",
                                             "-maxrregcount",
                                             "--extra-device-vectorization",
                                             "-w",
                                             "--disable-warnings",
                                             "--display-error-number",
                                             "-no-source-include",
                                             "--no-source-include",
                                             "--minimal",
                                             "--split-compile"};
      bool ignored = false;
      for (const char* known_option : kIgnored) ignored |= begins(o, known_option);
      if (!ignored) {
        log = "the emulated NVRTC does not know the option " + o + "\n";
        return NVRTC_ERROR_INVALID_OPTION;
      }
    }
    if (!arch.empty()) {
      cubin = begins(arch, "sm_");
      if (!cubin && !begins(arch, "compute_")) {
        log = "no architecture: " + arch + "\n";
        return NVRTC_ERROR_INVALID_OPTION;
      }
      architecture = std::atoi(arch.c_str() + arch.find('_') + 1);
    }
  }
  flags.push_back("-D__CUDA_ARCH__=" + std::to_string(architecture * 10));
  return NVRTC_SUCCESS;
}

std::vector<std::string> compiler() {
  std::vector<std::string> words;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/ccache").c_str(), X_OK) == 0) {
      words.push_back("ccache");
      break;
    }
  }
  const char* cxx = std::getenv("MILLRACE_CUDA_EMULATOR_CXX");
  words.push_back(cxx && *cxx ? cxx : "g++");
  // No headers but those of the program, as NVRTC has none.
  for (const char* flag : {"-std=c++20", "-w", "-nostdinc", "-nostdinc++"}) words.push_back(flag);
  return words;
}

std::vector<std::string> code_flags() {
  std::vector<std::string> flags{"-O2",
                                 "-ffp-contract=off",
                                 "-fPIC",
                                 "-fno-exceptions",
                                 "-fno-rtti",
                                 "-fno-strict-aliasing",
                                 "-fno-math-errno",
                                 "-fno-stack-protector",
                                 "-fno-threadsafe-statics",
                                 "-fcf-protection=none",
                                 "-fvisibility=hidden",
                                 "-ffunction-sections",
                                 "-fno-asynchronous-unwind-tables"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    for (const char* flag : {"-mavx2", "-mfma", "-mf16c"}) flags.push_back(flag);
  }
  return flags;
}

// Runs a program in a folder, its output in a file. False: it failed.
bool run(std::vector<std::string> words, const fs::path& folder, const fs::path& output) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addchdir_np(&actions, folder.c_str());
  static char language[] = "LC_ALL=C";  // of messages
  std::vector<char*> environment{language};
  for (char** variable = environ; *variable; ++variable) {
    if (std::strncmp(*variable, "LC_ALL=", 7) != 0) environment.push_back(*variable);
  }
  environment.push_back(nullptr);
  pid_t child = 0;
  const int error =
      posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    std::ofstream(output) << words[0] << ": " << std::strerror(error) << "\n";
    return false;
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

fs::path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder = cache && *cache ? fs::path(cache)
                    : home && *home ? fs::path(home) / ".cache"
                                    : fs::temp_directory_path();
  return folder / "millrace" / "cuda-emulator";
}

// The source after the preprocessor, with dynamic shared memory as pointers and a description of
// every kernel.
std::string with_kernels(const std::string& text, int architecture) {
  static const std::regex dynamic(
      R"(extern\s+static\s+(?:(?:alignas|__attribute__)\s*\([^;]*?\)\s*)*)"
      R"(([\w:]+(?:\s+[\w:]+)*?)\s+(\w+)\s*\[\s*\]\s*;)");
  // Attributes are few and hold no brackets.
  static const std::regex kernel(
      R"(extern\s+"C"\s+((?:\[\[mr_emulator::\w+(?:\([^\]]*\))?\]\]\s*|\[\[gnu::\w+\]\]\s*|void\s+)+))"
      R"((\w+)\s*\()");
  static const std::regex bounds(R"(\[\[mr_emulator::bounds\(([^\]]*)\)\]\])");
  constexpr auto kHere = std::regex_constants::match_continuous;
  std::set<std::string> names;
  std::string out, tail = "\n# 1 \"kernels\"\n";
  for (size_t at = 0;;) {
    const size_t next = text.find("extern", at);
    out.append(text, at, next == std::string::npos ? next : next - at);
    if (next == std::string::npos) break;
    const auto here = text.begin() + static_cast<std::ptrdiff_t>(next);
    at = next + 6;
    std::smatch found, most;
    if (std::regex_search(here, text.end(), found, dynamic, kHere)) {
      out += found.format("$1* const $2 = ::mr_emulator::dynamic_shared<$1>();");
      at = next + static_cast<size_t>(found.length());
      continue;
    }
    out += "extern";
    if (!std::regex_search(here, text.end(), found, kernel, kHere)) continue;
    const std::string words = found[1], name = found[2];
    if (words.find("mr_emulator::kernel") == std::string::npos) continue;
    if (!names.insert(name).second) continue;
    const std::string arguments =
        std::regex_search(words, most, bounds) ? most[1].str() : std::string();
    const std::string invoker = "mr_emulator::Invoker<&" + name + ">::";
    const std::string type = "const mr_emulator::Kernel mr_emulator_kernel_" + name;
    tail += "extern \"C\" __attribute__((visibility(\"default\"))) " + type + ";\n" + type +
            " = {mr_emulator::kAbi, \"" + name + "\", " + invoker + "invoke, " + invoker +
            "kCount, " + invoker + "kSizes, " + invoker + "kPointers, mr_emulator::most_threads(" +
            arguments + "), " + std::to_string(architecture) + "};\n";
  }
  return out + tail;
}

// Differs wherever the same source may be compiled to something else, and from the real one's. What
// a program keeps on disk of an older one is then not used.
int minor_version() {
  Hash hash;
  hash.add(__DATE__ " " __TIME__);
  hash.add(mr_emulation_text);
  hash.add(mr_emulated_ptx_text);
  return 1000 +
         static_cast<int>(std::strtoul(hash.digits().substr(0, 7).c_str(), nullptr, 16) % 1000000);
}

nvrtcResult compile(Program& p, const std::vector<std::string>& options) {
  std::vector<std::string> flags;
  int architecture = 0;
  if (const auto result = translate(options, flags, p.cubin, architecture, p.log)) return result;

  std::vector<File> files = p.headers;
  for (File& file : files) {
    if (fs::path(file.name).filename() == "ptx.hpp") file.text = mr_emulated_ptx_text;
    if (file.name.empty() || fs::path(file.name).is_absolute() ||
        file.name.find("..") != std::string::npos) {
      return NVRTC_ERROR_INVALID_INPUT;
    }
  }
  const auto front = compiler(), code = code_flags();
  Hash hash;
  hash.add(std::to_string(mr_emulator::kAbi) + " " + __DATE__ + " " + __TIME__);
  hash.add(mr_emulation_text);
  hash.add(p.name);
  hash.add(p.source);
  for (const File& file : files) {
    hash.add(file.name);
    hash.add(file.text);
  }
  for (const auto& flag : front) hash.add(flag);
  for (const auto& flag : code) hash.add(flag);
  for (const auto& flag : flags) hash.add(flag);

  const fs::path cache = cache_folder(), library = cache / (hash.digits() + ".so");
  p.ptx =
      "//millrace-emulated " + std::to_string(mr_emulator::kAbi) + " " + library.string() + "\n";
  if (access(library.c_str(), R_OK) == 0) return NVRTC_SUCCESS;

  fs::create_directories(cache);
  // Processes that want the same wait for the first one.
  const std::string lock_path = (cache / (hash.digits() + ".lock")).string();
  const int lock = open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  if (lock >= 0) flock(lock, LOCK_EX);
  struct Unlock {
    int file;
    const std::string& path;
    ~Unlock() {
      unlink(path.c_str());
      if (file >= 0) close(file);
    }
  } const unlock{lock, lock_path};
  if (access(library.c_str(), R_OK) == 0) return NVRTC_SUCCESS;

  std::string pattern = (cache / "build-XXXXXX").string();
  if (!mkdtemp(pattern.data())) {
    p.log = "mkdtemp " + pattern + ": " + std::strerror(errno) + "\n";
    return NVRTC_ERROR_INTERNAL_ERROR;
  }
  const fs::path folder = pattern;
  struct Remove {
    const fs::path& folder;
    ~Remove() {
      std::error_code error;
      if (!std::getenv("MILLRACE_CUDA_EMULATOR_KEEP")) fs::remove_all(folder, error);
    }
  } const remove{folder};

  // Names of the source as messages show them.
  std::string source = fs::path(p.name).filename().string();
  if (source.empty()) source = "default_program";
  write(folder / "emulation.hpp", mr_emulation_text);
  write(folder / source, p.source);
  for (const File& file : files) write(folder / "include" / file.name, file.text);

  std::vector<std::string> words = front;
  for (const char* word : {"-E", "-x", "c++", "-include", "emulation.hpp", "-Iinclude"}) {
    words.push_back(word);
  }
  // The compiler's own words depend on these: __F16C__.
  words.insert(words.end(), code.begin(), code.end());
  words.insert(words.end(), flags.begin(), flags.end());
  words.insert(words.end(), {source, "-o", "program.ii"});
  if (!run(words, folder, folder / "log")) {
    p.log = read(folder / "log");
    return NVRTC_ERROR_COMPILATION;
  }
  write(folder / "program.ii", with_kernels(read(folder / "program.ii"), architecture));

  words = front;
  words.insert(words.end(), code.begin(), code.end());
  words.insert(words.end(), {"-c", "program.ii", "-o", "program.o"});
  if (!run(words, folder, folder / "log")) {
    p.log = read(folder / "log");
    return NVRTC_ERROR_COMPILATION;
  }
  // Without the C runtime's start files there are no zeroed data but shared memory, which has to
  // be writable from its first byte on.
  words = {front[front[0] == "ccache"],
           "-shared",
           "-nostartfiles",
           "-nodefaultlibs",
           "program.o",
           "-Wl,-z,defs,-z,norelro",
           "-lm",
           "-lc",
           "-o",
           "program.so"};
  if (!run(words, folder, folder / "log")) {
    p.log = read(folder / "log");
    return NVRTC_ERROR_COMPILATION;
  }
  std::error_code error;
  fs::rename(folder / "program.so", library, error);
  if (error) {
    p.log = library.string() + ": " + error.message() + "\n";
    return NVRTC_ERROR_INTERNAL_ERROR;
  }
  return NVRTC_SUCCESS;
}

nvrtcResult put(const std::string& text, bool end, char* out) {
  if (!out) return NVRTC_ERROR_INVALID_INPUT;
  std::memcpy(out, text.c_str(), text.size() + (end ? 1 : 0));
  return NVRTC_SUCCESS;
}

}  // namespace

using nvrtcProgram = Program*;

EXPORT nvrtcResult nvrtcVersion(int* major, int* minor) {
  if (!major || !minor) return NVRTC_ERROR_INVALID_INPUT;
  *major = 13;
  *minor = minor_version();
  return NVRTC_SUCCESS;
}
constexpr int kArchitectures[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};
EXPORT nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  if (!count) return NVRTC_ERROR_INVALID_INPUT;
  *count = static_cast<int>(std::size(kArchitectures));
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetSupportedArchs(int* architectures) {
  if (!architectures) return NVRTC_ERROR_INVALID_INPUT;
  std::copy(std::begin(kArchitectures), std::end(kArchitectures), architectures);
  return NVRTC_SUCCESS;
}
EXPORT const char* nvrtcGetErrorString(nvrtcResult result) {
  switch (result) {
    case NVRTC_SUCCESS:
      return "NVRTC_SUCCESS";
    case NVRTC_ERROR_OUT_OF_MEMORY:
      return "NVRTC_ERROR_OUT_OF_MEMORY";
    case NVRTC_ERROR_PROGRAM_CREATION_FAILURE:
      return "NVRTC_ERROR_PROGRAM_CREATION_FAILURE";
    case NVRTC_ERROR_INVALID_INPUT:
      return "NVRTC_ERROR_INVALID_INPUT";
    case NVRTC_ERROR_INVALID_PROGRAM:
      return "NVRTC_ERROR_INVALID_PROGRAM";
    case NVRTC_ERROR_INVALID_OPTION:
      return "NVRTC_ERROR_INVALID_OPTION";
    case NVRTC_ERROR_COMPILATION:
      return "NVRTC_ERROR_COMPILATION";
    case NVRTC_ERROR_BUILTIN_OPERATION_FAILURE:
      return "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE";
    case NVRTC_ERROR_INTERNAL_ERROR:
      return "NVRTC_ERROR_INTERNAL_ERROR";
  }
  return "NVRTC_ERROR unknown";
}
EXPORT nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name,
                                      int count, const char* const* headers,
                                      const char* const* names) {
  if (!program || !source || count < 0 || (count && (!headers || !names))) {
    return NVRTC_ERROR_INVALID_INPUT;
  }
  auto p = std::make_unique<Program>();
  p->name = name ? name : "default_program";
  p->source = source;
  for (int i = 0; i < count; ++i) {
    if (!headers[i] || !names[i]) return NVRTC_ERROR_INVALID_INPUT;
    p->headers.push_back({names[i], headers[i]});
  }
  *program = p.release();
  const std::lock_guard lock(mutex);
  programs().insert(*program);
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  if (!program || !known(*program)) return NVRTC_ERROR_INVALID_PROGRAM;
  {
    const std::lock_guard lock(mutex);
    programs().erase(*program);
  }
  delete *program;
  *program = nullptr;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                       const char* const* options) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (count < 0 || (count && !options)) return NVRTC_ERROR_INVALID_INPUT;
  try {
    program->compiled = false;
    const nvrtcResult result = compile(*program, {options, options + count});
    program->compiled = result == NVRTC_SUCCESS;
    return result;
  } catch (const std::exception& e) {
    program->log = std::string(e.what()) + "\n";
    return NVRTC_ERROR_INTERNAL_ERROR;
  }
}
EXPORT nvrtcResult nvrtcGetPTXSize(nvrtcProgram program, size_t* bytes) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!bytes || !program->compiled) return NVRTC_ERROR_INVALID_INPUT;
  *bytes = program->ptx.size() + 1;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetPTX(nvrtcProgram program, char* out) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!program->compiled) return NVRTC_ERROR_INVALID_INPUT;
  return put(program->ptx, true, out);
}
// A cubin is there for real architectures only (sm_90, not compute_90).
EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* bytes) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!bytes || !program->compiled) return NVRTC_ERROR_INVALID_INPUT;
  *bytes = program->cubin ? program->ptx.size() : 0;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* out) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!program->compiled || !program->cubin) return NVRTC_ERROR_INVALID_INPUT;
  return put(program->ptx, false, out);
}
EXPORT nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, size_t* bytes) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  if (!bytes) return NVRTC_ERROR_INVALID_INPUT;
  *bytes = program->log.size() + 1;
  return NVRTC_SUCCESS;
}
EXPORT nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* out) {
  if (!known(program)) return NVRTC_ERROR_INVALID_PROGRAM;
  return put(program->log, true, out);
}
