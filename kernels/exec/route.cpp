#include "exec/route.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/exponential.hpp"
#include "exec/tensor.hpp"

namespace millrace {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

void softmax(float* x, int n) {
  const float top = *std::max_element(x, x + n);
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += x[i] = exponential(x[i] - top);
  for (int i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace

Router::Router(const mr_route& rule, const mr_tensor* bias, const mr_tensor* factors)
    : rule_(rule) {
  for (int e = 0; bias != nullptr && e < rule.experts; ++e) bias_.push_back(element(*bias, e));
  for (int e = 0; factors != nullptr && e < rule.experts; ++e)
    factors_.push_back(element(*factors, e));
}

// The largest, of equal ones the first.
int Router::best(const float* choice, int n) {
  int best = 0;
  for (int i = 1; i < n; ++i) {
    if (choice[i] > choice[best]) best = i;
  }
  return best;
}

// Only groups whose best experts, two or one, have the largest sums keep their experts.
void Router::keep_groups(float* choice) const {
  const int size = rule_.experts / rule_.groups;
  std::vector<float> sums(rule_.groups);
  std::vector<bool> kept(rule_.groups);
  for (int g = 0; g < rule_.groups; ++g) {
    float first = kNone, second = kNone;
    for (int i = 0; i < size; ++i) {
      const float x = choice[g * size + i];
      second = std::max(second, std::min(first, x));
      first = std::max(first, x);
    }
    sums[g] = size > 1 && rule_.group_scores != 1 ? first + second : first;
  }
  for (int k = 0; k < rule_.top_groups; ++k) {
    const int g = best(sums.data(), rule_.groups);
    kept[g] = true;
    sums[g] = kNone;
  }
  for (int e = 0; e < rule_.experts; ++e) {
    if (!kept[e / size]) choice[e] = kNone;
  }
}

// The softmax at the best of the choice, over those of the choice that are near it.
float Router::near_share(const float* logits, const float* choice, int best) const {
  const float most = choice[best];
  float sum = 0;
  for (int e = 0; e < rule_.experts; ++e) {
    const float far = (most - logits[e]) / std::max(std::abs(logits[e]), most);
    if (!(far > 2 * rule_.jitter)) sum += exponential(choice[e] - most);
  }
  return 1 / sum;
}

void Router::row(const float* logits, float* chosen, float* room) const {
  const int n = rule_.experts, k = rule_.top_k;
  float *const scores = room, *const choice = room + n, *const weights = choice + n;
  std::copy(logits, logits + n, scores);
  if (rule_.scores == MR_ROUTE_SOFTMAX) softmax(scores, n);
  if (rule_.scores == MR_ROUTE_SIGMOID) {
    for (int e = 0; e < n; ++e) scores[e] = sigmoid(scores[e]);
  }
  for (int e = 0; e < n; ++e) choice[e] = bias_.empty() ? scores[e] : scores[e] + bias_[e];
  if (rule_.groups > 1) keep_groups(choice);
  for (int j = 0; j < k; ++j) {
    const int e = best(choice, n);
    weights[j] = rule_.scores == MR_ROUTE_SPARSE_MIXER ? near_share(scores, choice, e) : scores[e];
    choice[e] = kNone;
    chosen[2 * j] = static_cast<float>(e);
  }
  if (rule_.scores == MR_ROUTE_SOFTMAX_CHOSEN) softmax(weights, k);
  float sum = 0;
  for (int j = 0; j < k; ++j) sum += weights[j];
  for (int j = 0; j < k; ++j) {
    chosen[2 * j + 1] = (rule_.normalize ? weights[j] / sum : weights[j]) * rule_.scale;
    if (!factors_.empty()) chosen[2 * j + 1] *= factors_[static_cast<int>(chosen[2 * j])];
  }
}

}  // namespace millrace
