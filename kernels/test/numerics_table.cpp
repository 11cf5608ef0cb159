#include "numerics_table.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "harness.hpp"

namespace millrace::cpu {
namespace {

uint64_t mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

const char* const kFile = MILLRACE_NUMERICS_TABLE;
bool writes() { return std::getenv("MILLRACE_WRITE_NUMERICS") != nullptr; }

// "class op" to hash, after a line "version N".
struct Table {
  int version = 0;
  std::map<std::string, std::string> rows;

  static Table read() {
    Table table;
    std::ifstream in(kFile);
    std::string word, line;
    in >> word >> table.version;
    std::getline(in, line);
    while (std::getline(in, line)) {
      const size_t end = line.rfind(' ');
      if (end != std::string::npos) table.rows[line.substr(0, end)] = line.substr(end + 1);
    }
    return table;
  }
  void write() const {
    std::ofstream out(kFile);
    out << "version " << version << "\n";
    for (const auto& [row, hash] : rows) out << row << " " << hash << "\n";
  }
};

// The backend's version, which follows its name in a program's numerics.
int version() {
  test::Builder builder = test::small_llama();
  const test::Model model("", builder, 0);
  const char* text = nullptr;
  mr_error error;
  test::check(model.device.backend->program_numerics(model.handle, &text, &error), error);
  return std::stoi(std::string(text).substr(std::string("cpu ").size()));
}

// The table is of the release build. In the sanitizers' build, at -O1, the plain C++ of
// `portable` has other bits where a number is below the smallest normal float.
bool comparable(const std::string& name) {
#if defined(__SANITIZE_ADDRESS__)
  return !name.starts_with("portable ") || name.find(" 2^-1") == std::string::npos;
#else
  (void)name;
  return true;
#endif
}

}  // namespace

std::vector<float> numbers(uint64_t seed, int64_t n, float scale) {
  std::vector<float> all(n);
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = static_cast<int32_t>(mix(seed << 32 | static_cast<uint64_t>(i)) >> 40);
    all[i] = static_cast<float>(bits - (1 << 23)) * 0x1p-23f * scale;
  }
  return all;
}

void Found::add(const std::string& numerics, const std::string& kernels, const std::string& op,
                const Hash& hash) {
  const auto [row, is_new] = rows_.emplace(numerics + " " + op, Row{hash.text(), kernels});
  if (!is_new) {
    EXPECT_EQ(row->second.hash, hash.text())
        << op << ": " << kernels << " has other bits than " << row->second.kernels
        << " of the same class, " << numerics;
  }
}

void Found::check() const {
  Table table = Table::read();
  const int now = version();
  if (writes()) {
    if (table.version != now) table.rows.clear();
    table.version = now;
  }
  EXPECT_EQ(table.version, now) << kFile << " is of another numerics version: write it anew";
  for (const auto& [name, row] : rows_) {
    if (!comparable(name)) {
      std::printf("NOT TESTED: %s against the table, see comparable()\n", name.c_str());
      continue;
    }
    const auto known = table.rows.find(name);
    if (known == table.rows.end()) {
      EXPECT_TRUE(writes()) << name << " is not in " << kFile;
      table.rows[name] = row.hash;
    } else {
      EXPECT_EQ(known->second, row.hash)
          << name << " by " << row.kernels << ": its bits have changed. If they should, raise "
          << "kNumericsVersion in cpu/program.cpp and write the table anew";
    }
  }
  if (writes() && !::testing::Test::HasFailure()) table.write();
}

}  // namespace millrace::cpu
