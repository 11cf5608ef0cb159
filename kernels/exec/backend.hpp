// What a backend brings: a device, and kernels for a checked program. All the
// rest (checks, order of ops, slots, KV memory, the C ABI) is shared.
#ifndef MILLRACE_EXEC_BACKEND_HPP
#define MILLRACE_EXEC_BACKEND_HPP

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
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

// The step of an op. Its batch points to the slabs of the op's group of layers.
struct Run {
  const Batch& batch;
  int rows;                            // the batch's or, after SELECT_ROWS, its outputs; at least 1
  const Slot* slots;                   // of the program
  std::span<const Slot* const> ranks;  // the slots of each rank's program, in their order

  Slot slot(int index) const { return slots[index]; }
  // A slot that not all ops of a kind have.
  Slot slot_if(bool has, int index) const { return has ? slots[index] : Slot{}; }
};

// The kernels of one loaded program: a function per op kind, over the slots that the op names. A
// row's result does not depend on the other rows, bit for bit.
class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void begin(const Batch&) {}        // before the first op of a step, with the first group
  virtual void begin_group(const Batch&) {}  // then with each other group of layers
  // Before the first op, of a step whose ops are not timed. True: the step's ops have begun to run, as they
  // did in a step like it, and the caller runs none.
  virtual bool replay(const Batch&) { return false; }
  virtual void embed(const Op&, const Run&) = 0;
  virtual void norm(const Op&, const Run&) = 0;
  virtual void linear(const Op&, const Run&) = 0;
  virtual void rope_store(const Op&, const Run&) = 0;
  virtual void attention(const Op&, const Run&) = 0;
  // In ascending order, so that rows, and first rows, may be selected in place.
  virtual void select_rows(const Op&, const Run&);
  virtual void route(const Op&, const Run&) = 0;
  virtual void conv(const Op&, const Run&) = 0;
  virtual void recur(const Op&, const Run&) = 0;
  virtual void gate(const Op&, const Run&) = 0;
  virtual void altup(const Op&, const Run&) = 0;
  // All ranks have written `in`. Throws Error(MR_UNSUPPORTED) where there is one rank.
  virtual void all_reduce(const Op&, const Run&);

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
  // As mr_backend's program_draw, of logits that are kept; masks are whole.
  virtual void draw(std::span<const mr_draw> draws, std::span<const uint32_t> masks,
                    int32_t* tokens);
  // In place of finish: starts draws as mr_backend's program_start has them, none or one for each output.
  virtual void start_draws(int outputs, std::span<const mr_draw> draws);
  virtual void end_draws(std::span<int32_t> tokens);  // waits for the oldest that were started

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
  virtual bool takes_h2o() const { return false; }  // ops with heavy tokens
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
