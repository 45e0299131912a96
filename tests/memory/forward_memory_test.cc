// What a forward call takes beyond its inputs and outputs, as the kernel counts it: the peak of the
// resident set, with threads' stacks and everything else. A program of its own, because a peak of
// other tests would hide this one's.
#include <cmath>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/runtime.h"
#include "memory/resident.h"

namespace headwise {
namespace {

// Row t of one head, causal, in double.
void expect_causal_row(const float* q, const float* k, const float* v, const float* o,
                       std::size_t t, std::size_t d) {
  std::vector<double> sum(d, 0.0);
  double l = 0.0;
  for (std::size_t j = 0; j <= t; ++j) {
    double s = 0.0;
    for (std::size_t i = 0; i < d; ++i)
      s += static_cast<double>(q[t * d + i]) * static_cast<double>(k[j * d + i]);
    const double p = std::exp(s / std::sqrt(static_cast<double>(d)));
    l += p;
    for (std::size_t i = 0; i < d; ++i) sum[i] += p * static_cast<double>(v[j * d + i]);
  }
  for (std::size_t i = 0; i < d; ++i)
    ASSERT_NEAR(static_cast<double>(o[t * d + i]), sum[i] / l, 2e-6) << "row " << t;
}

TEST(ForwardMemory, LongSequenceTakesLessThan32MiB) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::size_t T = 32768, n_heads = 8, d = 64;
  const Shape shape{1, n_heads, T, d};
  const std::vector<float> q = test::numbers(n_heads * T * d, 1),
                           k = test::numbers(n_heads * T * d, 2),
                           v = test::numbers(n_heads * T * d, 3);
  std::vector<float> o(n_heads * T * d, 0.0f), m(n_heads * T, 0.0f);
  AttentionOptions options;
  options.causal = CausalAlign::top_left;
  AttentionExtras extras;
  extras.log_sum_exp = {m.data(), Shape{1, n_heads, T}};  // takes scratch for max and sum
  if (!test::reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const double beyond = test::peak_mib_beyond([&] {
    scaled_dot_product_attention({q.data(), shape}, {k.data(), shape}, {v.data(), shape}, options,
                                 TensorView{o.data(), shape}, extras);
  });
  RecordProperty("peak_mib_beyond", std::to_string(beyond));
  EXPECT_LT(beyond, 32.0);
  for (const std::size_t h : {std::size_t{0}, n_heads - 1})
    for (const std::size_t t : {std::size_t{0}, T / 2, T - 1}) {
      const std::size_t at = h * T * d;
      expect_causal_row(&q[at], &k[at], &v[at], &o[at], t, d);
    }
}

// A mask is read where it is: (T, T) for 8 heads, and a (T) row for all queries.
TEST(ForwardMemory, MasksAreNotExpanded) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::size_t T = 2048, n_heads = 8, d = 8;
  const Shape shape{1, n_heads, T, d};
  const std::vector<float> q = test::numbers(n_heads * T * d, 1), bias = test::numbers(T * T, 2);
  const std::vector<char> keep(T, 1);
  std::vector<float> o(n_heads * T * d, 0.0f);
  AttentionOptions options;
  options.mask = Mask::bias({bias.data(), Shape{T, T}});
  options.second_mask = Mask::keep({keep.data(), DType::boolean, Shape{1, T}});
  const ConstTensorView x{q.data(), shape};
  if (!test::reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const double beyond = test::peak_mib_beyond([&] {
    scaled_dot_product_attention(x, x, x, options, TensorView{o.data(), shape});
  });
  EXPECT_LT(beyond, 8.0);  // one head's matrix of f32 would be 16
}

TEST(ForwardMemory, AveragedWeightsTakeOneMatrix) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own";
  constexpr std::size_t T = 1536, n_heads = 12, d = 8;
  const Shape shape{1, n_heads, T, d};
  const std::vector<float> q = test::numbers(n_heads * T * d, 1);
  std::vector<float> o(n_heads * T * d, 0.0f), average(T * T, 0.0f);
  AttentionExtras extras;
  extras.average_weights = {average.data(), Shape{1, T, T}};
  const ConstTensorView x{q.data(), shape};
  if (!test::reset_peak()) GTEST_SKIP() << "the peak cannot be reset here";
  const double beyond = test::peak_mib_beyond([&] {
    scaled_dot_product_attention(x, x, x, {}, TensorView{o.data(), shape}, extras);
  });
  EXPECT_LT(beyond, 4.0);  // a head's matrix is 9 MiB
  for (const std::size_t t : {std::size_t{0}, T - 1}) {
    double sum = 0.0;
    for (std::size_t j = 0; j < T; ++j) sum += static_cast<double>(average[t * T + j]);
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

}  // namespace
}  // namespace headwise
