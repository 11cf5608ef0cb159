#include "cpu/machine/thread_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "cpu/machine/cores.hpp"

namespace millrace::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceAndSeesWhatItWrote) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int n : {0, 1, 2, 3, 10, 1000}) {
      std::vector<int> runs(n);  // plain: the pool orders the accesses
      pool.parallel_for(n, [&](int task, int thread) {
        ASSERT_GE(thread, 0);
        ASSERT_LT(thread, threads);
        ++runs[task];
      });
      EXPECT_EQ(runs, std::vector<int>(n, 1)) << n << " tasks, " << threads << " threads";
    }
  }
}

// Workers that come late for a job must not touch the next one's.
TEST(ThreadPool, ShortJobsInARowDoNotMix) {
  ThreadPool pool(4);
  int64_t sum = 0;
  for (int job = 0; job < 20000; ++job) {
    int part[5] = {};
    pool.parallel_for(1 + job % 5, [&](int task, int) { part[task] = job; });
    for (const int p : part) sum += p;
  }
  int64_t expected = 0;
  for (int64_t job = 0; job < 20000; ++job) expected += job * (1 + job % 5);
  EXPECT_EQ(sum, expected);
}

// Two tasks that wait for each other end only if two threads run them.
TEST(ThreadPool, TasksRunAtTheSameTime) {
  ThreadPool pool(2);
  std::atomic<int> here{0};
  pool.parallel_for(2, [&](int, int) {
    here.fetch_add(1);
    here.notify_all();
    for (int n; (n = here.load()) < 2;) here.wait(n);
  });
  EXPECT_EQ(here.load(), 2);
}

// The thread that holds up a range does not hold up the tasks after it.
TEST(ThreadPool, OthersTakeWhatASlowThreadLeaves) {
  ThreadPool pool(2);
  std::atomic<int> done{0};
  constexpr int kTasks = 16;  // task 0 waits for all the others, half of them in its own range
  pool.parallel_for(kTasks, [&](int task, int) {
    if (task == 0) {
      for (int n; (n = done.load()) < kTasks - 1;) done.wait(n);
    }
    done.fetch_add(1);
    done.notify_all();
  });
  EXPECT_EQ(done.load(), kTasks);
}

TEST(ThreadPool, ScratchIsAlignedAndGrows) {
  ThreadPool pool(1);
  for (const size_t bytes : {1, 100, 5'000'000, 70}) {
    void* p = pool.scratch(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
    std::memset(p, 1, bytes);
  }
}

// The threads of this process that do not sleep in the kernel (proc_pid_stat(5)).
int running_threads() {
  int running = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string stat;
    std::getline(std::ifstream(task.path() / "stat"), stat);
    const size_t state = stat.rfind(')') + 2;
    if (state < stat.size() && stat[state] == 'R') ++running;
  }
  return running;
}

TEST(ThreadPool, IdleWorkersSleep) {
  ThreadPool pool(4);
  pool.parallel_for(100, [](int, int) {});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  int running;
  do {
    running = running_threads();
  } while (running > 1 && std::chrono::steady_clock::now() < deadline);
  EXPECT_EQ(running, 1) << "only this thread has something to do";
}

// ---- Cores -------------------------------------------------------------------

// A made-up /proc/self and cgroup file system.
class Cgroup : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "millrace-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void version2(const std::string& group, const std::string& mounted = "/") {
    write("/proc/cgroup", "0::" + group + "\n");
    write("/proc/mountinfo", "24 1 0:20 / /proc rw - proc proc rw\n30 1 0:26 " + mounted +
                                 " /cg rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  std::optional<double> quota() const { return cgroup_cpu_quota(root_ + "/proc", root_); }

  std::string root_;
};

TEST_F(Cgroup, NoneWithoutGroupsOrLimits) {
  EXPECT_EQ(quota(), std::nullopt);
  version2("/a");
  EXPECT_EQ(quota(), std::nullopt);
  write("/cg/a/cpu.max", "max 100000\n");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(Cgroup, Version2TakesTheLeastUpToTheRoot) {
  version2("/a/b");
  write("/cg/a/b/cpu.max", "350000 100000\n");
  EXPECT_EQ(quota(), 3.5);
  write("/cg/a/cpu.max", "100000 50000\n");
  EXPECT_EQ(quota(), 2.0);
  write("/cg/cpu.max", "900000 100000\n");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(Cgroup, AContainersMountShowsItsOwnGroupAsTheRoot) {
  version2("/docker/1234", "/docker/1234");
  write("/cg/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(Cgroup, Version1ReadsQuotaAndPeriod) {
  write("/proc/cgroup", "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n");
  write("/proc/mountinfo",
        "31 1 0:27 / /cg/memory rw - cgroup cgroup rw,memory\n"
        "32 1 0:28 / /cg/cpu rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n");
  write("/cg/cpu/a/cpu.cfs_quota_us", "-1\n");
  write("/cg/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(quota(), std::nullopt);
  write("/cg/cpu/a/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(quota(), 2.5);
}

TEST(Cores, AtLeastOneIsUsable) { EXPECT_GE(usable_cores(), 1); }

#if defined(__x86_64__)
// Whether half of the least normal number is zero.
bool flushes() {
  volatile float least = std::numeric_limits<float>::min();
  return least * 0.5f == 0.0f;
}

TEST(ThreadPool, WorkersTakeOverTheCallersFloatMode) {
  ThreadPool pool(4);
  for (int round = 0; round < 200; ++round) {
    const bool flush = round % 2 == 1;
    std::atomic<int> flushing{0};
    {
      const FloatScope mode(FloatMode::plain(flush));
      pool.parallel_for(16, [&](int, int) { flushing += flushes(); });
    }
    ASSERT_EQ(flushing, flush ? 16 : 0);
    ASSERT_FALSE(flushes()) << "the caller has a mode that is not its own";
  }
}
#endif

}  // namespace
}  // namespace millrace::cpu
