// Calls that are refused before anything is written.
#include "attention/backward/gradients.h"

#include <random>
#include <string>

#include "gtest/gtest.h"
#include "headwise/error.h"
#include "support/gradient_reference.h"

namespace headwise {
namespace {

using test::StridedTensor;

struct Call {
  StridedTensor q{DType::f32, {1, 4, 5, 8}}, k{DType::f32, {1, 2, 6, 8}},
      v{DType::f32, {1, 2, 6, 3}}, o{DType::f32, {1, 4, 5, 3}}, d_o{DType::f32, {1, 4, 5, 3}},
      m{DType::f32, {1, 4, 5}}, l{DType::f32, {1, 4, 5}}, dq{DType::f32, {1, 4, 5, 8}},
      dk{DType::f32, {1, 2, 6, 8}}, dv{DType::f32, {1, 2, 6, 3}}, bias{DType::f32, {5, 6}},
      keep{DType::boolean, {5, 6}};
  AttentionOptions options;
  AttentionState state{d_o, o, m, l};
  AttentionGradients wanted{dq.view(), dk.view(), dv.view(), {}, {}};

  // The argument that the error names; "" if there is none.
  std::string refused() {
    try {
      scaled_dot_product_attention_backward(q, k, v, options, state, wanted);
    } catch (const ArgumentError& error) {
      EXPECT_TRUE(dq.bits() == StridedTensor(DType::f32, dq.shape()).bits()) << "was written";
      return error.argument();
    }
    return "";
  }
};

TEST(BackwardGradients, StateMustFitTheOutput) {
  Call call;
  const StridedTensor wrong(DType::f32, {1, 4, 5, 4}), f64(DType::f64, {1, 4, 5, 3}),
      rows(DType::f32, {1, 4, 6}), rows64(DType::f64, {1, 4, 5});
  const auto refused = [](ConstTensorView AttentionState::*part, const ConstTensorView& view) {
    Call one;
    one.state.*part = view;
    return one.refused();
  };
  EXPECT_EQ(refused(&AttentionState::d_o, wrong), "d_o");
  EXPECT_EQ(refused(&AttentionState::d_o, f64), "d_o");
  EXPECT_EQ(refused(&AttentionState::d_o, {}), "d_o");
  EXPECT_EQ(refused(&AttentionState::o, wrong), "o");
  EXPECT_EQ(refused(&AttentionState::o, f64), "o");
  EXPECT_EQ(refused(&AttentionState::row_max, rows), "row_max");
  EXPECT_EQ(refused(&AttentionState::row_max, rows64), "row_max");
  EXPECT_EQ(refused(&AttentionState::row_sum, rows), "row_sum");
  EXPECT_EQ(refused(&AttentionState::d_weights, wrong), "d_weights");
  EXPECT_EQ(refused(&AttentionState::d_weights, f64), "d_weights");
  EXPECT_EQ(refused(&AttentionState::d_average_weights, rows), "d_average_weights");
}

TEST(BackwardGradients, GradientsMustFitWhatTheyAreOf) {
  StridedTensor wrong(DType::f32, {1, 4, 6, 8}), half(DType::bf16, {1, 4, 5, 8});
  Call call;
  call.wanted.dq = wrong.view();
  EXPECT_EQ(call.refused(), "dq");
  call.wanted.dq = half.view();
  EXPECT_EQ(call.refused(), "dq");
  call.wanted.dq = {};
  call.wanted.dk = wrong.view();
  EXPECT_EQ(call.refused(), "dk");
  call.wanted.dk = {};
  call.wanted.dv = wrong.view();
  EXPECT_EQ(call.refused(), "dv");
}

TEST(BackwardGradients, OnlyABiasHasAGradient) {
  StridedTensor d_mask(DType::f32, {5, 6});
  Call call;
  call.wanted.d_mask = d_mask.view();
  EXPECT_EQ(call.refused(), "d_mask");
  call.options.mask = Mask::keep(call.keep);
  EXPECT_EQ(call.refused(), "d_mask");
  StridedTensor wrong(DType::f32, {1, 6});
  call.options.mask = Mask::bias(call.bias);
  call.wanted.d_mask = wrong.view();
  EXPECT_EQ(call.refused(), "d_mask");
  call.wanted.d_mask = {};
  call.wanted.d_second_mask = d_mask.view();
  EXPECT_EQ(call.refused(), "d_second_mask");
}

TEST(BackwardGradients, ShareNoMemory) {
  Call call;
  call.wanted.dq = call.q.view();
  EXPECT_EQ(call.refused(), "dq");
  call.wanted.dq = call.dq.view();
  call.wanted.dv = call.v.view();
  EXPECT_EQ(call.refused(), "dv");
  call.wanted.dv = call.dv.view();
  call.wanted.dk = call.dk.view();
  call.wanted.dk.strides = {0, 0, 0, 1};
  EXPECT_EQ(call.refused(), "dk");
}

}  // namespace
}  // namespace headwise
