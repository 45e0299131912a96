// Publicly reported faults of gradients of attention as tests, under the ids of docs/cases.md.
#include <cmath>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "support/gradient_reference.h"
#include "support/isas.h"
#include "support/kernels.h"

namespace headwise {
namespace {

using test::BackwardRun;
using test::for_each_isa;
using test::Memory;
using test::StridedTensor;

struct Call {
  StridedTensor q, k, v, d_o;
  AttentionOptions options;

  Call(const Shape& q_shape, const Shape& k_shape, DType dtype = DType::f32,
       Memory memory = Memory::contiguous)
      : q(dtype, q_shape, memory),
        k(dtype, k_shape, memory),
        v(dtype, k_shape, memory),
        d_o(dtype, q_shape, memory) {
    std::mt19937 random(1);
    for (StridedTensor* x : {&q, &k, &v, &d_o}) x->fill_normal(random);
  }
  BackwardRun run() const { return {q, k, v, options, d_o}; }
  void check() const { run().expect(test::reference_gradients(q, k, v, options, d_o)); }
};

TEST(BackwardCases, FM02_BandMaskAndPaddingLeaveARowWithoutKeys) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Call call({2, 2, 6, 8}, {2, 2, 6, 8}, dtype);
    StridedTensor band(DType::boolean, {6, 6}), padding(DType::boolean, {2, 1, 1, 6});
    band.fill([](const Shape& at) { return at[1] <= at[0] && at[0] <= at[1] + 1; });
    padding.fill([](const Shape& at) { return at[0] == 1 && at[3] < 3; });
    call.options.mask = Mask::keep(band);
    call.options.second_mask = Mask::ignore(padding);
    call.check();
    EXPECT_EQ(call.run().dq({1, 0, 1, 0}), 0.0);
  }
}

TEST(BackwardCases, FM09_BottomRightCausalWithMoreQueriesThanKeys) {
  Call call({1, 2, 9, 8}, {1, 2, 4, 8});
  call.options.causal = CausalAlign::bottom_right;
  call.check();
  EXPECT_EQ(call.run().dq({0, 1, 4, 3}), 0.0);
}

// Scores of 1.7e4 and more that are nearly equal: every row of P sums to 1, so dV sums to d_o.
TEST(BackwardCases, NM14_GradientsDoNotDriftAtHugeScores) {
  test::for_each_kernel([] {
    for_each_isa([] {
      for (const std::size_t T : {2, 8, 17, 66}) {
        std::mt19937 random(14);
        const Shape shape{1, 1, T, 16};
        StridedTensor q(DType::f32, shape), k(DType::f32, shape), v(DType::f32, shape),
            d_o(DType::f32, shape);
        q.fill_normal(random, 1e4);
        v.fill_normal(random);
        d_o.fill([](const Shape&) { return 1.0; });
        std::normal_distribution<double> normal;
        double row[16];
        for (double& x : row) x = normal(random);
        k.fill([&](const Shape& at) { return row[at[3]] + 1e-7 * normal(random); });
        const BackwardRun run(q, k, v, {}, d_o);
        double sum = 0;
        test::for_each_index(shape, [&](const Shape& at) { sum += run.dv(at); });
        EXPECT_NEAR(sum / static_cast<double>(T * 16), 1.0, 1e-6) << T;
      }
    });
  });
}

TEST(BackwardCases, SH02_EmptyDims) {
  for (const auto& [T_q, T_k] : {std::pair<std::size_t, std::size_t>{0, 3}, {3, 0}, {0, 0}})
    Call({2, 2, T_q, 4}, {2, 2, T_k, 4}).check();
  Call({0, 2, 3, 4}, {0, 2, 3, 4}).check();
  Call({0, 2, 3, 4}, {1, 2, 3, 4}).check();  // broadcast to nothing: zeros
  Call({2, 0, 3, 4}, {2, 0, 3, 4}).run();    // no heads: nothing to write
  Call({2, 2, 3, 0}, {2, 2, 3, 0}).check();
}

TEST(BackwardCases, SH15_LastDimStrided) {
  Call({1, 2, 5, 16}, {1, 2, 7, 16}, DType::f32, Memory::every_second).check();
}

TEST(BackwardCases, SH18_StridesOfTheOutputsGradient) {
  const Call call({1, 2, 5, 16}, {1, 2, 5, 16});
  const std::vector<std::byte> expected = call.run().bits();
  for (const Memory memory : test::kWritable) {
    StridedTensor d_o(DType::f32, call.d_o.shape(), memory);
    d_o.fill([&](const Shape& at) { return call.d_o(at); });
    EXPECT_EQ(BackwardRun(call.q, call.k, call.v, {}, d_o).bits(), expected);
  }
  // A scalar, expanded: what the gradient of sum(o) is.
  const float one = 1.0f;
  StridedTensor ones(DType::f32, call.d_o.shape());
  ones.fill([](const Shape&) { return 1.0; });
  const ConstTensorView expanded{&one, DType::f32, ones.shape(), Strides{0, 0, 0, 0}};
  EXPECT_EQ(BackwardRun(call.q, call.k, call.v, {}, expanded).bits(),
            BackwardRun(call.q, call.k, call.v, {}, ones).bits());
}

// Gradients come from a call with an argument for each that there is: nothing to ask for second
// ones with, so none that could be silently wrong. From Python, a d_o that itself wants a gradient
// is refused (python/tests/test_backward.py).
TEST(BackwardCases, DT04_SecondDerivativesCannotBeAskedFor) {
  Call call({1, 1, 3, 2}, {1, 1, 3, 2}, DType::f64);
  call.check();
  static_assert(std::is_same_v<decltype(scaled_dot_product_attention_backward),
                               void(const ConstTensorView&, const ConstTensorView&,
                                    const ConstTensorView&, const AttentionOptions&,
                                    const AttentionState&, const AttentionGradients&)>);
}

}  // namespace
}  // namespace headwise
