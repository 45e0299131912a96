// As many threads as the system gives, and no more.
#include "runtime/creatable_threads.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "gtest/gtest.h"
#include "headwise/runtime.h"
#include "runtime/parallel_for.h"
#include "support/environment.h"

namespace headwise {
namespace {

TEST(CreatableThreads, AreAllThatAreWantedWhereNothingLimitsThem) {
  std::thread([] {
    EXPECT_EQ(runtime::creatable_threads(1), 1);
    EXPECT_EQ(runtime::creatable_threads(5), 5);
    EXPECT_EQ(runtime::creatable_threads(3), 3);
  }).join();
}

TEST(CreatableThreads, TooFewForACallDoNotEndTheProcess) {
  if (test::sanitized()) GTEST_SKIP() << "needs more address space than a limit would leave";
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";  // a process that has run nothing else
  const auto limited = [] {
    alarm(60);
    const rlim_t bytes = rlim_t{400} << 20;  // of address space: some 50 stacks
    const rlimit limit{bytes, bytes};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    set_num_threads(1000);
    std::atomic<int> n{0};
    runtime::parallel_for(2000, [&](std::size_t) { n.fetch_add(1); });
    _exit(n.load() == 2000 ? 0 : 1);
  };
  EXPECT_EXIT(limited(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace headwise
