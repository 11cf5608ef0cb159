// How the weights of linear ops are streamed on this machine.
#ifndef MILLRACE_CPU_LINEAR_TUNE_HPP
#define MILLRACE_CPU_LINEAR_TUNE_HPP

#include <vector>

#include "cpu/linear/linear.hpp"
#include "cpu/machine/thread_pool.hpp"

namespace millrace::cpu {

// Times the streams on the first of the ops, with few rows, and sets the fastest for
// each number of rows in all. A tenth to a third of a second with large weights. Results do
// not depend on the outcome. Throws std::bad_alloc.
void tune_streams(const std::vector<Linear*>& linears, ThreadPool& pool);

}  // namespace millrace::cpu

#endif
