// The table of numerics, numerics.txt: a hash for each op, type and class of kernels. Every
// kernel of a class must have it.
#ifndef MILLRACE_TEST_NUMERICS_TABLE_HPP
#define MILLRACE_TEST_NUMERICS_TABLE_HPP

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace millrace::cpu {

// n numbers in [-scale, scale) of 24 bits, made of counters by integer arithmetic.
std::vector<float> numbers(uint64_t seed, int64_t n, float scale = 1);

class Hash {
 public:
  template <class T>
  void add(const T* values, size_t n) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values);
    for (size_t i = 0; i < n * sizeof(T); ++i) hash_ = (hash_ ^ bytes[i]) * 0x100000001b3;
  }
  std::string text() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash_));
    return text;
  }

 private:
  uint64_t hash_ = 0xcbf29ce484222325;  // FNV-1a
};

// Rows of some kernels, beside those that others of the class have given.
class Found {
 public:
  void add(const std::string& numerics, const std::string& kernels, const std::string& op,
           const Hash& hash);

  // Compares the rows with the table, or writes them to it (MILLRACE_WRITE_NUMERICS).
  void check() const;

 private:
  struct Row {
    std::string hash, kernels;
  };
  std::map<std::string, Row> rows_;
};

}  // namespace millrace::cpu

#endif
