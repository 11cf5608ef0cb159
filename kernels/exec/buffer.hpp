// Memory of fixed size, aligned for vectors, zeroed so that it is really there.
#ifndef MILLRACE_EXEC_BUFFER_HPP
#define MILLRACE_EXEC_BUFFER_HPP

#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <utility>

namespace millrace {

class Buffer {
 public:
  using Free = std::function<void(void*)>;

  Buffer() : data_(nullptr, [](void*) {}) {}
  // Throws std::bad_alloc.
  explicit Buffer(size_t bytes)
      : Buffer(::operator new(bytes, kAlign), bytes,
               [](void* p) { ::operator delete(p, kAlign); }) {
    std::memset(data_.get(), 0, bytes);
  }
  // Memory that someone else has made.
  Buffer(void* data, size_t bytes, Free free) : data_(data, std::move(free)), size_(bytes) {}

  void* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};

  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace millrace

#endif
