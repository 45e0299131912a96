// Element types of tensors, and the two 16-bit floating types that C++20 does not have.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "headwise/export.h"

namespace headwise {

// Attention computes on f32, f64, bf16 and f16. The others come from files and masks.
enum class DType : std::uint8_t {
  f32,
  f64,
  bf16,
  f16,
  boolean,  // one byte, 0 is false, anything else is true
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
};

constexpr std::size_t size_of(DType dtype) {  // in bytes
  constexpr std::uint8_t kSizes[] = {4, 8, 2, 2, 1, 1, 1, 2, 2, 4, 4, 8, 8};
  return kSizes[static_cast<std::size_t>(dtype)];
}
HEADWISE_API std::string_view name_of(DType dtype);  // "f32", "bf16", "bool", ...
HEADWISE_API bool is_floating(DType dtype);          // f32, f64, bf16, f16

// The upper half of an IEEE binary32. From float: round to nearest, ties to even; NaN stays NaN.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;
  explicit constexpr bfloat16(float value) {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u
                                          : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 x;
    x.bits = b;
    return x;
  }
};

// IEEE binary16. From float: round to nearest, ties to even, overflow to infinity; NaN stays NaN.
struct HEADWISE_API float16 {
  std::uint16_t bits = 0;

  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
  static constexpr float16 from_bits(std::uint16_t b) {
    float16 x;
    x.bits = b;
    return x;
  }
};

template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of<bfloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<std::int8_t> {
  static constexpr DType value = DType::i8;
};
template <>
struct dtype_of<std::uint16_t> {
  static constexpr DType value = DType::u16;
};
template <>
struct dtype_of<std::int16_t> {
  static constexpr DType value = DType::i16;
};
template <>
struct dtype_of<std::uint32_t> {
  static constexpr DType value = DType::u32;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::uint64_t> {
  static constexpr DType value = DType::u64;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <typename T>
inline constexpr DType dtype_of_v = dtype_of<T>::value;

}  // namespace headwise
