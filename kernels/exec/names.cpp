// The names and sizes of what a program has.
#include "exec/program.hpp"

namespace millrace {

bool in_groups(int32_t weights) { return weights == MR_WEIGHTS_INT4 || weights == MR_WEIGHTS_NF4; }

bool quantizes_rows(int32_t weights) {
  return weights == MR_WEIGHTS_INT8 || weights == MR_WEIGHTS_INT4 || weights == MR_WEIGHTS_BLOCKS;
}

const char* kv_type_name(int32_t type) {
  constexpr const char* kNames[] = {"auto", "f32", "f16", "bf16", "int8", "int4", "kivi"};
  return kNames[type];
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case MR_F32:
      return "F32";
    case MR_F16:
      return "F16";
    case MR_BF16:
      return "BF16";
    default:
      return "unknown";
  }
}

int dtype_bytes(int32_t dtype) { return dtype == MR_F32 ? 4 : 2; }

}  // namespace millrace
