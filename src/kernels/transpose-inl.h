// to[c][r] = from[r][c]: between rows in memory and queries in lanes. Squares of one 128-bit vector
// on every instruction set: it is a hundredth of the attention around it.
#if defined(HEADWISE_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_TRANSPOSE_INL_H_
#undef HEADWISE_KERNELS_TRANSPOSE_INL_H_
#else
#define HEADWISE_KERNELS_TRANSPOSE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
HWY_INLINE void transpose_square(const float* from, std::ptrdiff_t from_stride, float* to,
                                 std::ptrdiff_t to_stride) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> dw;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  const auto r2 = hn::LoadU(d, from + 2 * from_stride), r3 = hn::LoadU(d, from + 3 * from_stride);
  const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, r0, r1));
  const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, r0, r1));
  const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23)), d, to + 3 * to_stride);
}

HWY_INLINE void transpose_square(const double* from, std::ptrdiff_t from_stride, double* to,
                                 std::ptrdiff_t to_stride) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + from_stride);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + to_stride);
}

template <typename T>
inline constexpr size_t kSquareSide = 16 / sizeof(T);
#else
template <typename T>
HWY_INLINE void transpose_square(const T* from, std::ptrdiff_t, T* to, std::ptrdiff_t) {
  *to = *from;
}
template <typename T>
inline constexpr size_t kSquareSide = 1;
#endif

template <typename T>
void transpose(const T* from, std::ptrdiff_t from_stride, size_t n_rows, size_t n_cols, T* to,
               std::ptrdiff_t to_stride) {
  constexpr size_t kSide = kSquareSide<T>;
  const auto at = [](auto* base, std::ptrdiff_t stride, size_t row, size_t col) {
    return base + static_cast<std::ptrdiff_t>(row) * stride + col;
  };
  const size_t whole_cols = n_cols / kSide * kSide;
  size_t r = 0;
  for (; r + kSide <= n_rows; r += kSide)
    for (size_t c = 0; c < whole_cols; c += kSide)
      transpose_square(at(from, from_stride, r, c), from_stride, at(to, to_stride, c, r),
                       to_stride);
  const size_t whole_rows = r;
  for (r = 0; r < n_rows; ++r)
    for (size_t c = r < whole_rows ? whole_cols : 0; c < n_cols; ++c)
      *at(to, to_stride, c, r) = *at(from, from_stride, r, c);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
