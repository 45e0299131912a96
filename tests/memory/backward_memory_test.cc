// What a backward call takes beyond its inputs and outputs, as the kernel counts it: the peak of
// the resident set, with threads' stacks and everything else.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention_backward.h"
#include "headwise/runtime.h"
#include "memory/resident.h"

namespace headwise {
namespace {

TEST(BackwardMemory, LongSequenceTakesLessThan3QAnd32MiB) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::size_t T = 32768, n_heads = 8, d = 64, n = n_heads * T * d;
  const Shape shape{1, n_heads, T, d}, rows{1, n_heads, T};
  const std::vector<float> q = test::numbers(n, 1), k = test::numbers(n, 2),
                           v = test::numbers(n, 3), d_o = test::numbers(n, 4);
  // What a call takes does not depend on what is in these, and the forward call takes minutes.
  const std::vector<float> o(n, 0.5f), m(n_heads * T, 1.0f), l(n_heads * T, 100.0f);
  std::vector<float> dq(n, 0.0f), dk(n, 0.0f), dv(n, 0.0f);
  // Keys of one band: the whole matrix would take minutes, too.
  std::vector<char> keep(T, 0);
  std::fill_n(keep.begin() + T / 2, 700, 1);
  AttentionOptions options;
  options.mask = Mask::keep({keep.data(), DType::boolean, Shape{1, T}});
  if (!test::reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const double beyond = test::peak_mib_beyond([&] {
    scaled_dot_product_attention_backward(
        {q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options,
        {{d_o.data(), shape}, {o.data(), shape}, {m.data(), rows}, {l.data(), rows}},
        {{dq.data(), shape}, {dk.data(), shape}, {dv.data(), shape}, {}, {}});
  });
  RecordProperty("peak_mib_beyond", std::to_string(beyond));
  EXPECT_LT(beyond, 3 * 64.0 + 32.0);
  EXPECT_EQ(dk[0], 0.0f);
  EXPECT_NE(dk[T / 2 * d], 0.0f);
}

}  // namespace
}  // namespace headwise
