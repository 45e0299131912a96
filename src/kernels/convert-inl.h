// Rows of any floating dtype from and to rows of T, the type of the arithmetic. Rounding is to
// nearest, ties to even, on every instruction set.
#if defined(HEADWISE_KERNELS_CONVERT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_CONVERT_INL_H_
#undef HEADWISE_KERNELS_CONVERT_INL_H_
#else
#define HEADWISE_KERNELS_CONVERT_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "headwise/dtype.h"
#include "hwy/highway.h"
#include "kernels/args.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Both give the same bits as the integers below, payloads of NaN aside. The bf16 instruction does
// not: it takes subnormal numbers for 0.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
inline constexpr bool kF16Instructions = true;
#else
inline constexpr bool kF16Instructions = false;
#endif

// N elements as f32. In integers, because Highway's own emulation of binary16 differs by target.
template <class D>
using HalfBits = hn::Vec<hn::Rebind<std::uint16_t, D>>;

template <class D>
HWY_INLINE hn::Vec<D> widen_bf16(D d, HalfBits<D> half) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, half)));
}

template <class D>
HWY_INLINE hn::Vec<D> widen_f16(D d, HalfBits<D> half) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  if constexpr (kF16Instructions) {
    const hn::Rebind<hwy::float16_t, D> df16;
    return hn::PromoteTo(d, hn::BitCast(df16, half));
  }
  const auto bits = hn::PromoteTo(du, half);
  const auto size = hn::And(bits, hn::Set(du, 0x7fffu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(bits, size));
  // The product moves the exponent and makes subnormal numbers normal.
  const auto finite =
      hn::BitCast(du, hn::Mul(hn::BitCast(d, hn::ShiftLeft<13>(size)), hn::Set(d, 0x1p112f)));
  const auto special = hn::Gt(hn::BitCast(di, size), hn::Set(di, 0x7bff));  // inf and NaN
  const auto exponent = hn::IfThenElseZero(hn::RebindMask(du, special), hn::Set(du, 0x7f800000u));
  return hn::BitCast(d, hn::Or(sign, hn::Or(finite, exponent)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_bf16(D d, const std::uint16_t* from) {
  return widen_bf16(d, hn::LoadU(hn::Rebind<std::uint16_t, D>(), from));
}
template <class D>
HWY_INLINE hn::Vec<D> load_f16(D d, const std::uint16_t* from) {
  return widen_f16(d, hn::LoadU(hn::Rebind<std::uint16_t, D>(), from));
}

// x rounded to nearest even, in the low halves; the high ones are 0.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> bf16_bits([[maybe_unused]] D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto u = hn::BitCast(du, x);
  const auto odd = hn::And(hn::ShiftRight<16>(u), hn::Set(du, 1u));
  const auto rounded = hn::ShiftRight<16>(hn::Add(u, hn::Add(odd, hn::Set(du, 0x7fffu))));
  const auto nan = hn::Or(hn::ShiftRight<16>(u), hn::Set(du, 0x40u));
  // Not Ne(x, x): Highway's is ordered on AVX2 and AVX-512, false for NaN.
  const auto size = hn::BitCast(di, hn::And(u, hn::Set(du, 0x7fffffffu)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(size, hn::Set(di, 0x7f800000)));
  return hn::IfThenElse(is_nan, nan, rounded);
}

template <class D>
HWY_INLINE void store_bf16(D d, hn::Vec<D> x, std::uint16_t* to) {
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bf16_bits(d, x))), d16, to);
}

// Can rows of 16-bit elements be moved as half as many floats?
inline bool in_pairs(const void* data, std::ptrdiff_t stride_t, std::ptrdiff_t stride_i, size_t n) {
  return stride_i == 1 && stride_t % 2 == 0 && n % 2 == 0 &&
         reinterpret_cast<std::uintptr_t>(data) % sizeof(float) == 0;
}

template <class D>
HWY_INLINE void store_f16(D d, hn::Vec<D> x, std::uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<std::uint16_t, D> d16;
  if constexpr (kF16Instructions) {
    const hn::Rebind<hwy::float16_t, D> df16;
    hn::StoreU(hn::BitCast(d16, hn::DemoteTo(df16, x)), d16, to);
    return;
  }
  const auto u = hn::BitCast(du, x);
  const auto size = hn::And(u, hn::Set(du, 0x7fffffffu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(u, size));
  const auto isize = hn::BitCast(di, size);
  // Normal: the exponent changes its bias, 13 bits are rounded away; a carry may reach infinity.
  const auto odd = hn::And(hn::ShiftRight<13>(size), hn::Set(du, 1u));
  const auto bias = hn::Set(du, 0xc8000fffu);  // (15 - 127) << 23, plus half a unit less one
  auto bits = hn::ShiftRight<13>(hn::Add(hn::Add(size, bias), odd));
  // Subnormal: adding 0.5 lets the adder round at the unit of binary16's subnormal numbers.
  const auto half = hn::Set(d, 0.5f);
  const auto small =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, size), half)), hn::BitCast(du, half));
  bits = hn::IfThenElse(hn::RebindMask(du, hn::Lt(isize, hn::Set(di, 113 << 23))), small, bits);
  const auto infinite = hn::Gt(isize, hn::Set(di, (143 << 23) - 1));
  bits = hn::IfThenElse(hn::RebindMask(du, infinite), hn::Set(du, 0x7c00u), bits);
  const auto nan = hn::Gt(isize, hn::Set(di, 0x7f800000));
  bits = hn::IfThenElse(hn::RebindMask(du, nan), hn::Set(du, 0x7e00u), bits);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::Or(bits, sign))), d16, to);
}

template <typename T>
HWY_INLINE T load_element(const void* from, DType dtype, std::ptrdiff_t index) {
  switch (dtype) {
    case DType::f32:
      return static_cast<T>(static_cast<const float*>(from)[index]);
    case DType::f64:
      return static_cast<T>(static_cast<const double*>(from)[index]);
    case DType::bf16:
      return static_cast<T>(static_cast<float>(static_cast<const bfloat16*>(from)[index]));
    default:
      return static_cast<T>(static_cast<float>(static_cast<const float16*>(from)[index]));
  }
}

template <typename T>
HWY_INLINE void store_element(T x, void* to, DType dtype, std::ptrdiff_t index) {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(to)[index] = static_cast<float>(x);
      break;
    case DType::f64:
      static_cast<double*>(to)[index] = x;
      break;
    case DType::bf16:
      static_cast<bfloat16*>(to)[index] = bfloat16(static_cast<float>(x));
      break;
    default:
      static_cast<float16*>(to)[index] = float16(static_cast<float>(x));
      break;
  }
}

HWY_INLINE const void* advance(const void* p, DType dtype, std::ptrdiff_t elements) {
  return static_cast<const char*>(p) + elements * static_cast<std::ptrdiff_t>(size_of(dtype));
}
HWY_INLINE void* advance(void* p, DType dtype, std::ptrdiff_t elements) {
  return static_cast<char*>(p) + elements * static_cast<std::ptrdiff_t>(size_of(dtype));
}

// convert(i) for vectors of N elements that cover [0, n); the last may overlap the one before.
// False if there are fewer than N.
template <class Convert>
HWY_INLINE bool cover(size_t n, size_t N, Convert&& convert) {
  if (n < N) return false;
  size_t i = 0;
  for (; i + N <= n; i += N) convert(i);
  if (i != n) convert(n - N);
  return true;
}

// to[i] = from[i * stride] for i < n.
template <typename T>
void widen_row(const void* from, DType dtype, std::ptrdiff_t stride, size_t n, T* to) {
  if (stride == 1 && dtype_of_v<T> == dtype) {
    if (n != 0) std::memcpy(to, from, n * sizeof(T));
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    const hn::ScalableTag<float> d;
    const auto* from16 = static_cast<const std::uint16_t*>(from);
    if (stride == 1 && dtype == DType::bf16 &&
        cover(n, hn::Lanes(d), [&](size_t i) { hn::StoreU(load_bf16(d, from16 + i), d, to + i); }))
      return;
    if (stride == 1 && dtype == DType::f16 &&
        cover(n, hn::Lanes(d), [&](size_t i) { hn::StoreU(load_f16(d, from16 + i), d, to + i); }))
      return;
  }
  for (size_t i = 0; i < n; ++i)
    to[i] = load_element<T>(from, dtype, static_cast<std::ptrdiff_t>(i) * stride);
}

// to[i * stride] = from[i] for i < n.
template <typename T>
void narrow_row(const T* from, size_t n, void* to, DType dtype, std::ptrdiff_t stride) {
  if (stride == 1 && dtype_of_v<T> == dtype) {
    if (n != 0) std::memcpy(to, from, n * sizeof(T));
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    const hn::ScalableTag<float> d;
    auto* to16 = static_cast<std::uint16_t*>(to);
    if (stride == 1 && dtype == DType::bf16 &&
        cover(n, hn::Lanes(d), [&](size_t i) { store_bf16(d, hn::LoadU(d, from + i), to16 + i); }))
      return;
    if (stride == 1 && dtype == DType::f16 &&
        cover(n, hn::Lanes(d), [&](size_t i) { store_f16(d, hn::LoadU(d, from + i), to16 + i); }))
      return;
  }
  for (size_t i = 0; i < n; ++i)
    store_element(from[i], to, dtype, static_cast<std::ptrdiff_t>(i) * stride);
}

// Rows of T that can be read in place or have been copied.
template <typename T>
struct Rows {
  const T* data;
  std::ptrdiff_t stride;
};

// Rows [r0, r0 + n) of x, in place where the dtype and the strides allow it. Did not help: copying
// tiles whose rows lie 4 KiB apart, so that they share cache sets (T 1024, d 64, one core of Zen 5:
// in place 1.37 ms, V copied 1.45, K and V 1.52; rows side by side 1.21).
template <typename T>
Rows<T> rows_of(const ConstMatrix& x, DType dtype, size_t r0, size_t n, size_t width, T* scratch) {
  const void* from = advance(x.data, dtype, static_cast<std::ptrdiff_t>(r0) * x.stride_t);
  if (dtype == dtype_of_v<T> && (x.stride_i == 1 || width <= 1))
    return {static_cast<const T*>(from), x.stride_t};
  for (size_t r = 0; r < n; ++r)
    widen_row(advance(from, dtype, static_cast<std::ptrdiff_t>(r) * x.stride_t), dtype, x.stride_i,
              width, scratch + r * width);
  return {scratch, static_cast<std::ptrdiff_t>(width)};
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
