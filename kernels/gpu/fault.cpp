#include "gpu/fault.hpp"

#include <array>
#include <atomic>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "exec/error.hpp"
#include "platform/runtime.hpp"

namespace millrace::gpu {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"",          "async", "submit",
                                                    "resources", "lost",  "hang"};
constexpr uint64_t kMiddle = 3;  // the launch of a step that fails: some are under way by then

// The plan of the process: a device that is opened again continues the count.
struct Plan {
  std::atomic<FaultKind> kind{FaultKind::none};
  std::atomic<uint64_t> first{0};
  std::atomic<bool> every{false};
};
Plan plan;
std::atomic<uint64_t> steps{0}, launches{0};

}  // namespace

void read_fault(const char* text) {
  if (text == nullptr || *text == '\0') return;
  std::string_view rest = text;
  const auto bad = [&] {
    fail(MR_INVALID,
         "%s is \"%s\", expected step:N:KIND or step:N+:KIND with N at least 1 and "
         "KIND async, submit, resources, lost or hang",
         kFaultVariable, text);
  };
  constexpr std::string_view kStep = "step:";
  if (rest.substr(0, kStep.size()) != kStep) bad();
  rest.remove_prefix(kStep.size());
  uint64_t first = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), first);
  if (error != std::errc() || first == 0) bad();
  rest.remove_prefix(end - rest.data());
  const bool every = !rest.empty() && rest[0] == '+';
  if (every) rest.remove_prefix(1);
  if (rest.empty() || rest[0] != ':') bad();
  rest.remove_prefix(1);
  size_t kind = 1;
  while (kind < kNames.size() && kNames[kind] != rest) ++kind;
  if (kind == kNames.size()) bad();
  plan.first = first;
  plan.every = every;
  plan.kind = static_cast<FaultKind>(kind);
}

bool fault_planned() { return plan.kind != FaultKind::none; }

void fault_step() {
  ++steps;
  launches = 0;
}

FaultKind fault_launch() {
  const FaultKind kind = plan.kind;
  if (kind == FaultKind::none || ++launches != kMiddle) return FaultKind::none;
  const uint64_t step = steps, first = plan.first;
  return step == first || (plan.every && step > first) ? kind : FaultKind::none;
}

std::string fault_text(FaultKind kind) {
  const std::string text = "a fault of kind " + std::string(kNames[static_cast<size_t>(kind)]) +
                           ", requested by " + kFaultVariable;
  switch (kind) {
    case FaultKind::resources:
      return "UR_RESULT_ERROR_OUT_OF_RESOURCES: " + text;
    case FaultKind::lost:
      return "UR_RESULT_ERROR_DEVICE_LOST: " + text;
    default:
      return text;
  }
}

}  // namespace millrace::gpu
