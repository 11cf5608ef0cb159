// The keys and values of a step as KIVI's codes, or as bf16 (cpu/ops/kv_codes.hpp).
#ifndef MILLRACE_CPU_OPS_KIVI_HPP
#define MILLRACE_CPU_OPS_KIVI_HPP

#include <vector>

#include "exec/backend.hpp"

namespace millrace::cpu {

struct Context;

// Makes the codes of what is whole with a step's rows, whose keys are rotated in the slot.
class KiviStore {
 public:
  void code(const Context&, const Op&, const Batch&, Slot in);
  // Keeps the step's last tokens as bf16, after attention has read those before them.
  static void keep(const Context&, const Op&, const Batch&, Slot in);

 private:
  struct Group {
    const Sequence* sequence;
    int first;  // token
  };
  std::vector<Group> groups_;
};

}  // namespace millrace::cpu

#endif
