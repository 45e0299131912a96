// A number of threads for a scope.
#pragma once

#include "headwise/runtime.h"

namespace headwise::test {

class ScopedThreads {
 public:
  explicit ScopedThreads(int n) : before_(get_num_threads()) { set_num_threads(n); }
  ~ScopedThreads() { set_num_threads(before_); }
  ScopedThreads(const ScopedThreads&) = delete;
  ScopedThreads& operator=(const ScopedThreads&) = delete;

 private:
  int before_;
};

}  // namespace headwise::test
