#include "gpu/kv_memory.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>

#include "exec/error.hpp"

namespace millrace::gpu {
namespace {

// The largest piece of mapped memory: large pages, but not so large that a busy device refuses.
constexpr size_t kMostPiece = size_t{1} << 30;

}  // namespace

AllocatedKvMemory::AllocatedKvMemory(const KvSize& size, const Allocate& allocate)
    : slab_bytes_(size.slab_bytes),
      slabs_at_once_(static_cast<int>(
          std::min<size_t>(size.largest / size.slab_bytes, static_cast<size_t>(size.slabs)))) {
  if (slabs_at_once_ == 0) {
    fail(MR_NO_MEMORY, "a KV slab has %zu bytes, the device's largest allocation is %zu",
         size.slab_bytes, size.largest);
  }
  for (int first = 0; first < size.slabs; first += slabs_at_once_) {
    parts_.push_back(allocate(slab_bytes_ * std::min(slabs_at_once_, size.slabs - first)));
  }
}

std::byte* AllocatedKvMemory::slab(int index) const {
  return static_cast<std::byte*>(parts_[index / slabs_at_once_].data()) +
         slab_bytes_ * (index % slabs_at_once_);
}

MappedKvMemory::MappedKvMemory(const KvSize& size, std::unique_ptr<VirtualMemory> memory)
    : memory_(std::move(memory)), slab_bytes_(size.slab_bytes) {
  const size_t page = memory_->granularity();
  if (page == 0) fail(MR_UNSUPPORTED, "a granularity of 0 bytes");
  const size_t most = std::max(std::min(size.largest, kMostPiece) / page, size_t{1}) * page;
  bytes_ = (size.slab_bytes * size.slabs + page - 1) / page * page;
  data_ = memory_->reserve(bytes_);
  try {
    for (size_t at = 0; at < bytes_; at += most) {
      memory_->map(data_ + at, std::min(most, bytes_ - at));
      pieces_.push_back(data_ + at);
    }
  } catch (...) {
    free();
    throw;
  }
}

MappedKvMemory::~MappedKvMemory() { free(); }

void MappedKvMemory::free() noexcept {
  while (!pieces_.empty()) {
    memory_->unmap(pieces_.back());
    pieces_.pop_back();
  }
  memory_->release(data_, bytes_);
}

std::unique_ptr<KvMemory> open_kv_memory(const KvSize& size, std::unique_ptr<VirtualMemory> memory,
                                         const AllocatedKvMemory::Allocate& allocate) {
  if (memory != nullptr) {
    try {
      return std::make_unique<MappedKvMemory>(size, std::move(memory));
    } catch (const Error& e) {
      std::fprintf(stderr, "millrace: no virtual memory for KV slabs, they are allocated: %s\n",
                   e.what());
    }
  }
  return std::make_unique<AllocatedKvMemory>(size, allocate);
}

}  // namespace millrace::gpu
