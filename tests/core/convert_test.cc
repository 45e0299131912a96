#include "core/convert.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gtest/gtest.h"

namespace headwise::core {
namespace {

constexpr DType kFloating[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

TEST(Convert, EveryPairOfFloatingTypesKeepsWhatBothCanHold) {
  const std::vector<float> values = {0.0f,   1.0f,  -2.5f,
                                     0.125f, 96.0f, -std::numeric_limits<float>::infinity()};
  const ConstTensorView source(values.data(), {2, 3});
  for (DType a : kFloating)
    for (DType b : kFloating) {
      const Tensor back = converted(converted(converted(source, a), b), DType::f32);
      for (std::size_t i = 0; i < values.size(); ++i)
        EXPECT_EQ(back.data<float>()[i], values[i]) << name_of(a) << " to " << name_of(b);
    }
}

TEST(Convert, RoundsToNearestEven) {
  const std::vector<float> values = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1p-11f, 65520.0f};
  const ConstTensorView source(values.data(), {4});
  const Tensor bf16 = converted(source, DType::bf16), f16 = converted(source, DType::f16);
  EXPECT_EQ(static_cast<float>(bf16.data<bfloat16>()[0]), 1.0f);
  EXPECT_EQ(static_cast<float>(bf16.data<bfloat16>()[1]), 1.0f + 0x1p-6f);
  EXPECT_EQ(static_cast<float>(f16.data<float16>()[2]), 1.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(f16.data<float16>()[3])));
}

TEST(Convert, AnyStrides) {
  const std::vector<double> values = {0, 1, 2, 3, 4, 5};
  const ConstTensorView transposed(values.data(), DType::f64, {3, 2}, {1, 3});
  std::vector<float> out(12, -1.0f);
  convert(transposed, TensorView(out.data(), DType::f32, {3, 2}, {4, 2}));
  EXPECT_EQ(out, (std::vector<float>{0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1}));
}

TEST(Convert, EmptyAndScalar) {
  EXPECT_EQ(converted(Tensor(DType::f32, {0, 3}), DType::f64).size(), 0u);
  const double one = 1.5;
  EXPECT_EQ(converted(ConstTensorView(&one, Shape{}), DType::f32).data<float>()[0], 1.5f);
}

TEST(Convert, EqualOtherTypesAreCopied) {
  const std::vector<std::uint8_t> values = {0, 1, 7};
  const Tensor copy =
      converted(ConstTensorView(values.data(), DType::boolean, {3}), DType::boolean);
  EXPECT_EQ(static_cast<const std::uint8_t*>(copy.view().data)[2], 7);
}

}  // namespace
}  // namespace headwise::core
