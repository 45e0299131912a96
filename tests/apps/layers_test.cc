#include "encoder/layers.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace headwise::encoder {
namespace {

TEST(LayerNorm, FollowsItsDefinition) {
  const LayerNorm norm{{1, 2, 1, 1}, {0, 0, 5, 0}, 1e-12};
  std::vector<double> x = {1, 2, 3, 4, 10, 10, 10, 14};
  const std::vector<double> added = {0, 0, 0, 0, 0, 0, 0, -4};
  norm.apply(x, added);
  const double expected[8] = {-1.34164079, -0.89442719, 5.4472136, 1.34164079, 0, 0, 5, 0};
  for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(x[i], expected[i], 1e-6) << i;
}

TEST(LayerNorm, KeepsSmallDifferencesOnALargeMean) {
  const LayerNorm norm{std::vector<double>(3, 1), std::vector<double>(3, 0), 0};
  std::vector<double> x = {1e9, 1e9 + 1, 1e9 + 2};
  norm.apply(x, {});
  EXPECT_NEAR(x[0], -std::sqrt(1.5), 1e-6);
  EXPECT_NEAR(x[1], 0, 1e-6);
}

TEST(Gelu, IsTheExactForm) {
  std::vector<double> x;
  for (int i = -600; i <= 600; ++i) x.push_back(i / 100.0);
  x.resize(20000, 1.0);
  std::vector<double> y = x;
  gelu(y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = 0.5 * x[i] * std::erfc(-x[i] / std::sqrt(2.0));
    ASSERT_NEAR(y[i], exact, 1e-15 * std::max(1.0, std::abs(exact))) << x[i];
  }
}

TEST(ToDoubles, TakesAnyFloatingDtypeAndStrides) {
  const double values[4] = {1, 2, 3, 4};
  const ConstTensorView transposed(values, DType::f64, {2, 2}, {1, 2});
  EXPECT_EQ(to_doubles(transposed), (std::vector<double>{1, 3, 2, 4}));
  const bfloat16 b[1] = {bfloat16(1.5f)};
  EXPECT_EQ(to_doubles({b, {1}}), std::vector<double>{1.5f});
  const float16 h[1] = {float16(0.25f)};
  EXPECT_EQ(to_doubles({h, {1}}), std::vector<double>{0.25f});
}

}  // namespace
}  // namespace headwise::encoder
