// What is bf16_amx_forward's own; flash_forward_test.cc runs it through everything else.
#include "kernels/bf16/amx_forward.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/head_problem.h"
#include "support/isas.h"

namespace headwise::test {
namespace {

TEST(Bf16AmxForward, IsPartOfAvx512) {
  for_each_isa([] { EXPECT_TRUE(isa() == "avx512" || !kernels::bf16_amx_available()); });
}

HeadProblem problem(HeadProblem::Sizes sizes) {
  return {{"bf16_amx", DType::bf16, kernels::bf16_amx_forward}, sizes};
}

// Blocks that share a leaf's keys and values are independent of one another.
TEST(Bf16AmxForward, GroupsOfBlocks) {
  if (!kernels::bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  for (const HeadProblem::Sizes& s :
       {HeadProblem::Sizes{1100, 70, 32, 16}, HeadProblem::Sizes{577, 1100, 40, 33},
        HeadProblem::Sizes{513, 513, 64, 64}}) {
    HeadProblem p = problem(s);
    for (std::ptrdiff_t diagonal :
         {kernels::kNoDiagonal, std::ptrdiff_t{0}, std::ptrdiff_t{-200}}) {
      p.terms.diagonal = diagonal;
      const HeadResult whole = run(p, s.T_q);
      expect_close(p, whole);
      for (std::size_t block : {64, 256, 512, 576}) expect_same_bits(run(p, block), whole);
    }
  }
}

// Rows of keys that are read in place, and ones that are not, hold the same.
TEST(Bf16AmxForward, KeysInPlaceAndCopied) {
  if (!kernels::bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  HeadResult expected = run(problem({65, 200, 64, 64}));
  for (const auto& [pad, step] : {std::pair{0, 1}, {448, 1}, {960, 1}, {1, 2}}) {
    HeadProblem p(problem({65, 200, 64, 64}).arithmetic, {65, 200, 64, 64},
                  static_cast<std::size_t>(pad), static_cast<std::size_t>(step));
    expect_same_bits(run(p), expected);
  }
}

#if defined(__x86_64__)
// Other libraries on this thread keep their tiles.
TEST(Bf16AmxForward, TilesAreLeftAsTheyWere) {
  if (!kernels::bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  struct Config {
    unsigned char palette = 1, rest[15] = {};
    std::uint16_t row_bytes[16] = {32, 16};
    unsigned char rows[16] = {8, 4};
  } before, after;
  asm volatile("ldtilecfg %0" ::"m"(before));
  const HeadProblem p = problem({20, 30, 8, 8});
  expect_close(p, run(p));
  asm volatile("sttilecfg %0" : "=m"(after));
  asm volatile("tilerelease");
  EXPECT_EQ(std::memcmp(&before, &after, sizeof(before)), 0);
}
#endif

// What grows late is rescaled late, by a lot.
TEST(Bf16AmxForward, LargestScoreGrows) {
  if (!kernels::bf16_amx_available()) GTEST_SKIP() << "this CPU has no AMX";
  for (double step : {0.01, 0.3, 5.0}) {
    HeadProblem p = problem({20, 1300, 8, 8});
    for (std::size_t j = 0; j < p.sizes.T_k; ++j) p.k.set(j, 0, step * static_cast<double>(j));
    for (std::size_t t = 0; t < p.sizes.T_q; ++t) p.q.set(t, 0, t % 3 == 0 ? 1.0 : -0.5);
    expect_close(p, run(p));
  }
}

}  // namespace
}  // namespace headwise::test
