// A program on the CPU: its weights packed, its ops handed to the kernels of an instruction set.
#ifndef MILLRACE_CPU_PROGRAM_HPP
#define MILLRACE_CPU_PROGRAM_HPP

#include <memory>

#include "cpu/machine/thread_pool.hpp"
#include "cpu/ops/kernels.hpp"
#include "exec/backend.hpp"

namespace millrace::cpu {

// Throws where this machine cannot run it, has too little memory, or the packed weights that
// come with it are others.
std::unique_ptr<Kernels> load_program(const Program& program, const KvLayout& kv,
                                      const OpKernels& kernels, ThreadPool& pool);

}  // namespace millrace::cpu

#endif
