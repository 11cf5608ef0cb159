// Programs, devices and steps for tests, all through the C ABI.
#ifndef MILLRACE_TEST_HARNESS_HPP
#define MILLRACE_TEST_HARNESS_HPP

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "millrace_kernels.h"

namespace millrace::test {

// ---- Numbers

// Reproducible on every standard library.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int below(int n) { return static_cast<int>(engine_() % static_cast<uint32_t>(n)); }
  // About normal: the sum of four uniform numbers, standard deviation 1.
  float normal();
  std::vector<int32_t> tokens(int n, int vocab);

 private:
  std::mt19937 engine_;
};

// sum (a - b)^2 / sum b^2.
double normalized_error(const std::vector<float>& a, const std::vector<float>& b);

// ---- Programs

// What linear ops keep their weights as.
struct Kept {
  mr_weights weights = MR_WEIGHTS_16BIT;
  int group = 0;

  std::string name() const;  // "int4_32"
};
// ROPE_STORE and ATTENTION.
inline bool has_heads(const mr_op& op) {
  return op.kind == MR_OP_ROPE_STORE || op.kind == MR_OP_ATTENTION;
}

// Builds an op program; owns what its description points to.
class Builder {
 public:
  int slot(mr_slot_type type, int width);
  // A tensor of the values, rounded to the type. cols = 0: rank 1.
  int tensor(const std::vector<float>& values, int64_t rows, int64_t cols, mr_dtype dtype);
  // A random one; `scale` is the standard deviation, around `mean`.
  int random(Random& random, int64_t rows, int64_t cols, mr_dtype dtype, float scale,
             float mean = 0);

  mr_op& op(mr_op_kind kind, int in, int out);
  mr_op& embed(int table, int out);
  mr_op& norm(int in, int weight, int out);
  mr_op& linear(int in, std::vector<mr_part> parts, int out);
  // ROPE_STORE and ATTENTION of a layer.
  mr_op& rope_store(int layer, int in, int heads);
  mr_op& attention(int layer, int in, int heads, int out);
  void select_rows(int in, int out) { op(MR_OP_SELECT_ROWS, in, out); }
  mr_part part(int weight, int bias = -1) const;  // a whole tensor
  const float* constant(std::vector<float> values);
  const mr_part* parts(std::vector<mr_part> parts);  // of experts
  const float* inv_freq(int rotary_dim, float base = 10000);

  void keep(const Kept& kept);  // by the linear ops so far
  void see_all();               // no windows in the layers so far

  // Valid until the builder changes.
  mr_program_desc desc();

  int vocab = 0, layers = 1, kv_groups = 1;
  int kv_heads = 1, head_dim = 16;  // of the layers that are added
  int max_positions = 2048, max_rows = 128, max_outputs = 128, max_hidden = 0;
  int classes = 0;
  mr_kv_type kv_type = MR_KV_AUTO;  // a Model's name may say another one
  std::vector<mr_op> ops;
  std::vector<mr_slot> slots;
  std::vector<mr_tensor> tensors;
  const void* packed = nullptr;  // borrowed
  uint64_t packed_bytes = 0;

 private:
  std::deque<std::vector<uint16_t>> halves_;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<mr_part>> parts_;
};

// A random Llama of two layers, with odd sizes on purpose: 3 heads per KV head of
// 40 elements, hidden 72, feed-forward 100, vocabulary 97; layer 1 has a window.
Builder small_llama(mr_dtype dtype = MR_BF16, int window = 50);
// The same with a window and sinks in both layers.
Builder small_llama_with_sinks(int sinks = 4, int window = 37);

// ---- Devices and loaded programs

// A call of the ABI that failed.
class Failure : public std::runtime_error {
 public:
  explicit Failure(const mr_error& error)
      : std::runtime_error(error.message), status(error.status) {}
  int32_t status;
};
void check(int32_t status, const mr_error& error);

class Device {
 public:
  // isa "ref": the reference backend. What follows a + is a Model's.
  explicit Device(const std::string& isa, int threads = 2);
  ~Device();
  Device(const Device&) = delete;

  const mr_backend* backend;
  mr_device* handle = nullptr;
};

// Whether the backend cannot run a program, by a message with `why` in it; prints what is left out.
// Any other failure is thrown.
bool refuses(const std::string& isa, Builder& builder,
             const std::string& why = "expected the cpu backend");

// A sequence: a region, and the tokens that are in the KV cache already.
class Sequence;

class Model {
 public:
  // isa: with the KV cache, see tested_kv. slabs: of the KV pool; 0: none is reserved.
  Model(const std::string& isa, Builder& builder, int slabs, int threads = 2);
  ~Model();
  Model(const Model&) = delete;

  struct Rows {
    Sequence* sequence;
    std::vector<int32_t> tokens;
    int second = 0;  // as mr_sequence has it
  };
  // Runs one step; returns the logits of its last `outputs` rows, or of all.
  std::vector<float> step(const std::vector<Rows>& rows, int outputs = -1);
  // As the ABI has it.
  void run(const mr_step& step);
  mr_program_info info() const;

  Device device;
  mr_program* handle = nullptr;
  int vocab, classes, max_positions, groups;
  int next_slab = 0;                 // slabs are given out in ascending order
  std::vector<mr_op_time> op_times;  // of the last step, if there is one for each op
};

// Whether the model's device keeps the logits of a step.
bool keeps_logits(const Model& model);

class Sequence {
 public:
  explicit Sequence(Model& model);
  ~Sequence();
  Sequence(const Sequence&) = delete;
  // Maps slabs for positions below `end`.
  void reach(int end);
  // Maps the slabs of another sequence's first tokens, as the prefix cache does, and continues
  // after them.
  void share(const Sequence& from, int tokens);
  void map(int32_t slab);  // at the next place: one for each group of layers, then the next tokens'
  int places() const;      // of a group

  Model& model;
  const int head;  // slabs before those of its tokens
  mr_region* region = nullptr;
  int position = 0;
  std::vector<int32_t> slabs;  // mapped ones, those of all groups for the same tokens together
};

// The instruction sets to test: what this machine runs, or MILLRACE_ISA alone.
// What is left out is printed.
const std::vector<std::string>& tested_isas();
// Name of a test parameter.
std::string isa_label(const std::string& isa);
// The quantized weights that the backend has, and with those of 16 bits. What it lacks is
// printed.
const std::vector<Kept>& quantized_weights();
std::vector<Kept> tested_weights();
// The suffixes of the KV caches that the backend has, after an instruction set or
// "ref": "" (its floats), "+int8", "+int4". What it lacks is printed.
const std::vector<std::string>& tested_kv();
// Each of these names with each of tested_kv.
std::vector<std::string> with_kv(const std::vector<std::string>& isas);
// "ref" with the KV cache of a name.
std::string ref_of(const std::string& isa);
// Whether the backend under test is a shared library's, which compiles device code at run time.
bool on_device();
// Whether products of this instruction set round queries and probabilities too.
bool rounds_products(const std::string& isa);

}  // namespace millrace::test

#endif
