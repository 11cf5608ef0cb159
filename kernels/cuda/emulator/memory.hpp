// The memory of the emulated devices. It lies in one reserved range of addresses. What is not
// allocated there is not accessible; memory that was freed stays so.
#ifndef MILLRACE_CUDA_EMULATOR_MEMORY_HPP
#define MILLRACE_CUDA_EMULATOR_MEMORY_HPP

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "cuda.hpp"
#include "machine.hpp"

namespace mr_emulator {

constexpr u64 kGranularity = 2 << 20;  // of virtual memory
constexpr int kMostDevices = 8;

enum class Kind { none, device, host };  // of memory at an address

// Calls are serialized by the driver's mutex.
class Memory {
 public:
  Memory();

  Range arena() const { return arena_; }
  u64 total() const { return total_; }
  u64 used(int device) const { return used_[device]; }

  CUresult allocate(int device, u64 bytes, u64* out);
  CUresult free(u64 at);
  CUresult allocate_host(u64 bytes, void** out);
  CUresult free_host(void* at);

  CUresult reserve(u64 bytes, u64 alignment, u64* out);
  CUresult unreserve(u64 at, u64 bytes);
  CUresult create(int device, u64 bytes, u64* handle);
  CUresult release(u64 handle);
  CUresult map(u64 at, u64 bytes, u64 handle);
  CUresult unmap(u64 at, u64 bytes);
  CUresult set_access(u64 at, u64 bytes, int flags);

  // What lies in [at, at + bytes): none where a part of it is not accessible to the device, but
  // host memory of the process where all of it is outside of the arena.
  Kind kind(u64 at, u64 bytes) const;
  bool outside(u64 at) const { return at < arena_.begin || at >= arena_.end; }

 private:
  struct Piece {  // allocated at once; keyed by its first byte
    u64 bytes, range, range_bytes;
    int device;  // -1: pinned host memory
  };
  struct Physical {
    int file = -1;
    u64 bytes = 0;
    int device = 0, mappings = 0;
    bool released = false;
  };
  struct Mapping {
    u64 bytes;
    std::shared_ptr<Physical> physical;
    int flags = 0;
  };

  u64 take(u64 bytes, u64 alignment);
  void give(u64 at, u64 bytes);
  u64 place(u64 bytes, int device);
  void drop(std::map<u64, Piece>::iterator piece);
  void settle(const std::shared_ptr<Physical>& physical);
  bool whole_mappings(u64 at, u64 bytes) const;

  Range arena_;
  u64 next_, total_;
  u64 used_[kMostDevices] = {};
  std::map<u64, u64> free_;  // ranges that were used before
  std::map<u64, Piece> pieces_;
  std::map<u64, u64> reservations_;
  std::map<u64, Mapping> mappings_;
  std::map<u64, std::shared_ptr<Physical>> physical_;
  u64 next_handle_ = 0x7000;
};

Memory& memory();

}  // namespace mr_emulator

#endif
