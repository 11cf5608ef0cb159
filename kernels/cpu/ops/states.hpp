// What the kernels of the ops with a state, and of gates, work on.
#ifndef MILLRACE_CPU_OPS_STATES_HPP
#define MILLRACE_CPU_OPS_STATES_HPP

#include <cstdint>

#include "exec/exponential.hpp"

namespace millrace::cpu {

// Rows of one sequence, of channels [begin, end) of a CONV.
struct ConvTask {
  const float *weights, *bias;  // [kernel][channels]; [channels] or null
  int channels, kernel;
  int offset, times, gate;  // as mr_conv has them
  bool silu, out_f32;
  int begin, end, rows;
  const float* in;  // the first row
  int64_t in_stride;
  float* state;  // [kernel - 1][channels]
  void* out;     // the first row; bf16 or float
  int64_t out_stride;
};

// Rows that RECUR prepares together.
inline constexpr int kStateRows = 16;

// Rows of one sequence, of a head of a RECUR. Pointers to what the head has of the first row.
struct RecurTask {
  int rule;  // mr_recur_rule
  int keys, values, state_row;
  float a;               // e^a_log
  const float* dt_bias;  // of MR_RECUR_CHANNELS [keys]
  float skip, least_step, most_step, rate_scale;
  int rows;
  const float *q, *k, *v;
  int64_t in_stride;
  const float *decay, *rate;
  int64_t gates_stride, rates_stride;
  float* state;  // [keys][state_row]
  float* out;
  int64_t out_stride;
  float* room;  // [room_floats]

  // Whether a token takes what the state has for its key off it.
  bool erases() const { return rule == MR_RECUR_DELTA || rule == MR_RECUR_CHANNELS; }

  static int64_t room_floats(int keys, int state_row) {
    return int64_t{kStateRows} * (4 * keys + 2 * state_row);
  }
};

// Rows of one sequence, of a head of a RECUR that is a scan. Pointers to what the head has of the first row.
struct ScanTask {
  int keys, values, state_row;
  const float *a, *dt_bias, *skip;  // [keys][state_row], e^a_log; [values]
  int rows;
  const float *q, *k;
  int64_t rates_stride;
  const float* v;
  int64_t in_stride;
  const float* decay;
  int64_t gates_stride;
  float* state;  // [keys][state_row]
  float* out;
  int64_t out_stride;
};

struct GateRow {
  int width, group;
  const float* weight;  // [group] or, with `each`, [width]; null: no norm
  bool each, first;
  int activation;  // mr_gate_activation
  bool out_f32;
  float eps;
  bool sparse;
  float cutoff;
};

// A step of alternating updates, as mr_altup has it.
struct AltUpRow {
  int step, streams, active, width;
};

}  // namespace millrace::cpu

#endif
