// Runs a check with every attention kernel of this CPU.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "headwise/plan.h"

namespace headwise::test {

// Forces one kernel for a scope.
class ScopedKernel {
 public:
  explicit ScopedKernel(const std::string& name) : before_(kernel()) { set_kernel(name); }
  ~ScopedKernel() { set_kernel(before_); }
  ScopedKernel(const ScopedKernel&) = delete;
  ScopedKernel& operator=(const ScopedKernel&) = delete;

 private:
  std::string before_;
};

template <typename F>
void for_each_kernel(F&& check) {
  for (const std::string& name : available_kernels()) {
    SCOPED_TRACE("kernel " + name);
    const ScopedKernel forced(name);
    check();
  }
}

}  // namespace headwise::test
