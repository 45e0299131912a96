// to[c][r] = from[r][c]: between rows in memory and queries in lanes. As many rows at a time as a
// vector has lanes: vectors are put together from the 128-bit pieces of rows that lie a square
// apart, so that transposing squares within pieces leaves whole vectors of columns.
#if defined(HEADWISE_KERNELS_TRANSPOSE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_TRANSPOSE_INL_H_
#undef HEADWISE_KERNELS_TRANSPOSE_INL_H_
#else
#define HEADWISE_KERNELS_TRANSPOSE_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of T, `stride` elements apart.
template <typename T>
struct Strided {
  T* data;
  std::ptrdiff_t stride;
  HWY_INLINE T* row(size_t r) const { return data + static_cast<std::ptrdiff_t>(r) * stride; }
};

// Rows and columns of a square: the elements of 128 bits, or 1 where vectors have one lane.
template <typename T>
inline constexpr size_t kSquareSide = HWY_TARGET == HWY_SCALAR ? 1 : 16 / sizeof(T);

// Piece b is row(kSquareSide * b) from column c on.
template <class D, class Row>
HWY_INLINE hn::Vec<D> load_pieces(D d, const Row& row, size_t first, size_t c) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (hn::MaxLanes(D()) > kSquareSide<hn::TFromD<D>>) {
    const hn::Half<D> half;
    const auto low = load_pieces(half, row, first, c);
    return hn::Combine(d, load_pieces(half, row, first + hn::MaxLanes(half), c), low);
  } else  // NOLINT(readability-else-after-return)
#endif
    return hn::LoadU(d, row(first) + c);
}

// Transposes the squares within 128 bits. Vec<D> v[kSquareSide].
template <class D>
HWY_INLINE void transpose_pieces([[maybe_unused]] D d, [[maybe_unused]] hn::Vec<D>* v) {
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const auto low = hn::InterleaveLower(d, v[0], v[1]);
    v[1] = hn::InterleaveUpper(d, v[0], v[1]);
    v[0] = low;
  } else {
    const hn::Repartition<double, D> dw;
    const auto low01 = hn::BitCast(dw, hn::InterleaveLower(d, v[0], v[1]));
    const auto low23 = hn::BitCast(dw, hn::InterleaveLower(d, v[2], v[3]));
    const auto high01 = hn::BitCast(dw, hn::InterleaveUpper(d, v[0], v[1]));
    const auto high23 = hn::BitCast(dw, hn::InterleaveUpper(d, v[2], v[3]));
    v[0] = hn::BitCast(d, hn::InterleaveLower(dw, low01, low23));
    v[1] = hn::BitCast(d, hn::InterleaveUpper(dw, low01, low23));
    v[2] = hn::BitCast(d, hn::InterleaveLower(dw, high01, high23));
    v[3] = hn::BitCast(d, hn::InterleaveUpper(dw, high01, high23));
  }
#endif
}

// Columns [c, c + kSquareSide) of the Lanes(d) rows row(0), row(1), ...: vectors v.
template <class D, class Row>
HWY_INLINE void load_transposed(D d, const Row& row, size_t c, hn::Vec<D>* v) {
  HWY_UNROLL(4)
  for (size_t j = 0; j < kSquareSide<hn::TFromD<D>>; ++j) v[j] = load_pieces(d, row, j, c);
  transpose_pieces(d, v);
}

// The Lanes(d) rows from r on, as long as there are so many. Returns the first that is left.
// kPadded: rows of `from` may be read up to a whole square.
template <bool kPadded, class D, typename T>
HWY_INLINE size_t transpose_strips(D d, Strided<const T> from, size_t r, size_t n_rows,
                                   size_t n_cols, Strided<T> to) {
  constexpr size_t kSide = kSquareSide<T>, N = hn::MaxLanes(D());
  for (; r + N <= n_rows; r += N) {
    size_t c = 0;
    for (; c + kSide <= n_cols || (kPadded && c < n_cols); c += kSide) {
      hn::Vec<D> v[kSide];
      load_transposed(
          d, [=](size_t i) { return from.row(r + i); }, c, v);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kSide; ++j)
        if (!kPadded || c + j < n_cols) hn::StoreU(v[j], d, to.row(c + j) + r);
    }
    for (; c < n_cols; ++c)
      for (size_t i = r; i < r + N; ++i) to.row(c)[i] = from.row(i)[c];
  }
  return r;
}

template <bool kPadded = false, typename T>
void transpose(Strided<const T> from, size_t n_rows, size_t n_cols, Strided<T> to) {
  constexpr size_t kSide = kSquareSide<T>;
  const hn::ScalableTag<T> d;
  size_t r = transpose_strips<kPadded>(d, from, 0, n_rows, n_cols, to);
  if constexpr (hn::MaxLanes(d) > 2 * kSide)
    r = transpose_strips<kPadded>(hn::CappedTag<T, 2 * kSide>(), from, r, n_rows, n_cols, to);
  if constexpr (hn::MaxLanes(d) > kSide)
    r = transpose_strips<kPadded>(hn::CappedTag<T, kSide>(), from, r, n_rows, n_cols, to);
  for (; r < n_rows; ++r)
    for (size_t c = 0; c < n_cols; ++c) to.row(c)[r] = from.row(r)[c];
}

// Lanes into rows: to[lane][r] = from[r][lane] for the first n_lanes of the `lanes` of `from`, a
// multiple of a vector's.
template <typename T>
void lanes_to_rows(const T* from, size_t lanes, size_t n_rows, size_t n_lanes, Strided<T> to) {
  transpose<true>(Strided<const T>{from, static_cast<std::ptrdiff_t>(lanes)}, n_rows, n_lanes, to);
}

// Rows into lanes: to[c][lane] = change(from[lane][c]) for all `lanes` of `to`, a multiple of a
// vector's; those past the last row repeat it. `change` takes vectors of any width.
template <typename T, class Change>
void rows_to_lanes(Strided<const T> from, size_t n_rows, size_t n_cols, T* to, size_t lanes,
                   Change&& change) {
  const hn::ScalableTag<T> d;
  constexpr size_t kSide = kSquareSide<T>, N = hn::MaxLanes(d);
  for (size_t r = 0; r < lanes; r += N) {
    const auto row = [=](size_t i) { return from.row(std::min(r + i, n_rows - 1)); };
    size_t c = 0;
    for (; c + kSide <= n_cols; c += kSide) {
      hn::Vec<hn::ScalableTag<T>> v[kSide];
      load_transposed(d, row, c, v);
      HWY_UNROLL(4)
      for (size_t j = 0; j < kSide; ++j) hn::Store(change(v[j]), d, to + (c + j) * lanes + r);
    }
    for (; c < n_cols; ++c) {
      HWY_ALIGN T column[N];
      for (size_t i = 0; i < N; ++i) column[i] = row(i)[c];
      hn::Store(change(hn::Load(d, column)), d, to + c * lanes + r);
    }
  }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
