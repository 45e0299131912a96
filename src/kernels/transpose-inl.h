// to[c][r] = from[r][c]: between rows in memory and queries in lanes. Squares whose side is a whole
// vector, then of one 128-bit vector, then single elements. A small call, and one with a bias, is
// bounded by it: 16 x 16 squares of f32 take a third of the instructions of 4 x 4.
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
// A square whose side is one vector wider than 128 bits.
template <size_t N>
struct Square {
  // Stage 1 and 2 transpose within 128-bit blocks, for 16 / sizeof(T) rows: afterwards rows[r + c]
  // holds column c of each block.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE void within_blocks(D d, V* HWY_RESTRICT rows) {
    if constexpr (sizeof(hn::TFromD<D>) == 8) {
      const V r0 = rows[0], r1 = rows[1];
      rows[0] = hn::InterleaveLower(d, r0, r1);
      rows[1] = hn::InterleaveUpper(d, r0, r1);
    } else {
      const hn::Repartition<double, D> dw;
      const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, rows[0], rows[1]));
      const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, rows[2], rows[3]));
      const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, rows[0], rows[1]));
      const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, rows[2], rows[3]));
      rows[0] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
      rows[1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
      rows[2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
      rows[3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
    }
  }

  // Column `c` of every block, from `side` rows on: blocks of the vectors change places.
  template <class D, class V = hn::Vec<D>>
  static HWY_INLINE void across_blocks(D d, const V* HWY_RESTRICT rows, size_t side,
                                       hn::TFromD<D>* HWY_RESTRICT to, std::ptrdiff_t stride) {
    const auto column = [&](size_t block) {
      return to + static_cast<std::ptrdiff_t>(block * side) * stride;
    };
    if constexpr (N * sizeof(hn::TFromD<D>) == 32) {
      hn::StoreU(hn::ConcatLowerLower(d, rows[side], rows[0]), d, column(0));
      hn::StoreU(hn::ConcatUpperUpper(d, rows[side], rows[0]), d, column(1));
    } else {
      const V low0 = hn::ConcatLowerLower(d, rows[2 * side], rows[0]);
      const V low1 = hn::ConcatLowerLower(d, rows[3 * side], rows[side]);
      const V high0 = hn::ConcatUpperUpper(d, rows[2 * side], rows[0]);
      const V high1 = hn::ConcatUpperUpper(d, rows[3 * side], rows[side]);
      hn::StoreU(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(low1), low0), d, column(0));
      hn::StoreU(hn::OddEvenBlocks(low1, hn::SwapAdjacentBlocks(low0)), d, column(1));
      hn::StoreU(hn::OddEvenBlocks(hn::SwapAdjacentBlocks(high1), high0), d, column(2));
      hn::StoreU(hn::OddEvenBlocks(high1, hn::SwapAdjacentBlocks(high0)), d, column(3));
    }
  }

  template <typename T>
  static HWY_INLINE void transpose(const T* from, std::ptrdiff_t from_stride, T* to,
                                   std::ptrdiff_t to_stride) {
    const hn::ScalableTag<T> d;
    constexpr size_t kSide = 16 / sizeof(T);
    hn::Vec<decltype(d)> rows[N];
    HWY_UNROLL(16)
    for (size_t r = 0; r < N; ++r)
      rows[r] = hn::LoadU(d, from + static_cast<std::ptrdiff_t>(r) * from_stride);
    HWY_UNROLL(16)
    for (size_t r = 0; r < N; r += kSide) within_blocks(d, rows + r);
    HWY_UNROLL(4)
    for (size_t c = 0; c < kSide; ++c)
      across_blocks(d, rows + c, kSide, to + static_cast<std::ptrdiff_t>(c) * to_stride, to_stride);
  }
};

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
HWY_NOINLINE void transpose(const T* from, std::ptrdiff_t from_stride, size_t n_rows, size_t n_cols,
                            T* to, std::ptrdiff_t to_stride) {
  constexpr size_t kSide = kSquareSide<T>;
  const auto at = [](auto* base, std::ptrdiff_t stride, size_t row, size_t col) {
    return base + static_cast<std::ptrdiff_t>(row) * stride + col;
  };
  const size_t whole_cols = n_cols / kSide * kSide, whole_rows = n_rows / kSide * kSide;
  for (size_t r = 0; r < whole_rows;) {
    size_t c = 0, height = kSide;
#if HWY_TARGET != HWY_SCALAR
    constexpr size_t N = hn::MaxLanes(hn::ScalableTag<T>());
    if constexpr (N > kSide) {
      if (r + N <= n_rows) {
        height = N;
        for (; c + N <= n_cols; c += N)
          Square<N>::transpose(at(from, from_stride, r, c), from_stride, at(to, to_stride, c, r),
                               to_stride);
      }
    }
#endif
    for (; c < whole_cols; c += kSide)
      for (size_t y = r; y < r + height; y += kSide)
        transpose_square(at(from, from_stride, y, c), from_stride, at(to, to_stride, c, y),
                         to_stride);
    r += height;
  }
  for (size_t r = 0; r < n_rows; ++r)
    for (size_t c = r < whole_rows ? whole_cols : 0; c < n_cols; ++c)
      *at(to, to_stride, c, r) = *at(from, from_stride, r, c);
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
