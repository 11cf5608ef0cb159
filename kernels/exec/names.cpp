// The names and sizes of what a program has.
#include "exec/program.hpp"

namespace millrace {

const char* op_name(int32_t kind) {
  switch (kind) {
    case MR_OP_EMBED:
      return "EMBED";
    case MR_OP_NORM:
      return "NORM";
    case MR_OP_LINEAR:
      return "LINEAR";
    case MR_OP_ROPE_STORE:
      return "ROPE_STORE";
    case MR_OP_ATTENTION:
      return "ATTENTION";
    case MR_OP_SELECT_ROWS:
      return "SELECT_ROWS";
    case MR_OP_ROUTE:
      return "ROUTE";
    case MR_OP_CONV:
      return "CONV";
    case MR_OP_RECUR:
      return "RECUR";
    case MR_OP_GATE:
      return "GATE";
    case MR_OP_ALTUP:
      return "ALTUP";
    default:
      return "unknown";
  }
}

const char* weights_name(int32_t weights) {
  constexpr const char* kNames[] = {"16-bit", "int8", "int4", "fp8", "nf4", "blocks"};
  return kNames[weights];
}

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
