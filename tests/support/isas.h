// Runs a check on every instruction set of this CPU, and makes sure that forcing it worked.
#pragma once

#include <string>

#include "gtest/gtest.h"
#include "headwise/runtime.h"

namespace headwise::test {

// Forces one instruction set for a scope.
class ScopedIsa {
 public:
  explicit ScopedIsa(const std::string& name) : before_(isa()) {
    set_isa(name);
    EXPECT_EQ(isa(), name) << "forcing had no effect";
  }
  ~ScopedIsa() { set_isa(before_); }
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  std::string before_;
};

template <typename F>
void for_each_isa(F&& check) {
  for (const std::string& name : available_isas()) {
    SCOPED_TRACE("isa " + name);
    const ScopedIsa forced(name);
    check();
  }
}

// Only those with fused multiply-add, which promise equal bits for f32 and f64.
inline bool has_fma(const std::string& name) { return name != "sse4" && name != "scalar"; }

}  // namespace headwise::test
