#include "cpu/machine/pages.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

namespace millrace::cpu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;

size_t round_up(size_t n, size_t step) { return (n + step - 1) / step * step; }

void* map_huge(size_t bytes) {
  // Over-map by a huge page, then give back what lies outside the aligned part.
  const size_t length = round_up(bytes, 4096);
  void* raw =
      mmap(nullptr, length + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  const auto begin = reinterpret_cast<uintptr_t>(raw);
  const uintptr_t aligned = round_up(begin, kHugePage);
  if (aligned > begin) munmap(raw, aligned - begin);
  const size_t after = begin + kHugePage - aligned;
  if (after > 0) munmap(reinterpret_cast<void*>(aligned + length), after);
  void* data = reinterpret_cast<void*>(aligned);
  madvise(data, length, MADV_HUGEPAGE);  // advice: ordinary pages do as well
  return data;
}

}  // namespace

Pages::Pages(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  if (bytes >= kHugePage) {
    data_ = map_huge(bytes);
    return;
  }
  // The heap, so that AddressSanitizer sees accesses beyond the end.
  data_ = std::aligned_alloc(kAlignment, round_up(bytes, kAlignment));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, bytes);
}

Pages::~Pages() {
  if (size_ >= kHugePage) {
    munmap(data_, round_up(size_, 4096));
  } else {
    std::free(data_);
  }
}

}  // namespace millrace::cpu
