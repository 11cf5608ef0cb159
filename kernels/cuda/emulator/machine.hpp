// Runs grids: blocks one after the other, the threads of a block as fibers of the caller's thread.
#ifndef MILLRACE_CUDA_EMULATOR_MACHINE_HPP
#define MILLRACE_CUDA_EMULATOR_MACHINE_HPP

#include <cstdint>

#define MR_EMULATED_EXPORT __attribute__((visibility("default")))
#define MILLRACE_CUDA_EMULATOR_RUNTIME
#include "emulation.hpp"

namespace mr_emulator {

struct Launch {
  const Kernel* kernel;
  void** arguments;
  Dim grid, block;
  u64 shared_bytes;
  u64 static_begin, static_end;
  bool
      early;  // the kernel may start before those before it have ended, and so has to wait for them
};

enum class Fault { none, illegal_address, illegal_instruction, arithmetic };

// Returns what a thread did, after a message to stderr. Misuse of shared memory and of operations
// of a warp ends the process with a message.
Fault run(const Launch& launch);

// Memory that kernels and asynchronous copies may access.
struct Range {
  u64 begin, end;
};
Range global_memory();

// Bytes with which new memory is filled.
int device_poison();

}  // namespace mr_emulator

#endif
