// Views and owners.
#include "headwise/tensor.h"

#include <cstddef>
#include <stdexcept>
#include <utility>

#include "gtest/gtest.h"
#include "headwise/error.h"

namespace headwise {
namespace {

TEST(Tensor, CopyFollowsStrides) {
  const float x[6] = {0, 1, 2, 3, 4, 5};
  const ConstTensorView transposed(x, DType::f32, {3, 2}, {1, 3});
  const Tensor t = Tensor::copy_of(transposed);
  const float expected[6] = {0, 3, 1, 4, 2, 5};
  for (int i = 0; i < 6; ++i) EXPECT_EQ(t.data<float>()[i], expected[i]);
}

TEST(Tensor, WrongTypeIsAnErrorThatNamesBoth) {
  const Tensor t(DType::f32, {2});
  try {
    t.data<double>();
    FAIL();
  } catch (const DTypeError& e) {
    EXPECT_STREQ(e.what(), "tensor: found dtype f32, expected f64");
  }
}

TEST(Tensor, AMovedTensorHasNoElements) {
  Tensor a = Tensor::zeros(DType::f32, {2, 3});
  Tensor b = std::move(a);
  EXPECT_EQ(a.size(), 0u);
  EXPECT_TRUE(a.values<float>().empty());
  EXPECT_EQ(b.size(), 6u);
  Tensor c;
  c = std::move(b);
  EXPECT_EQ(b.size(), 0u);
  EXPECT_EQ(c.values<float>()[5], 0.0f);
  Buffer x(10), y(std::move(x));
  EXPECT_EQ(x.size(), 0u);
  EXPECT_EQ(y.size(), 10u);
}

TEST(Tensor, ACopyChecksItsView) {
  const float x[4] = {};
  const std::size_t huge = std::size_t{1} << 62;
  EXPECT_THROW(Tensor::copy_of({nullptr, DType::f32, {4}}), ArgumentError);
  EXPECT_THROW(Tensor::copy_of({x, DType::f32, {2, 2}, {1}}), ArgumentError);
  EXPECT_THROW(Tensor::copy_of({x, DType::f32, {huge}, {0}}), std::length_error);
  EXPECT_EQ(Tensor::copy_of({nullptr, DType::f32, {0, 4}}).size(), 0u);
}

TEST(Tensor, TooManyElementsAreRefused) {
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_THROW(Tensor(DType::f32, {huge, huge}), std::length_error);
}

}  // namespace
}  // namespace headwise
