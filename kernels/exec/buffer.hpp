// Memory of fixed size, aligned for vectors, zeroed so that it is really there.
#ifndef MILLRACE_EXEC_BUFFER_HPP
#define MILLRACE_EXEC_BUFFER_HPP

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>

namespace millrace {

class Buffer {
 public:
  Buffer() = default;
  // Throws std::bad_alloc.
  explicit Buffer(size_t bytes) : data_(::operator new(bytes, kAlign)), size_(bytes) {
    std::memset(data_.get(), 0, bytes);
  }

  void* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Free {
    void operator()(void* p) const { ::operator delete(p, kAlign); }
  };

  std::unique_ptr<void, Free> data_;
  size_t size_ = 0;
};

}  // namespace millrace

#endif
