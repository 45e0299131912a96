// What a test asks of its process: an environment variable of its own from the start, whether it is
// watched.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

extern "C" __attribute__((weak)) void __asan_init();  // of AddressSanitizer's runtime

namespace headwise::test {

// The library was built with AddressSanitizer. The tests' own code is the same either way.
inline bool sanitized() { return &__asan_init != nullptr; }

// Runs this program again with the variable set, and only the tests of the filter, disabled ones
// too. Returns its exit code, -1 if it had none.
inline int run_again_with(const std::string& variable, const std::string& value,
                          const std::string& filter) {
  const pid_t child = fork();
  if (child == 0) {
    setenv(variable.c_str(), value.c_str(), 1);
    execl("/proc/self/exe", "child", ("--gtest_filter=" + filter).c_str(), "--gtest_brief=1",
          "--gtest_also_run_disabled_tests", nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace headwise::test
