#include "exec/mapped_pool.hpp"

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

int32_t MappedPool::max_slabs() {
  const int64_t most = max_mappings() - kOtherMappings;
  return static_cast<int32_t>(std::clamp<int64_t>(most, 0, std::numeric_limits<int32_t>::max()));
}

MappedPool::MappedPool(const KvLayout& layout, int slabs, const PoolFile& file)
    : KvPool(layout, slabs), offset_(file.offset), allocates_(file.file < 0), allocated_(slabs) {
  if (slabs > max_slabs()) {
    fail(MR_UNSUPPORTED,
         "KV pool of %d slabs (%.2f GiB) may need as many memory mappings and %lld for the rest, "
         "but vm.max_map_count is %lld: use at most %d slabs (%.2f GiB), or raise it with "
         "sysctl -w vm.max_map_count=%lld",
         slabs, gib(bytes()), static_cast<long long>(kOtherMappings),
         static_cast<long long>(max_mappings()), max_slabs(),
         gib(uint64_t{layout.slab_bytes} * max_slabs()),
         static_cast<long long>(slabs + kOtherMappings));
  }
  // The kernel would not refuse what exceeds a cgroup's limit: it would kill.
  const MemoryLimits limits = memory_limits();
  if (bytes() > limits.available) {
    fail(MR_NO_MEMORY, "KV pool of %d slabs needs %.2f GiB, available are %.2f GiB", slabs,
         gib(bytes()), gib(limits.available));
  }
  try {
    open_file(file.file);
  } catch (...) {
    close_file();
    throw;
  }
}

MappedPool::~MappedPool() { close_file(); }

void MappedPool::open_file(int from) {
  file_ = from < 0 ? memfd_create("millrace-kv", MFD_CLOEXEC) : fcntl(from, F_DUPFD_CLOEXEC, 0);
  if (file_ < 0) fail(MR_DEVICE, "KV pool: %s", std::strerror(errno));
  void* data = MAP_FAILED;
  if (ftruncate(file_, static_cast<off_t>(offset_ + bytes())) == 0) {
    data = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file_,
                static_cast<off_t>(offset_));
  }
  if (data == MAP_FAILED) {
    fail(MR_NO_MEMORY, "KV pool of %d slabs (%.2f GiB): %s", slabs(), gib(bytes()),
         std::strerror(errno));
  }
  data_ = static_cast<std::byte*>(data);
}

void MappedPool::close_file() {
  if (data_ != nullptr) munmap(data_, bytes());
  if (file_ >= 0) close(file_);
}

// All of it: where a token lies in a block is the backend's affair.
void MappedPool::copy_slab(int from, int to, int tokens) {
  if (tokens == 0) return;
  allocate(to);
  std::memcpy(data_ + layout_.slab_bytes * to, data_ + layout_.slab_bytes * from,
              layout_.slab_bytes);
}

void MappedPool::read_slab(int slab, void* to) {
  std::memcpy(to, data_ + layout_.slab_bytes * slab, layout_.slab_bytes);
}

void MappedPool::write_slab(int slab, const void* from) {
  allocate(slab);
  std::memcpy(data_ + layout_.slab_bytes * slab, from, layout_.slab_bytes);
}

void MappedPool::allocate(int slab) {
  if (!allocates_ || allocated_[slab]) return;
  const uint64_t begin = slab_bytes() * slab;
  while (fallocate(file_, 0, static_cast<off_t>(offset_ + begin),
                   static_cast<off_t>(slab_bytes())) != 0) {
    if (errno == EINTR) continue;
    fail(MR_NO_MEMORY, "KV pool of %d slabs (%.2f GiB), slab %d: %s", slabs(), gib(bytes()), slab,
         std::strerror(errno));
  }
  allocated_[slab] = true;
}

std::byte* MappedPool::reserve(int slabs) {
  void* data = mmap(nullptr, slab_bytes() * slabs, PROT_NONE, kReserve, -1, 0);
  if (data == MAP_FAILED) {
    fail(MR_NO_MEMORY, "region of %d slabs: %s", slabs, std::strerror(errno));
  }
  return static_cast<std::byte*>(data);
}

void MappedPool::release(std::byte* data, int slabs) { munmap(data, slab_bytes() * slabs); }

void MappedPool::map(std::byte* data, const int32_t* slabs, int n) {
  for (int i = 0; i < n; ++i) allocate(slabs[i]);
  // Slabs that are neighbors in the pool go into one mapping.
  for (int i = 0, run = 0; i < n; i += run) {
    for (run = 1; i + run < n && slabs[i + run] == slabs[i] + run;) ++run;
    // Populated here, because this is called ahead of need, and the page faults
    // would fall into a step.
    void* at = mmap(data + slab_bytes() * i, slab_bytes() * run, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_POPULATE, file_,
                    static_cast<off_t>(offset_ + slab_bytes() * slabs[i]));
    if (at == MAP_FAILED) {
      const int error = errno;
      if (i > 0) unmap(data, i);
      fail(MR_NO_MEMORY, "mapping %d slabs: %s (vm.max_map_count is %lld)", run,
           std::strerror(error), static_cast<long long>(max_mappings()));
    }
  }
}

// Turns places back into reserved addresses. Replacing a whole mapping by a
// reservation splits nothing, but in the middle of a run it makes two of one:
// the system may refuse at its limit, and then the process has none left to continue.
void MappedPool::unmap(std::byte* data, int n) {
  if (mmap(data, slab_bytes() * n, PROT_NONE, kReserve | MAP_FIXED, -1, 0) == MAP_FAILED) {
    fail(MR_NO_MEMORY, "unmapping %d slabs: %s (vm.max_map_count is %lld)", n, std::strerror(errno),
         static_cast<long long>(max_mappings()));
  }
}

}  // namespace millrace
