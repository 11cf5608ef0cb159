// Compiles the kernels of common models to PTX for the library to hold: millrace_cuda_embed NVRTC FOLDER OUT.
// PTX goes into FOLDER under its hash, where the next build finds it; OUT is C++ that embeds it.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "exec/error.hpp"
#include "gpu/recipes.hpp"
#include "platform/compiler.hpp"
#include "platform/runtime.hpp"

using namespace millrace;
using namespace millrace::gpu;
namespace fs = std::filesystem;

namespace {

// Hopper's own, and what every GPU that Millrace runs on understands; their driver compiles it once more.
constexpr struct {
  int number;
  const char* name;
  Target target;
} kArchitectures[] = {{90, "compute_90a", kHopperTarget}, {80, "compute_80", kBestTarget}};

struct Job {
  Recipe recipe;
  int architecture;
  const char* target;
  fs::path file;
};

std::vector<Recipe> recipes(Target target) {
  std::vector<Recipe> all{measure_recipe(target)};
  for (const mr_dtype type : {MR_BF16, MR_F16}) {
    // Those that compile longest first.
    for (const int head_dim : {128, 64}) {
      all.push_back(attention_recipe(target, type, {head_dim, 16}));
    }
    all.push_back(quantized_recipe(target, type));
    all.push_back(dequantize_recipe(target, type));
    all.push_back(common_recipe(target, type));
  }
  return all;
}

// PTX without its comments, indentation and blank lines, which are a part of it that no driver reads.
std::string without_comments(const std::string& ptx) {
  std::istringstream lines(ptx);
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line.back() == '\0') line.pop_back();
    line.erase(0, line.find_first_not_of(" \t"));
    if (line.empty() || line.starts_with("//")) continue;
    text += line + "\n";
  }
  return text;
}

void compile_into(const Nvrtc& nvrtc, const Job& job) {
  fs::path part = job.file;
  part += ".part";
  std::ofstream out(part, std::ios::binary);
  out << without_comments(compile(nvrtc, job.recipe.files, job.recipe.options, job.target));
  out.close();
  if (!out) fail(MR_INVALID, "%s: cannot be written", part.c_str());
  fs::rename(part, job.file);
}

void write_table(const fs::path& out, const Nvrtc& nvrtc, const std::vector<Job>& jobs) {
  std::ostringstream text;
  text << "#include \"platform/compiler.hpp\"\n\n";
  for (size_t i = 0; i < jobs.size(); ++i) {
    text << "asm(\".pushsection .rodata\\nmr_ptx_" << i << ":\\n.incbin \\\""
         << jobs[i].file.string() << "\\\"\\n.byte 0\\n.popsection\\n\");\n"
         << "extern \"C\" [[gnu::visibility(\"hidden\")]] const char mr_ptx_" << i << "[];\n";
  }
  text << "\nnamespace millrace::gpu {\nnamespace {\nconst EmbeddedCode kCode[] = {\n";
  for (size_t i = 0; i < jobs.size(); ++i) {
    text << "    {\"" << recipe_name(jobs[i].recipe.files, jobs[i].recipe.options) << "\", "
         << jobs[i].architecture << ", mr_ptx_" << i << "},\n";
  }
  text << "};\n}  // namespace\n"
       << "std::span<const EmbeddedCode> embedded_code() { return kCode; }\n"
       << "const char* embedded_by() { return \"" << nvrtc.major << "." << nvrtc.minor << "\"; }\n"
       << "}  // namespace millrace::gpu\n";
  std::ofstream(out) << text.str();
}

void run(const std::string& library, const fs::path& folder, const fs::path& out) {
  const Nvrtc nvrtc = open_nvrtc(library);
  fs::create_directories(folder);
  std::vector<Job> all;
  for (const auto& a : kArchitectures) {
    for (const Recipe& r : recipes(a.target)) {
      all.push_back(
          {r, a.number, a.name,
           fs::absolute(folder) / (code_hash(nvrtc, r.files, r.options, a.name) + ".ptx")});
    }
  }

  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  const auto work = [&] {
    for (size_t i = next++; i < all.size() && !failed; i = next++) {
      if (fs::exists(all[i].file)) continue;
      try {
        compile_into(nvrtc, all[i]);
      } catch (const std::exception&) {
        failed = true;  // the log is on stderr
      }
    }
  };
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  for (std::thread& t : threads) t = std::thread(work);
  for (std::thread& t : threads) t.join();
  if (failed) fail(MR_DEVICE, "some kernels do not build");

  write_table(out, nvrtc, all);
  std::set<fs::path> current;
  for (const Job& job : all) current.insert(job.file);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (!current.contains(fs::absolute(entry.path()))) fs::remove(entry.path());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s NVRTC FOLDER OUT\n", argv[0]);
    return 2;
  }
  try {
    run(argv[1], argv[2], argv[3]);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", argv[0], e.what());
    return 1;
  }
}
