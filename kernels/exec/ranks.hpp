// The ranks of a device: programs that run at the same time, each on threads of its own, and meet in each ALL_REDUCE.
#ifndef MILLRACE_EXEC_RANKS_HPP
#define MILLRACE_EXEC_RANKS_HPP

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace millrace {

struct Slot;

// The threads of a rank, and the CPUs on which they run; none: any.
struct RankPlace {
  int threads = 0;
  std::vector<int> cpus;
};

// What the programs of all ranks share.
class Exchange {
 public:
  explicit Exchange(int ranks) : slots_(ranks) {}

  // The slots of each rank's program.
  std::span<const Slot* const> slots() const { return slots_; }
  void set_slots(int rank, const Slot* slots) { slots_[rank] = slots; }

  void begin();  // before the ranks run
  // Waits for all ranks, on one thread of each. Throws Error(MR_DEVICE) where one has failed.
  void meet();
  // The rank does not meet the others any more, which fail then.
  void abandon();

 private:
  std::vector<const Slot*> slots_;
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> meetings_{0};
  std::atomic<bool> abandoned_{false};
};

// A thread for each rank but the first, which the caller's is while it waits for the others. The rank's device is opened and
// driven from there. What it starts runs on the rank's CPUs, and memory that it touches first is of their NUMA node.
class RankThreads {
 public:
  // Throws std::system_error if the system grants no thread.
  explicit RankThreads(std::vector<RankPlace> places);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  const RankPlace& place(int rank) const { return places_[rank]; }

  // Runs fn(rank) on each thread, and returns when all are done. Throws the first exception; a rank that throws abandons the
  // exchange, if there is one.
  void run(const std::function<void(int)>& fn, Exchange* exchange = nullptr);

 private:
  void work(int rank);
  void attempt(int rank);
  void stop();

  const std::vector<RankPlace> places_;
  const std::function<void(int)>* fn_ = nullptr;
  Exchange* exchange_ = nullptr;
  std::mutex failing_;
  std::exception_ptr failure_;
  alignas(64) std::atomic<uint32_t> jobs_{0};
  alignas(64) std::atomic<int32_t> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif
