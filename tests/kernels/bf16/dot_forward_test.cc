// What is bf16_dot_forward's own; flash_forward_test.cc runs it through everything else.
#include "kernels/bf16/dot_forward.h"

#include "gtest/gtest.h"
#include "kernels/head_problem.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

TEST(Bf16DotForward, IsPartOfAvx512) {
  for_each_isa([] { EXPECT_TRUE(isa() == "avx512" || !kernels::bf16_dot_available()); });
}

// Known rates: full on AMD's cores, which also shows that the timing is one of throughput.
TEST(Bf16DotForward, IsTimedOnce) {
  const bool fast = kernels::bf16_dot_is_fast();
  EXPECT_EQ(kernels::bf16_dot_is_fast(), fast);
  EXPECT_TRUE(kernels::bf16_dot_available() || !fast);
#if defined(__x86_64__)
  if (kernels::bf16_dot_available() && __builtin_cpu_is("amd")) {
    EXPECT_TRUE(fast);
  }
#endif
}

TEST(Bf16DotForward, TakesSubnormalNumbersForZero) {
  if (!kernels::bf16_dot_available()) GTEST_SKIP() << "this CPU has no bf16 products";
  HeadProblem p({"bf16_dot", DType::bf16, kernels::bf16_dot_forward}, {1, 1, 1, 1});
  p.v.set(0, 0, 0x1p-127);
  EXPECT_EQ(run(p).o.at(0, 0), 0);
  p.v.set(0, 0, 0x1p-126);
  EXPECT_EQ(run(p).o.at(0, 0), 0x1p-126);
}

}  // namespace
}  // namespace headwise::test
