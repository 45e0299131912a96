// Views and owners.
#include "headwise/tensor.h"

#include <cstddef>
#include <stdexcept>

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

TEST(Tensor, TooManyElementsAreRefused) {
  const std::size_t huge = std::size_t{1} << 40;
  EXPECT_THROW(Tensor(DType::f32, {huge, huge}), std::length_error);
}

}  // namespace
}  // namespace headwise
