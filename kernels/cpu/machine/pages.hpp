// Memory for what is streamed: packed weights, packed operands.
#ifndef MILLRACE_CPU_MACHINE_PAGES_HPP
#define MILLRACE_CPU_MACHINE_PAGES_HPP

#include <cstddef>
#include <utility>

namespace millrace::cpu {

// Bytes in whole lines of the cache.
constexpr size_t whole_lines(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Zeroed pages of the process, 64-byte aligned at least; 2 MiB and more begin
// at a huge page and ask for huge pages. Physical memory is taken on first
// touch, on the NUMA node of the thread that touches. Throws std::bad_alloc.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes);
  ~Pages();
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  void* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace millrace::cpu

#endif
