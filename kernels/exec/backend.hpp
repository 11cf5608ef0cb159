// What a backend brings: a device, and kernels for a checked program. All the
// rest (checks, order of ops, slots, KV memory, the C ABI) is shared.
#ifndef MILLRACE_EXEC_BACKEND_HPP
#define MILLRACE_EXEC_BACKEND_HPP

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "exec/buffer.hpp"
#include "exec/kv.hpp"
#include "exec/program.hpp"
#include "exec/step.hpp"
#include "millrace_kernels.h"

namespace millrace {

// A slot's memory: [rows, width], rows without gaps, 64-byte aligned.
struct Slot {
  void* data;
  int32_t width;
  int32_t type;           // mr_slot_type
  int32_t element_bytes;  // of the type on this device

  float* f32() const { return static_cast<float*>(data); }
};

// The kernels of one loaded program: a function per op kind. `rows` is the
// batch's rows or, after SELECT_ROWS, its outputs, and at least 1. A row's
// result does not depend on the other rows, bit for bit.
class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void begin(const Batch&) {}        // before the first op of a step, with the first group
  virtual void begin_group(const Batch&) {}  // then with each other group of layers
  // Before the first op, of a step whose ops are not timed. True: the step's ops have begun to run, as they
  // did in a step like it, and the caller runs none.
  virtual bool replay(const Batch&) { return false; }
  virtual void embed(const Op&, const Batch&, Slot out) = 0;
  virtual void norm(const Op&, int rows, Slot in, Slot out) = 0;
  virtual void linear(const Op&, int rows, Slot in, Slot out) = 0;
  // Backends with experts have both. chosen: what the op's ROUTE wrote; of MR_ROUTED_HEADS nothing.
  virtual void route(const Op&, int rows, Slot in, Slot out);
  virtual void experts(const Op&, int rows, Slot in, Slot chosen, Slot out);
  // Backends with states (Device::takes_states) have these. gates: the op's slot.
  virtual void conv(const Op&, const Batch&, Slot in, Slot out);
  virtual void recur(const Op&, const Batch&, Slot in, Slot gates, Slot rates, Slot out);
  virtual void gate(const Op&, int rows, Slot in, Slot gates, Slot out);
  // Backends with streams (Device::takes_streams) have it. streams: those of the op.
  virtual void altup(const Op&, int rows, const Slot* streams, Slot coefs, Slot x);
  // sink_q: of an op with sinks.
  virtual void rope_store(const Op&, const Batch&, Slot in, Slot sink_q) = 0;
  virtual void attention(const Op&, const Batch&, Slot in, Slot sink_q, Slot out) = 0;
  // In ascending order, so that rows, and first rows, may be selected in place.
  virtual void select_rows(const Op&, const Batch&, Slot in, Slot out);

  // Where the logits are computed: the caller's memory, or the device's, which
  // finish then copies there.
  virtual float* logits(float* caller) { return caller; }
  virtual bool keeps_logits() const {
    return false;
  }                       // they are the device's, and mr_step.best is known
  virtual void wait() {}  // until the ops so far are done
  // The time of the launches since begin or the last call, which are done. No launches:
  // each op is one. No nanoseconds: the device has no clock of its own.
  virtual mr_op_time op_time() { return {}; }
  // Copies from a slot to the caller's memory, after the ops so far.
  virtual void read(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
  virtual void finish(const mr_step&) {}  // after the last op: waits, the logits are the caller's

  // Whether rope_store and attention take sequences with beams.
  virtual bool takes_beams() const { return false; }

  // As mr_backend's program_packed.
  virtual mr_span packed(int) const { return {}; }
  virtual uint64_t weight_bytes() const = 0;
  virtual uint64_t scratch_bytes() const = 0;
  virtual std::string linear_name() const = 0;
  virtual std::string numerics() const = 0;  // as mr_backend's program_numerics
};

class Device {
 public:
  virtual ~Device() = default;

  virtual void info(mr_device_info&) const = 0;
  virtual mr_measurement measure() = 0;
  // The type of keys and values that are floats.
  virtual mr_dtype kv_dtype(const Program&) const = 0;
  // Bytes of a block of a slab whose 16 tokens have `width` codes of the type each, from MR_KV_INT8 on;
  // 0: the backend keeps none.
  virtual size_t kv_code_block_bytes(int /*width*/, int32_t /*type*/) const { return 0; }
  // KvLayout's head_slabs for the type.
  virtual int kv_head_slabs(int32_t /*type*/) const { return 0; }
  virtual bool takes_h2o() const { return false; }      // ops with heavy tokens
  virtual bool takes_states() const { return false; }   // CONV, RECUR, GATE
  virtual bool takes_streams() const { return false; }  // ALTUP
  virtual mr_dtype operand_dtype(const Program&) const = 0;
  // Zeroed memory that the kernels can use.
  virtual Buffer allocate(size_t bytes) { return Buffer(bytes); }
  // The KV cache's memory: mapped slab by slab where nothing else is said.
  virtual std::shared_ptr<KvPool> pool(const KvLayout&, int slabs, const PoolFile&);
  virtual int32_t max_slabs() const;
  virtual bool takes_packed() const { return false; }  // as mr_program_desc has them
  // Packs the weights. The program and the layout outlive the kernels.
  virtual std::unique_ptr<Kernels> load(const Program&, const KvLayout&) = 0;
};

}  // namespace millrace

#endif
