// Which experts a row takes, and by which weights.
#ifndef MILLRACE_EXEC_ROUTE_HPP
#define MILLRACE_EXEC_ROUTE_HPP

#include <vector>

#include "exec/program.hpp"

namespace millrace {

// The rule of a ROUTE. Its arithmetic is plain: every backend and machine chooses alike from the same logits.
class Router {
 public:
  // bias, factors: the rule's tensors, or null
  Router(const mr_route& rule, const mr_tensor* bias, const mr_tensor* factors);

  // logits: [experts] -> chosen: [top_k][2]. room: [room()] floats.
  void row(const float* logits, float* chosen, float* room) const;
  size_t room() const { return 2 * size_t(rule_.experts) + rule_.top_k; }

 private:
  void keep_groups(float* choice) const;
  float near_share(const float* logits, const float* choice, int best) const;
  static int best(const float* choice, int n);

  const mr_route rule_;
  std::vector<float> bias_, factors_;
};

}  // namespace millrace

#endif
