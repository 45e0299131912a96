#include "headwise/dtype.h"

#include <cstddef>
#include <cstdint>

namespace headwise {
namespace {

constexpr std::string_view kNames[] = {"f32", "f64", "bf16", "f16", "bool", "u8", "i8",
                                       "u16", "i16", "u32",  "i32", "u64",  "i64"};

}  // namespace

std::string_view name_of(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }
bool is_floating(DType dtype) { return dtype <= DType::f16; }

float16::float16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 and more round to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // normal: 2^-14 and more
    const std::uint32_t rebased = magnitude - 0x38000000u;
    half = (rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13;
  } else if (magnitude > 0x33000000u) {  // above 2^-25: a subnormal of 2^-24 steps
    const std::uint32_t shift = 126u - (magnitude >> 23);
    const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
    half = mantissa >> shift;
    if (rest > middle || (rest == middle && (half & 1u))) ++half;
  }
  bits = static_cast<std::uint16_t>(sign | half);
}

float16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // exact
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
  }
  const std::uint32_t rebased = exponent == 31 ? 0xffu : exponent + 112u;
  return std::bit_cast<float>(sign | (rebased << 23) | (mantissa << 13));
}

}  // namespace headwise
