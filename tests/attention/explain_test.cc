// What explain_attention says is what a call does.
#include <cmath>
#include <string>

#include "attention/plan.h"
#include "gtest/gtest.h"
#include "headwise/error.h"
#include "headwise/plan.h"
#include "headwise/random.h"
#include "headwise/runtime.h"
#include "runtime/scratch.h"
#include "support/isas.h"
#include "support/kernels.h"

namespace headwise {
namespace {

ConstTensorView shape_only(const Shape& shape, DType dtype = DType::f32) {
  return {nullptr, dtype, shape};
}

double visible(std::size_t T_q, std::size_t T_k, std::size_t always, CausalAlign align) {
  const std::size_t maskable = T_k - always;
  double pairs = 0;
  for (std::size_t t = 0; t < T_q; ++t)
    for (std::size_t j = 0; j < T_k; ++j) {
      const std::size_t shift = align == CausalAlign::top_left ? 0 : maskable;
      const std::size_t unshift = align == CausalAlign::top_left ? 0 : T_q;
      pairs += j >= maskable || j + unshift <= t + shift;
    }
  return pairs;
}

TEST(Explain, CountsThePairsThatCausalLetsSee) {
  for (const std::size_t T_q : {1u, 2u, 7u, 40u})
    for (const std::size_t T_k : {1u, 2u, 9u, 41u})
      for (const std::size_t always : {0u, 1u, 2u})
        for (const CausalAlign align : {CausalAlign::top_left, CausalAlign::bottom_right}) {
          if (always > T_k) continue;
          AttentionOptions options;
          options.causal = align;
          options.n_always_visible = always;
          const auto plan =
              explain_attention(shape_only({2, 3, T_q, 4}), shape_only({2, 3, T_k, 4}),
                                shape_only({2, 3, T_k, 6}), options);
          EXPECT_EQ(plan.flops, 2 * (4 + 6) * 6 * visible(T_q, T_k, always, align))
              << T_q << ' ' << T_k << ' ' << always;
        }
}

TEST(Explain, CountsBytesOnce) {
  AttentionOptions options;
  options.mask = Mask::keep(ConstTensorView(nullptr, DType::boolean, {5, 9}));
  const auto plan = explain_attention(shape_only({2, 4, 5, 8}, DType::bf16),
                                      shape_only({2, 2, 9, 8}, DType::bf16),
                                      shape_only({2, 2, 9, 3}, DType::bf16), options);
  EXPECT_EQ(plan.bytes,
            2 * (2 * 4 * 5 * 8 + 2 * 2 * 9 * 8 + 2 * 2 * 9 * 3 + 2 * 4 * 5 * 3) + 5 * 9);
}

TEST(Explain, WorkingMemoryIsWhatACallTakes) {
  const int threads = get_num_threads();
  set_num_threads(1);
  Generator generator(1);
  test::for_each_isa([&] {
    test::for_each_kernel([&] {
      for (const DType dtype : {DType::f32, DType::f64, DType::bf16, DType::f16})
        for (const std::size_t T_q : {1u, 5u, 67u})
          for (const std::size_t T_k : {1u, 65u, 1100u}) {
            const Tensor q = randn({1, 4, T_q, 40}, generator, dtype);
            const Tensor k = randn({1, 2, T_k, 40}, generator, dtype);
            const Tensor v = randn({1, 2, T_k, 24}, generator, dtype);
            Tensor o(dtype, {1, 4, T_q, 24});
            const auto plan = explain_attention(q, k, v);
            runtime::reset_scratch_peak();
            scaled_dot_product_attention(q, k, v, {}, o.view());
            EXPECT_EQ(runtime::scratch_peak(), plan.scratch_bytes)
                << name_of(dtype) << ' ' << T_q << ' ' << T_k << ' ' << plan.kernel;
          }
    });
  });
  set_num_threads(threads);
}

TEST(Explain, ThreadsShareLargeWorkOnly) {
  const int threads = get_num_threads();
  set_num_threads(3);
  const auto small = explain_attention(shape_only({1, 2, 4, 8}), shape_only({1, 2, 4, 8}),
                                       shape_only({1, 2, 4, 8}));
  EXPECT_EQ(small.n_threads, 1);
  const auto large = explain_attention(shape_only({1, 8, 512, 64}), shape_only({1, 8, 512, 64}),
                                       shape_only({1, 8, 512, 64}));
  EXPECT_EQ(large.n_threads, 3);
  EXPECT_GT(large.n_tasks, 3u);
  set_num_threads(threads);
}

TEST(Explain, WrongShapesAreTheCallsErrors) {
  EXPECT_THROW(explain_attention(shape_only({1, 2, 4, 8}), shape_only({1, 2, 4, 7}),
                                 shape_only({1, 2, 4, 8})),
               ArgumentError);
  EXPECT_THROW(explain_attention(shape_only({1, 2, 4, 8}), shape_only({1, 2, 4, 8}, DType::f64),
                                 shape_only({1, 2, 4, 8})),
               DTypeError);
}

}  // namespace
}  // namespace headwise
