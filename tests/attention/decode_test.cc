// Calls by the decode kernel: rows and leaves shared out, row outputs, weights, grouped heads.
#include "attention/decode.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "headwise/runtime.h"
#include "support/attention_reference.h"
#include "support/isas.h"
#include "support/kernels.h"
#include "support/strided_tensor.h"

namespace headwise {
namespace {

using test::StridedTensor;

struct Inputs {
  Inputs(DType dtype, Shape q_shape, Shape k_shape, Shape v_shape, unsigned seed = 1)
      : q(dtype, q_shape), k(dtype, k_shape), v(dtype, v_shape) {
    std::mt19937 random(seed);
    for (StridedTensor* x : {&q, &k, &v}) x->fill_normal(random);
  }
  StridedTensor q, k, v;
};

constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST(Decode, GroupedHeadsAndManyLeaves) {
  const test::ScopedKernel forced("decode");
  test::for_each_isa([] {
    for (const DType dtype : kDTypes)
      for (const std::size_t T_k : {7u, 512u, 2600u}) {
        const Inputs in(dtype, {2, 6, 3, 40}, {2, 2, T_k, 40}, {2, 2, T_k, 24});
        StridedTensor o(dtype, {2, 6, 3, 24});
        AttentionOptions options;
        options.causal = CausalAlign::bottom_right;
        scaled_dot_product_attention(in.q, in.k, in.v, options, o.view());
        test::expect_output(test::reference_call(in.q, in.k, in.v, options), o);
      }
  });
}

// More rows than a task takes, whose blocks begin and end within heads.
TEST(Decode, BlocksOfRowsCutHeads) {
  const test::ScopedKernel forced("decode");
  const Inputs in(DType::f32, {1, 4, 50, 8}, {1, 2, 600, 8}, {1, 2, 600, 8});
  StridedTensor o(DType::f32, {1, 4, 50, 8}), m(DType::f32, {1, 4, 50}), l(DType::f32, {1, 4, 50}),
      lse(DType::f32, {1, 4, 50});
  AttentionExtras extras;
  extras.row_max = m.view();
  extras.row_sum = l.view();
  extras.log_sum_exp = lse.view();
  scaled_dot_product_attention(in.q, in.k, in.v, {}, o.view(), extras);
  const test::AttentionReference r = test::reference_call(in.q, in.k, in.v);
  test::expect_output(r, o);
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t t = 0; t < 50; ++t) {
      EXPECT_NEAR(test::get(m, {0, h, t}), r.heads[h].m[t], 1e-5);
      EXPECT_NEAR(test::get(l, {0, h, t}), r.heads[h].l[t], 1e-5 * r.heads[h].l[t]);
      EXPECT_NEAR(test::get(lse, {0, h, t}), r.heads[h].m[t] + std::log(r.heads[h].l[t]), 1e-5);
    }
}

TEST(Decode, WeightsOfHeadsAndTheirMean) {
  const test::ScopedKernel forced("decode");
  for (const DType dtype : kDTypes) {
    const Inputs in(dtype, {2, 4, 3, 16}, {2, 2, 1100, 16}, {2, 2, 1100, 4});
    StridedTensor o(dtype, {2, 4, 3, 4}), w(dtype, {2, 4, 3, 1100}), mean(dtype, {2, 3, 1100});
    AttentionExtras extras;
    extras.weights = w.view();
    extras.average_weights = mean.view();
    scaled_dot_product_attention(in.q, in.k, in.v, {}, o.view(), extras);
    const test::AttentionReference r = test::reference_call(in.q, in.k, in.v);
    const double relative = 1e-5 + 2 * test::rounding(dtype);
    const double smallest = dtype == DType::f16 ? 0x1p-24 : 0;
    for (std::size_t b = 0; b < 2; ++b)
      for (std::size_t t = 0; t < 3; ++t)
        for (std::size_t j = 0; j < 1100; ++j) {
          double sum = 0;
          for (std::size_t h = 0; h < 4; ++h) {
            const double p = r.heads[b * 4 + h].p[t * 1100 + j];
            sum += p;
            ASSERT_NEAR(test::get(w, {b, h, t, j}), p, relative * p + smallest);
          }
          ASSERT_NEAR(test::get(mean, {b, t, j}), sum / 4, relative * sum / 4 + smallest);
        }
  }
}

// Whoever finishes last merges.
TEST(Decode, SameBitsForAnyThreads) {
  const test::ScopedKernel forced("decode");
  const int before = get_num_threads();
  for (const DType dtype : kDTypes) {
    const Inputs in(dtype, {1, 8, 1, 128}, {1, 4, 6000, 128}, {1, 4, 6000, 128});
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 5, 2, 3}) {
      set_num_threads(threads);
      StridedTensor o(dtype, {1, 8, 1, 128});
      scaled_dot_product_attention(in.q, in.k, in.v, {}, o.view());
      if (first.empty()) first = o.bits();
      EXPECT_EQ(o.bits(), first) << threads << " threads, " << name_of(dtype);
    }
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace headwise
