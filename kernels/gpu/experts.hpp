// The mixtures of experts of one program: device/experts.cpp, and linear ops over rows sorted by expert.
#ifndef MILLRACE_GPU_EXPERTS_HPP
#define MILLRACE_GPU_EXPERTS_HPP

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "exec/backend.hpp"
#include "gpu/dequantized_linear.hpp"
#include "gpu/linear_kernel.hpp"
#include "gpu/quantized_linear.hpp"
#include "platform/bundle.hpp"
#include "platform/stream.hpp"

namespace millrace::gpu {

// Whether the program has ROUTE, or linear ops of experts.
bool has_experts(const Program& program);

// What is compiled for them.
struct ExpertBundles {
  Bundle linear;                                // device/experts.cpp and device/linear.cpp
  std::optional<Bundle> quantized, dequantize;  // where experts have such weights
};

class Experts {
 public:
  // All arguments but the bundles outlive it. target: that the bundles are built for; type: of operands.
  // copy_rows: mr_select_rows
  Experts(Stream& stream, Target target, mr_dtype type, const ExpertBundles& bundles,
          const Kernel& copy_rows, const Program& program);

  // Takes the op's weights to the device.
  void load(const Op& op);
  void route(const Op& op, const Run& run);
  void run(const Op& op, const Run& run);

  uint64_t bytes() const;
  uint64_t scratch_bytes() const;
  std::string name() const;  // "experts int8"

 private:
  std::unique_ptr<Linear> make(const LinearKind& kind, const Op& op);
  void reach(const Op& op, const LinearKind& kind);
  void run_heads(const Op& op, int rows, Slot in, Slot out);

  Stream& stream_;
  Target target_;
  mr_dtype type_;
  const Program& program_;
  const Kernel& copy_rows_;
  Kernel route_, sort_, gather_, sum_, gather_heads_, place_heads_;
  LinearKernels kernels_;
  std::unique_ptr<QuantizedLinears> quantized_;
  std::unique_ptr<DequantizedLinears> dequantized_;
  std::map<int, std::unique_ptr<Linear>> linears_;  // by the op's index
  struct Route {
    Buffer bias, factors;  // [experts], or empty
  };
  std::map<int, Route> routes_;  // likewise
  // Memory for the op that runs. A pair is a row and one of its experts.
  Buffer order_, places_;  // [pairs] int32
  Buffer tiles_;           // ExpertTile
  Buffer gathered_;        // [pairs][depth] operands
  Buffer results_;         // [pairs][width], of either type
};

}  // namespace millrace::gpu

#endif
