// Which prefetch variant the linear ops use on this machine.
#ifndef MILLRACE_CPU_LINEAR_TUNE_HPP
#define MILLRACE_CPU_LINEAR_TUNE_HPP

#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/machine/thread_pool.hpp"

namespace millrace::cpu {

// Times the prefetch variants on the first of the ops, with few rows, and sets the fastest for
// each number of rows in all. A tenth to a third of a second with large weights. Results do
// not depend on the outcome. Throws std::bad_alloc.
void tune_prefetch(const std::vector<Linear*>& linears, ThreadPool& pool);

}  // namespace millrace::cpu

#endif
