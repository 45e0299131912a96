// Fixture L4 of the reported cases: one head, d_head = d_v = 1, scale 1, every q = 1, k_j = ln(j +
// 1), v_j = 10 (j + 1), T_k = 4. The weights are exactly 1 : 2 : 3 : 4, so that every set of
// visible keys has a closed form: all 30, the first 10, the first two 50/3, the first three 70/3.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/attention.h"
#include "support/isas.h"
#include "support/strided_tensor.h"

namespace headwise::test {

// A contiguous tensor with these values in row-major order.
inline StridedTensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  StridedTensor tensor(dtype, shape);
  return tensor.fill([&, n = std::size_t{0}](const Shape&) mutable { return values.at(n++); });
}

inline std::vector<double> values_of(const ConstTensorView& view) {
  std::vector<double> values;
  for_each_index(view.shape, [&](const Shape& at) { values.push_back(get(view, at)); });
  return values;
}

inline void expect_values(const ConstTensorView& found, const std::vector<double>& expected,
                          double relative) {
  const std::vector<double> values = values_of(found);
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t n = 0; n < values.size(); ++n) {
    if (std::isnan(expected[n]))
      EXPECT_TRUE(std::isnan(values[n])) << "value " << n << " is " << values[n];
    else
      EXPECT_NEAR(values[n], expected[n], relative * std::abs(expected[n])) << "value " << n;
  }
}

// What a correct result may differ by, relative to its size.
inline double tolerance_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 1e-14;
    case DType::f32:
      return 1e-6;
    case DType::bf16:
      return 0x1p-7;
    default:
      return 0x1p-10;
  }
}

struct L4 {
  explicit L4(std::size_t T_q, DType type = DType::f64, std::size_t B = 1)
      : dtype(type), q(type, {B, 1, T_q, 1}), k(type, {B, 1, 4, 1}), v(type, {B, 1, 4, 1}) {
    q.fill([](const Shape&) { return 1.0; });
    k.fill([](const Shape& at) { return std::log(static_cast<double>(at[2] + 1)); });
    v.fill([](const Shape& at) { return 10.0 * static_cast<double>(at[2] + 1); });
  }
  // On every instruction set.
  void expect(const AttentionOptions& options, const std::vector<double>& rows) const {
    for_each_isa([&] {
      expect_values(scaled_dot_product_attention(q, k, v, options), rows, tolerance_of(dtype));
    });
  }

  DType dtype;
  StridedTensor q, k, v;
};

}  // namespace headwise::test
