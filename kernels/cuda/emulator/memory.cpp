#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mr_emulator {
namespace {

constexpr u64 kPage = 4096, kAlignment = 256;
// Larger memory is filled at its ends only.
constexpr u64 kFilled = 256 << 20, kFilledEnd = 16 << 20;

u64 round_up(u64 x, u64 to) { return (x + to - 1) / to * to; }
void* pointer(u64 at) { return reinterpret_cast<void*>(at); }

void fill(u64 at, u64 bytes) {
  const int poison = device_poison();
  if (bytes <= kFilled) {
    std::memset(pointer(at), poison, bytes);
  } else {
    std::memset(pointer(at), poison, kFilledEnd);
    std::memset(pointer(at + bytes - kFilledEnd), poison, kFilledEnd);
  }
}

bool map_at(u64 at, u64 bytes, int protection) {
  return mmap(pointer(at), bytes, protection,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

// The entry of the map whose range holds `at`.
template <class Map>
auto holder(Map& map, u64 at) {
  auto it = map.upper_bound(at);
  return it == map.begin() ? map.end() : --it;
}

}  // namespace

Memory::Memory() {
  const char* text = std::getenv("MILLRACE_CUDA_EMULATOR_MEMORY");
  total_ = text && *text ? std::strtoull(text, nullptr, 0) : u64{2} << 30;
  for (u64 bytes = u64{1} << 40; bytes >= u64{1} << 33; bytes /= 2) {
    void* const p =
        mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) continue;
    arena_ = {reinterpret_cast<u64>(p), reinterpret_cast<u64>(p) + bytes};
    next_ = round_up(arena_.begin, kGranularity);
    return;
  }
  std::perror("millrace CUDA emulator: mmap");
  std::abort();
}

u64 Memory::take(u64 bytes, u64 alignment) {
  const u64 at = round_up(next_, alignment);
  if (at + bytes <= arena_.end) {
    next_ = at + bytes;
    return at;
  }
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [begin, size] = *it;
    const u64 start = round_up(begin, alignment);
    if (start + bytes > begin + size) continue;
    free_.erase(it);
    if (start > begin) free_[begin] = start - begin;
    if (begin + size > start + bytes) free_[start + bytes] = begin + size - start - bytes;
    return start;
  }
  return 0;
}

void Memory::give(u64 at, u64 bytes) {
  map_at(at, bytes, PROT_NONE);
  const auto next = free_.find(at + bytes);
  if (next != free_.end()) {
    bytes += next->second;
    free_.erase(next);
  }
  const auto before = holder(free_, at);
  if (before != free_.end() && before->first + before->second == at) {
    before->second += bytes;
  } else {
    free_[at] = bytes;
  }
}

// Pages with a guard page after them. The memory ends where the guard begins, as far as its
// alignment allows.
u64 Memory::place(u64 bytes, int device) {
  const u64 aligned = round_up(bytes, kAlignment), pages = round_up(aligned, kPage);
  const u64 range = take(pages + kPage, kPage);
  if (!range) return 0;
  if (!map_at(range, pages, PROT_READ | PROT_WRITE)) {
    give(range, pages + kPage);
    return 0;
  }
  fill(range, pages);
  const u64 at = range + pages - aligned;
  pieces_[at] = {bytes, range, pages + kPage, device};
  return at;
}

void Memory::drop(std::map<u64, Piece>::iterator it) {
  const u64 at = it->first;
  const Piece& piece = it->second;
  // Bytes before and after that nobody may write.
  const auto check = [&](u64 begin, u64 end, const char* where) {
    if (piece.bytes > kFilled) return;
    for (u64 i = begin; i < end; ++i) {
      if (*reinterpret_cast<const u8*>(i) == device_poison()) continue;
      std::fprintf(stderr,
                   "millrace CUDA emulator: a write %s an allocation of %lu bytes at 0x%lx, found "
                   "when it was freed: byte 0x%lx\n",
                   where, piece.bytes, at, i);
      std::abort();
    }
  };
  check(piece.range, at, "before");
  check(at + piece.bytes, piece.range + piece.range_bytes - kPage, "after");
  give(piece.range, piece.range_bytes);
  pieces_.erase(it);
}

CUresult Memory::allocate(int device, u64 bytes, u64* out) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > total_ - used_[device]) return CUDA_ERROR_OUT_OF_MEMORY;
  const u64 at = place(bytes, device);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  used_[device] += bytes;
  *out = at;
  return CUDA_SUCCESS;
}

CUresult Memory::free(u64 at) {
  const auto it = pieces_.find(at);
  if (it == pieces_.end() || it->second.device < 0) return CUDA_ERROR_INVALID_VALUE;
  used_[it->second.device] -= it->second.bytes;
  drop(it);
  return CUDA_SUCCESS;
}

CUresult Memory::allocate_host(u64 bytes, void** out) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  const u64 at = place(bytes, -1);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = pointer(at);
  return CUDA_SUCCESS;
}

CUresult Memory::free_host(void* p) {
  const auto it = pieces_.find(reinterpret_cast<u64>(p));
  if (it == pieces_.end() || it->second.device >= 0) return CUDA_ERROR_INVALID_VALUE;
  drop(it);
  return CUDA_SUCCESS;
}

// ---- Virtual memory

CUresult Memory::reserve(u64 bytes, u64 alignment, u64* out) {
  if (!bytes || bytes % kGranularity || (alignment & (alignment - 1))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A page between reservations, so that an overrun faults.
  const u64 at = take(bytes + kPage, alignment > kGranularity ? alignment : kGranularity);
  if (!at) return CUDA_ERROR_OUT_OF_MEMORY;
  reservations_[at] = bytes;
  *out = at;
  return CUDA_SUCCESS;
}

CUresult Memory::unreserve(u64 at, u64 bytes) {
  const auto it = reservations_.find(at);
  if (it == reservations_.end() || it->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = mappings_.lower_bound(at);
  if (mapping != mappings_.end() && mapping->first < at + bytes) return CUDA_ERROR_INVALID_VALUE;
  give(at, bytes + kPage);
  reservations_.erase(it);
  return CUDA_SUCCESS;
}

CUresult Memory::create(int device, u64 bytes, u64* handle) {
  if (!bytes || bytes % kGranularity) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > total_ - used_[device]) return CUDA_ERROR_OUT_OF_MEMORY;
  const int file = memfd_create("millrace-cuda-emulator", MFD_CLOEXEC);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  void* const p = ftruncate(file, static_cast<off_t>(bytes)) == 0
                      ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                      : MAP_FAILED;
  if (p == MAP_FAILED) {
    close(file);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  fill(reinterpret_cast<u64>(p), bytes);
  munmap(p, bytes);
  used_[device] += bytes;
  *handle = next_handle_++;
  auto physical = std::make_shared<Physical>();
  *physical = {file, bytes, device, 0, false};
  physical_[*handle] = std::move(physical);
  return CUDA_SUCCESS;
}

// Frees physical memory that has neither a handle nor a mapping.
void Memory::settle(const std::shared_ptr<Physical>& physical) {
  if (!physical->released || physical->mappings) return;
  close(physical->file);
  used_[physical->device] -= physical->bytes;
}

CUresult Memory::release(u64 handle) {
  const auto it = physical_.find(handle);
  if (it == physical_.end()) return CUDA_ERROR_INVALID_VALUE;
  const auto physical = it->second;
  physical_.erase(it);
  physical->released = true;
  settle(physical);
  return CUDA_SUCCESS;
}

CUresult Memory::map(u64 at, u64 bytes, u64 handle) {
  const auto physical = physical_.find(handle);
  if (physical == physical_.end() || !bytes || at % kGranularity || bytes % kGranularity ||
      bytes > physical->second->bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto reservation = holder(reservations_, at);
  if (reservation == reservations_.end() || at + bytes > reservation->first + reservation->second) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto before = holder(mappings_, at), after = mappings_.lower_bound(at);
  if ((before != mappings_.end() && before->first + before->second.bytes > at) ||
      (after != mappings_.end() && after->first < at + bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (mmap(pointer(at), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->second->file, 0) ==
      MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  ++physical->second->mappings;
  mappings_[at] = {bytes, physical->second, 0};
  return CUDA_SUCCESS;
}

// Whether the range is one or more mappings without gaps.
bool Memory::whole_mappings(u64 at, u64 bytes) const {
  const u64 end = at + bytes;
  while (at < end) {
    const auto it = mappings_.find(at);
    if (it == mappings_.end()) return false;
    at += it->second.bytes;
  }
  return at == end;
}

CUresult Memory::unmap(u64 at, u64 bytes) {
  if (!bytes || !whole_mappings(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  map_at(at, bytes, PROT_NONE);
  for (u64 end = at + bytes; at < end;) {
    const auto it = mappings_.find(at);
    at += it->second.bytes;
    const auto physical = it->second.physical;
    mappings_.erase(it);
    --physical->mappings;
    settle(physical);
  }
  return CUDA_SUCCESS;
}

CUresult Memory::set_access(u64 at, u64 bytes, int flags) {
  if (!bytes || (flags != 0 && flags != 1 && flags != 3) || !whole_mappings(at, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int protection = flags == 3 ? PROT_READ | PROT_WRITE : flags == 1 ? PROT_READ : PROT_NONE;
  if (mprotect(pointer(at), bytes, protection) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  for (u64 end = at + bytes; at < end;) {
    Mapping& mapping = mappings_.find(at)->second;
    mapping.flags = flags;
    at += mapping.bytes;
  }
  return CUDA_SUCCESS;
}

Kind Memory::kind(u64 at, u64 bytes) const {
  const u64 end = at + bytes;
  if (end < at) return Kind::none;
  if (end <= arena_.begin || at >= arena_.end) return Kind::host;
  const auto piece = holder(pieces_, at);
  if (piece != pieces_.end() && end <= piece->first + piece->second.bytes) {
    return piece->second.device < 0 ? Kind::host : Kind::device;
  }
  while (at < end) {
    const auto it = holder(mappings_, at);
    if (it == mappings_.end() || it->second.flags != 3 || at >= it->first + it->second.bytes) {
      return Kind::none;
    }
    at = it->first + it->second.bytes;
  }
  return Kind::device;
}

Memory& memory() {
  static auto& all = *new Memory;  // never freed: threads may outlive main
  return all;
}

Range global_memory() { return memory().arena(); }

}  // namespace mr_emulator
