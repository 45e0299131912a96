#include "attention/heads.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"

namespace headwise::attention {
namespace {

// Outputs of rows that are not contiguous in t: kernels write to scratch, and from there.
TEST(Heads, RowOutputsReachTheirStrides) {
  for (const std::ptrdiff_t stride : {1, 2}) {
    std::vector<float> data(2 * 3 * 2 * 3, 1), m(24, -1), lse(24, -1);
    const ConstTensorView x(data.data(), DType::f32, {2, 3, 2, 3});
    const Problem p = make_problem(x, x, x, {});
    Outputs out;
    const Layout at{{3 * 2 * stride}, 2 * stride, stride, 0};
    out.row_max = {m.data(), DType::f32, at};
    out.log_sum_exp = {lse.data(), DType::f32, at};

    runtime::ScratchFrame frame;
    const RowStates rows = place_row_states(p, out, frame);
    ASSERT_TRUE(rows.wanted);
    EXPECT_EQ(rows.row_max.data == m.data(), stride == 1);
    EXPECT_NE(rows.row_sum.data, nullptr);
    const Shape position = batch_position(p.batch, 1);
    auto* max = static_cast<float*>(matrix_of(rows.row_max, position, 2).data);
    auto* sum = static_cast<float*>(matrix_of(rows.row_sum, position, 2).data);
    max[1] = 5;
    sum[1] = 2;
    write_row_outputs(p, out, rows, position, {2, 1, 1});
    const auto index = static_cast<std::size_t>((3 * 2 + 2 * 2 + 1) * stride);
    EXPECT_EQ(m[index], 5);
    EXPECT_EQ(lse[index], static_cast<float>(5 + std::log(2.0)));
  }
}

TEST(Heads, NothingWantedNothingTaken) {
  const float one = 1;
  const ConstTensorView x(&one, DType::f32, {1, 1, 1, 1});
  const Problem p = make_problem(x, x, x, {});
  runtime::ScratchFrame frame;
  const RowStates rows = place_row_states(p, {}, frame);
  EXPECT_FALSE(rows.wanted);
  EXPECT_EQ(rows.row_max.data, nullptr);
}

TEST(Heads, GroupsShareKeysAndHeadsDrawApart) {
  std::vector<float> data(2 * 4 * 3 * 5);
  const ConstTensorView q(data.data(), DType::f32, {2, 4, 3, 5});
  const ConstTensorView k(data.data(), DType::f32, {2, 2, 3, 5});
  AttentionOptions options;
  options.dropout_p = 0.5;
  const Problem p = make_problem(q, k, k, options);
  float sums[2 * 4 * 3];
  Outputs out;
  out.row_sum = {sums, DType::f32, {{12}, 3, 1, 0}};
  runtime::ScratchFrame frame;
  const RowStates rows = place_row_states(p, out, frame);
  const kernels::WeightsHead head = weights_head(p, rows, 1, 3);
  EXPECT_EQ(head.q.data, data.data() + (4 + 3) * 15);
  EXPECT_EQ(head.k.data, data.data() + (2 + 1) * 15);
  EXPECT_EQ(head.row_sum, sums + 12 + 9);
  EXPECT_EQ(head.dropout.head, 7u);
  EXPECT_EQ(head.dropout.p, 0.5);
}

}  // namespace
}  // namespace headwise::attention
