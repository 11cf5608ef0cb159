#include "exec/ranks.hpp"

#include <sched.h>

#include <utility>

#include "exec/error.hpp"
#include "exec/wait.hpp"

namespace millrace {
namespace {

// Ranks have cores of their own, and are as late as the slowest one: one that gave its core away would be late itself.
constexpr std::chrono::microseconds kRankSpin{500};

// Runs the calling thread on some CPUs while it lives. Where the system refuses, the thread runs anywhere: results do
// not depend on it.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus) {
    if (cpus.empty() || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : cpus) CPU_SET(cpu, &set);
    moved_ = sched_setaffinity(0, sizeof set, &set) == 0;
  }
  ~OnCpus() {
    if (moved_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

 private:
  cpu_set_t before_{};
  bool moved_ = false;
};

}  // namespace

void Exchange::begin() {
  arrived_.store(0, std::memory_order_relaxed);
  abandoned_.store(false, std::memory_order_relaxed);
}

// Whoever reads the number of meetings after a rank has abandoned them sees that it has.
void Exchange::meet() {
  const uint32_t meeting = meetings_.load(std::memory_order_acquire);
  if (!abandoned_.load(std::memory_order_relaxed)) {
    const auto ranks = static_cast<int32_t>(slots_.size());
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == ranks) {
      arrived_.store(0, std::memory_order_relaxed);
      meetings_.fetch_add(1, std::memory_order_release);
      meetings_.notify_all();
    } else {
      wait_while(meetings_, meeting, kRankSpin);
    }
  }
  if (abandoned_.load(std::memory_order_relaxed)) fail(MR_DEVICE, "another rank has failed");
}

void Exchange::abandon() {
  abandoned_.store(true, std::memory_order_relaxed);
  meetings_.fetch_add(1, std::memory_order_release);
  meetings_.notify_all();
}

RankThreads::RankThreads(std::vector<RankPlace> places) : places_(std::move(places)) {
  try {
    for (int r = 1; r < static_cast<int>(places_.size()); ++r) {
      threads_.emplace_back([this, r] { work(r); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

RankThreads::~RankThreads() { stop(); }

void RankThreads::stop() {
  stop_.store(true, std::memory_order_relaxed);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void RankThreads::run(const std::function<void(int)>& fn, Exchange* exchange) {
  fn_ = &fn;
  exchange_ = exchange;
  failure_ = nullptr;
  unfinished_.store(static_cast<int32_t>(threads_.size()), std::memory_order_relaxed);
  jobs_.fetch_add(1, std::memory_order_release);
  jobs_.notify_all();
  {
    const OnCpus first(places_[0].cpus);
    attempt(0);
    for (int32_t left; (left = unfinished_.load(std::memory_order_acquire)) != 0;) {
      wait_while(unfinished_, left, kRankSpin);
    }
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void RankThreads::attempt(int rank) {
  try {
    (*fn_)(rank);
  } catch (...) {
    {
      const std::lock_guard lock(failing_);
      if (!failure_) failure_ = std::current_exception();
    }
    if (exchange_ != nullptr) exchange_->abandon();
  }
}

void RankThreads::work(int rank) {
  const OnCpus own(places_[rank].cpus);
  for (uint32_t seen = 0;;) {
    wait_while(jobs_, seen);
    if (stop_.load(std::memory_order_relaxed)) return;
    ++seen;
    attempt(rank);
    if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) unfinished_.notify_one();
  }
}

}  // namespace millrace
