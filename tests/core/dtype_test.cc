// The 16-bit types.
#include "headwise/dtype.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "gtest/gtest.h"

namespace headwise {
namespace {

TEST(Float16, EveryValueSurvivesTheWayThroughFloat) {
  for (std::uint32_t b = 0; b < 0x10000u; ++b) {
    const auto h = float16::from_bits(static_cast<std::uint16_t>(b));
    const auto f = static_cast<float>(h);
    if (std::isnan(f))
      EXPECT_TRUE(std::isnan(static_cast<float>(float16(f))));
    else
      EXPECT_EQ(float16(f).bits, h.bits) << b;
  }
}

TEST(Float16, RoundsTiesToEven) {
  for (std::uint32_t b = 0; b < 0x7bffu; ++b) {  // between neighbours: the even one
    const double low = static_cast<float>(float16::from_bits(static_cast<std::uint16_t>(b)));
    const double high = static_cast<float>(float16::from_bits(static_cast<std::uint16_t>(b + 1)));
    const auto middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(float16(middle).bits, (b & 1u) ? b + 1 : b);
    EXPECT_EQ(float16(std::nextafter(middle, 1e9f)).bits, b + 1);
    EXPECT_EQ(float16(std::nextafter(middle, -1e9f)).bits, b);
  }
  EXPECT_EQ(float16(65519.9f).bits, 0x7bff);
  EXPECT_EQ(float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(float16(-std::numeric_limits<float>::infinity()).bits, 0xfc00);
}

TEST(Bfloat16, RoundsTiesToEvenAndKeepsNaN) {
  EXPECT_EQ(bfloat16(1.0f).bits, 0x3f80);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);
  EXPECT_EQ(bfloat16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);
  EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace headwise
