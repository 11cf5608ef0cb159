// What the machine can do at best, to compare the ops with.
#ifndef MILLRACE_CPU_MEASURE_HPP
#define MILLRACE_CPU_MEASURE_HPP

#include <cstdint>

#include "isa.hpp"
#include "thread_pool.hpp"

namespace millrace::cpu {

// GB/s (1e9) of reading `bytes` of memory once by all threads, the best of a few
// runs. A true figure of the memory needs a buffer much larger than the caches;
// it is taken from the system for the time of the call. Throws std::bad_alloc.
double measure_read_gbps(Isa isa, ThreadPool& pool, uint64_t bytes);

// GFLOP/s of the instructions that multiply operands, from registers alone, by
// all threads, the best of a few runs.
double measure_peak_gflops(Isa isa, ThreadPool& pool);

}  // namespace millrace::cpu

#endif
