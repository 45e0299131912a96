// Rows of 16-bit numbers to f32 and back, on every instruction set, against the types of dtype.h.
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "headwise/dtype.h"
#include "kernels/targets.h"
#include "support/isas.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/convert_test.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "kernels/convert-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::test::HWY_NAMESPACE {

void widen(const std::uint16_t* from, DType dtype, size_t n, float* to) {
  kernels::HWY_NAMESPACE::widen_row(from, dtype, 1, n, to);
}
void narrow(const float* from, DType dtype, size_t n, std::uint16_t* to) {
  kernels::HWY_NAMESPACE::narrow_row(from, n, to, dtype, 1);
}

}  // namespace headwise::test::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace headwise::test {
namespace {

HWY_EXPORT(widen);
HWY_EXPORT(narrow);

float widened(DType dtype, std::uint16_t bits) {
  return dtype == DType::bf16 ? static_cast<float>(bfloat16::from_bits(bits))
                              : static_cast<float>(float16::from_bits(bits));
}
std::uint16_t narrowed(DType dtype, float x) {
  return dtype == DType::bf16 ? bfloat16(x).bits : float16(x).bits;
}

// Runs of every length up to 40 and one of the rest, so that vectors, tails and short rows meet.
template <class From, class To, class Convert>
std::vector<To> convert_in_runs(const std::vector<From>& from, Convert&& convert) {
  std::vector<To> to(from.size());
  std::size_t done = 0;
  for (std::size_t n = 0; n <= 40 && done + n <= from.size(); done += n++)
    convert(from.data() + done, n, to.data() + done);
  convert(from.data() + done, from.size() - done, to.data() + done);
  return to;
}

void expect_widened(DType dtype, const std::vector<std::uint16_t>& from) {
  const auto to = convert_in_runs<std::uint16_t, float>(from, [&](auto* x, size_t n, float* y) {
    HWY_DYNAMIC_DISPATCH(widen)(x, dtype, n, y);
  });
  for (std::size_t i = 0; i < from.size(); ++i) {
    const float expected = widened(dtype, from[i]);
    if (std::isnan(expected))
      ASSERT_TRUE(std::isnan(to[i]) && std::signbit(to[i]) == std::signbit(expected)) << from[i];
    else
      ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]), std::bit_cast<std::uint32_t>(expected))
          << from[i];
  }
}

void expect_narrowed(DType dtype, const std::vector<float>& from) {
  const auto to = convert_in_runs<float, std::uint16_t>(from, [&](auto* x, size_t n, auto* y) {
    HWY_DYNAMIC_DISPATCH(narrow)(x, dtype, n, y);
  });
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (std::isnan(from[i]))
      ASSERT_TRUE(std::isnan(widened(dtype, to[i])))
          << std::hex << std::bit_cast<std::uint32_t>(from[i]) << " gave " << to[i];
    else
      ASSERT_EQ(to[i], narrowed(dtype, from[i])) << from[i];
  }
}

TEST(Convert, EverySixteenBitNumberIsWidened) {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  for_each_isa([&] {
    for (DType dtype : {DType::bf16, DType::f16}) expect_widened(dtype, all);
  });
}

// Each 16-bit number, the midpoint to the next, and the floats beside both: subnormal numbers,
// ties, overflow and the smallest number that does not become 0 are all among them.
TEST(Convert, FloatsRoundToNearestEven) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    std::vector<float> x;
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const float value = widened(dtype, static_cast<std::uint16_t>(bits));
      const auto u = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t half = dtype == DType::bf16 ? 0x8000u : 0x1000u;
      for (std::uint32_t v : {u, u + half}) {
        for (std::uint32_t w : {v - 1, v, v + 1}) x.push_back(std::bit_cast<float>(w));
      }
      if (dtype == DType::f16 && (bits & 0x7fff) < 0x400) {  // halves of a subnormal number's unit
        const float middle = value + std::copysign(0x1p-25f, value);
        for (float y : {middle, std::nextafter(middle, 1.0f), std::nextafter(middle, -1.0f)})
          x.push_back(y);
      }
    }
    for_each_isa([&] { expect_narrowed(dtype, x); });
  }
}

}  // namespace
}  // namespace headwise::test
#endif
