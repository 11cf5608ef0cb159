// Linear ops with int8 or int4 weights, device/quantized.cpp: rows are quantized to int8, and
// the products of codes are exact integers. So whoever is faster may compute them.
#ifndef MILLRACE_GPU_QUANTIZED_LINEAR_HPP
#define MILLRACE_GPU_QUANTIZED_LINEAR_HPP

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/linear_kernel.hpp"
#include "gpu/onednn_int8.hpp"
#include "platform/bundle.hpp"

namespace millrace::gpu {

// Whether some linear op of the program has such weights, of experts or not.
bool quantized(const Program& program, bool of_experts = false);

class QuantizedLinear;

// Makes the quantized ops of one program.
class QuantizedLinears {
 public:
  // The stream outlives it and the ops that it makes.
  QuantizedLinears(Stream& stream, Target target, const Bundle& bundle);

  std::unique_ptr<Linear> make(const LinearKind& kind, const Program& program, const Op& op);
  uint64_t scratch_bytes() const;
  std::string name() const;  // "int8 by oneDNN 3.11 for many rows, int4"

 private:
  friend class QuantizedLinear;

  // Whether oneDNN computes more than kMostOwnInt8Rows rows of an int8 op: where it can. The sums
  // are integers, so that the rows have the same bits either way.
  bool by_onednn(const LinearKind& kind, const QuantizedLinear& linear);

  Stream& stream_;
  Target target_;
  std::vector<LinearKernel> int8_, int4_;  // by rows
  Kernel quantize_;
  std::optional<Kernel> finish_;          // of oneDNN's sums
  std::unique_ptr<Int8Products> onednn_;  // null: none
  std::map<LinearKind, bool> by_onednn_;
  Buffer codes_, row_scales_;  // of the op that runs: [rows][padded depth], [rows]
  Buffer sums_;                // [rows][columns] int32
  bool has_int8_ = false, has_int4_ = false;
};

}  // namespace millrace::gpu

#endif
