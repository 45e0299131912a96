// parallel_for: every index once, whatever runs it.
#include "runtime/parallel_for.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/error.h"

namespace headwise {
namespace {

class ScopedThreads {
 public:
  explicit ScopedThreads(int n) : before_(get_num_threads()) { set_num_threads(n); }
  ~ScopedThreads() { set_num_threads(before_); }

 private:
  int before_;
};

void expect_every_index_once(std::size_t n) {
  std::vector<std::atomic<int>> seen(n);
  runtime::parallel_for(n, [&](std::size_t i) { seen[i].fetch_add(1); });
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(seen[i].load(), 1) << i;
}

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    const ScopedThreads scope(threads);
    for (std::size_t n : {0, 1, 2, 17, 1000}) expect_every_index_once(n);
  }
}

TEST(ParallelFor, NestedCallsRunOnTheirThread) {
  const ScopedThreads scope(4);
  std::atomic<int> total{0};
  runtime::parallel_for(8, [&](std::size_t) {
    const auto id = std::this_thread::get_id();
    runtime::parallel_for(8, [&](std::size_t) {
      EXPECT_EQ(std::this_thread::get_id(), id);
      total.fetch_add(1);
    });
  });
  EXPECT_EQ(total.load(), 64);
}

TEST(ParallelFor, AnExceptionReachesTheCallerAfterAllOtherTasks) {
  for (int threads : {1, 3}) {
    const ScopedThreads scope(threads);
    std::atomic<int> ran{0};
    EXPECT_THROW(runtime::parallel_for(20,
                                       [&](std::size_t i) {
                                         if (i == 7) throw std::runtime_error("seven");
                                         ran.fetch_add(1);
                                       }),
                 std::runtime_error);
    EXPECT_EQ(ran.load(), 19);
    expect_every_index_once(100);  // and the next call works
  }
}

TEST(ParallelFor, SeveralCallersAtOnce) {
  const ScopedThreads scope(3);
  std::vector<std::thread> callers;
  callers.reserve(8);
  for (int c = 0; c < 8; ++c)
    callers.emplace_back([] {
      for (int r = 0; r < 20; ++r) expect_every_index_once(50);
    });
  for (std::thread& t : callers) t.join();
}

TEST(ParallelFor, WorksInAForkedChild) {
  const ScopedThreads scope(2);
  expect_every_index_once(100);  // the pool exists now, and the child will not have it
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang ends the child, not the test
    std::atomic<int> n{0};
    runtime::parallel_for(100, [&](std::size_t) { n.fetch_add(1); });
    _exit(n.load() == 100 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  expect_every_index_once(100);  // the parent still has it
}

// The host's own regions make libgomp's pool too, and its children have lost that one as well.
TEST(ParallelFor, WorksInAChildOfAHostThatUsedOpenMP) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process that has run nothing else
  const auto host = [] {
    std::atomic<int> ran{0};
#pragma omp parallel num_threads(2)
    ran.fetch_add(1);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a hang ends the child, not the test
      set_num_threads(2);
      expect_every_index_once(100);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    _exit(ran.load() == 2 && WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  };
  EXPECT_EXIT(host(), ::testing::ExitedWithCode(0), "");
}

// A process of one thread has no pool to lose: its children make their own.
TEST(ParallelFor, AChildOfAProcessOfOneThreadHasAPool) {
  if (access("/proc/self/task", F_OK) != 0) GTEST_SKIP() << "threads cannot be counted";
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto host = [] {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      set_num_threads(2);
      std::atomic<int> arrived{0};
      runtime::parallel_for(2, [&](std::size_t) {  // each waits for the other
        arrived.fetch_add(1);
        while (arrived.load() < 2) std::this_thread::yield();
      });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  };
  EXPECT_EXIT(host(), ::testing::ExitedWithCode(0), "");
}

TEST(ParallelFor, UsesALentRunner) {
  const ScopedThreads scope(4);
  std::size_t calls = 0;
  set_parallel_runner(
      [](void* state, std::size_t n, ParallelTask task, void* context) {
        ++*static_cast<std::size_t*>(state);
        for (std::size_t i = n; i-- > 0;) task(context, i);
      },
      &calls, 2);
  expect_every_index_once(10);
  set_parallel_runner(nullptr, nullptr, 0);
  EXPECT_EQ(calls, 1u);
  expect_every_index_once(10);
  EXPECT_EQ(calls, 1u);
}

TEST(Threads, AtLeastOne) {
  EXPECT_THROW(set_num_threads(0), ArgumentError);
  EXPECT_THROW(set_num_threads(-3), ArgumentError);
  const ScopedThreads scope(5);
  EXPECT_EQ(get_num_threads(), 5);
}

}  // namespace
}  // namespace headwise
