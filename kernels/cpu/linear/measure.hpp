// What the machine can do at best, to compare the ops with.
#ifndef MILLRACE_CPU_LINEAR_MEASURE_HPP
#define MILLRACE_CPU_LINEAR_MEASURE_HPP

#include <cstdint>

#include "cpu/machine/isa.hpp"
#include "cpu/machine/pages.hpp"
#include "cpu/machine/thread_pool.hpp"

namespace millrace::cpu {

// The measurements take some ten milliseconds, so that they can be taken between the
// runs they are compared with, on the same minute's machine.
class Limits {
 public:
  // bytes: of the memory that is read; a true figure needs much more than the caches
  // hold. It is taken from the system now and kept. Throws std::bad_alloc.
  Limits(Isa isa, ThreadPool& pool, uint64_t bytes);

  // GB/s (1e9) of reading the memory once by all threads, in the fastest of the
  // orders in which weights are read.
  double read_gbps();

  // GFLOP/s of the instructions that multiply operands with weights of a type
  // (mr_weights; of int8 integer operations), from registers alone, by all threads,
  // the best of a few runs.
  double peak_gflops(int weights);

 private:
  const Isa isa_;
  ThreadPool& pool_;
  const int tasks_;
  Pages data_;
};

// Whether one thread multiplies faster by the instructions of a than by those of b, bf16
// and int8 alike. Both must be there. Some milliseconds.
bool multiplies_faster(Isa a, Isa b);

}  // namespace millrace::cpu

#endif
