#include "exec/kv.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "exec/error.hpp"
#include "exec/limits.hpp"
#include "millrace_kernels.h"

namespace millrace {
namespace {

// Mappings left to the rest of the process: its libraries, thread stacks, weight
// files, and the reservations between mapped slabs.
constexpr int64_t kOtherMappings = 4096;

constexpr int kReserve = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

double gib(uint64_t bytes) { return static_cast<double>(bytes) / (1u << 30); }

}  // namespace

KvLayout::KvLayout(int layers, int kv_heads, int head_dim, int element_bytes)
    : layers(layers), kv_heads(kv_heads), head_dim(head_dim), element_bytes(element_bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  slab_bytes = (block(layers, 0, 0) + page - 1) / page * page;
}

size_t KvLayout::block_bytes() const { return size_t{MR_SLAB_TOKENS} * head_dim * element_bytes; }

size_t KvLayout::block(int layer, int value, int head) const {
  return ((size_t(layer) * 2 + value) * kv_heads + head) * block_bytes();
}

int32_t max_slabs() {
  const int64_t most = max_mappings() - kOtherMappings;
  return static_cast<int32_t>(std::clamp<int64_t>(most, 0, std::numeric_limits<int32_t>::max()));
}

KvPool::KvPool(const KvLayout& layout, int slabs) : layout_(layout), slabs_(slabs) {
  if (slabs < 1) fail(MR_INVALID, "KV pool of %d slabs, expected at least 1", slabs);
  const uint64_t bytes = uint64_t{layout.slab_bytes} * slabs;
  if (slabs > max_slabs()) {
    fail(MR_UNSUPPORTED,
         "KV pool of %d slabs (%.2f GiB) may need as many memory mappings and %lld for the rest, "
         "but vm.max_map_count is %lld: use at most %d slabs (%.2f GiB), or raise it with "
         "sysctl -w vm.max_map_count=%lld",
         slabs, gib(bytes), static_cast<long long>(kOtherMappings),
         static_cast<long long>(max_mappings()), max_slabs(),
         gib(uint64_t{layout.slab_bytes} * max_slabs()),
         static_cast<long long>(slabs + kOtherMappings));
  }
  // The kernel would not refuse what exceeds a cgroup's limit: it would kill.
  const MemoryLimits limits = memory_limits();
  if (bytes > limits.available) {
    fail(MR_NO_MEMORY, "KV pool of %d slabs needs %.2f GiB, available are %.2f GiB", slabs,
         gib(bytes), gib(limits.available));
  }
  file_ = memfd_create("millrace-kv", MFD_CLOEXEC);
  if (file_ < 0) fail(MR_DEVICE, "KV pool: memfd_create: %s", std::strerror(errno));
  int error = 0;
  do {
    error = fallocate(file_, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) {
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (data != MAP_FAILED) {
      data_ = static_cast<std::byte*>(data);
      return;
    }
    error = errno;
  }
  release();
  fail(MR_NO_MEMORY, "KV pool of %d slabs (%.2f GiB): %s", slabs, gib(bytes), std::strerror(error));
}

KvPool::~KvPool() { release(); }

void KvPool::release() {
  if (data_ != nullptr) munmap(data_, layout_.slab_bytes * slabs_);
  if (file_ >= 0) close(file_);
}

void KvPool::copy(int from, int to, int tokens) {
  for (const int slab : {from, to}) {
    if (slab < 0 || slab >= slabs_) {
      fail(MR_INVALID, "slab copy %d to %d: expected slabs 0 to %d", from, to, slabs_ - 1);
    }
  }
  if (from == to) fail(MR_INVALID, "slab copy %d to %d: expected two slabs", from, to);
  if (tokens < 0 || tokens > MR_SLAB_TOKENS) {
    fail(MR_INVALID, "slab copy of %d tokens, expected 0 to %d", tokens, MR_SLAB_TOKENS);
  }
  const size_t block = layout_.block_bytes(), end = layout_.block(layout_.layers, 0, 0);
  const std::byte* source = data_ + layout_.slab_bytes * from;
  std::byte* target = data_ + layout_.slab_bytes * to;
  for (size_t at = 0; at < end; at += block) {
    std::memcpy(target + at, source + at, block / MR_SLAB_TOKENS * tokens);
  }
}

KvRegion::KvRegion(std::shared_ptr<KvPool> pool, int slabs) : pool_(std::move(pool)) {
  // A reservation costs addresses only; the bound keeps the product sound.
  constexpr uint64_t kMostBytes = uint64_t{1} << 44;
  const size_t slab_bytes = pool_->slab_bytes();
  if (slabs < 1 || uint64_t(slabs) > kMostBytes / slab_bytes) {
    fail(MR_INVALID, "region of %d slabs, expected 1 to %llu", slabs,
         static_cast<unsigned long long>(kMostBytes / slab_bytes));
  }
  slab_.assign(slabs, -1);
  void* data = mmap(nullptr, slab_bytes * slabs, PROT_NONE, kReserve, -1, 0);
  if (data == MAP_FAILED) {
    fail(MR_NO_MEMORY, "region of %d slabs: %s", slabs, std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(data);
}

KvRegion::~KvRegion() { munmap(data_, pool_->slab_bytes() * slab_.size()); }

void KvRegion::check(int index, int n, bool expect_mapped) const {
  if (index < 0 || n < 1 || n > slabs() - index) {
    fail(MR_INVALID, "region places %d and %d following, expected inside its %d", index, n - 1,
         slabs());
  }
  for (int i = index; i < index + n; ++i) {
    if (mapped(i) == expect_mapped) continue;
    if (expect_mapped) fail(MR_INVALID, "region place %d is not mapped", i);
    fail(MR_INVALID, "region place %d maps slab %d already", i, slab_[i]);
  }
}

// Turns places back into reserved addresses. Replacing a whole mapping by a
// reservation splits nothing, but in the middle of a run it makes two of one:
// the system may refuse at its limit, and then the process has none left to go on.
void KvRegion::reserve(int index, int n) {
  const size_t slab_bytes = pool_->slab_bytes();
  void* at = data_ + slab_bytes * index;
  if (mmap(at, slab_bytes * n, PROT_NONE, kReserve | MAP_FIXED, -1, 0) == MAP_FAILED) {
    fail(MR_NO_MEMORY, "unmapping %d slabs: %s (vm.max_map_count is %lld)", n, std::strerror(errno),
         static_cast<long long>(max_mappings()));
  }
  std::fill_n(slab_.begin() + index, n, -1);
}

void KvRegion::map(int index, const int32_t* slabs, int n) {
  check(index, n, false);
  for (int i = 0; i < n; ++i) {
    if (slabs[i] < 0 || slabs[i] >= pool_->slabs()) {
      fail(MR_INVALID, "slab %d does not exist, expected 0 to %d", slabs[i], pool_->slabs() - 1);
    }
  }
  const size_t slab_bytes = pool_->slab_bytes();
  // Slabs that are neighbours in the pool go into one mapping.
  for (int i = 0, run = 0; i < n; i += run) {
    for (run = 1; i + run < n && slabs[i + run] == slabs[i] + run;) ++run;
    // Populated here, because this is called ahead of need, and the page faults
    // would fall into a step.
    void* at = mmap(data_ + slab_bytes * (index + i), slab_bytes * run, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_POPULATE, pool_->file(),
                    static_cast<off_t>(slab_bytes * slabs[i]));
    if (at == MAP_FAILED) {
      const int error = errno;
      if (i > 0) reserve(index, i);
      fail(MR_NO_MEMORY, "mapping %d slabs: %s (vm.max_map_count is %lld)", run,
           std::strerror(error), static_cast<long long>(max_mappings()));
    }
    std::copy_n(slabs + i, run, slab_.begin() + index + i);
  }
}

void KvRegion::unmap(int index, int n) {
  check(index, n, true);
  reserve(index, n);
}

}  // namespace millrace
