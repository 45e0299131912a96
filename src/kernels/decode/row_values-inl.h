// o += P V for a few queries, d_v in lanes: each value is loaded once for all queries, from where
// it lies. Each output of a tile is one chain of multiply-adds in ascending order over its keys,
// which starts at 0 (see value_tile-inl.h).
#if defined(HEADWISE_KERNELS_DECODE_ROW_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_DECODE_ROW_VALUES_INL_H_
#undef HEADWISE_KERNELS_DECODE_ROW_VALUES_INL_H_
#else
#define HEADWISE_KERNELS_DECODE_ROW_VALUES_INL_H_
#endif

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/decode/row_scores-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Neighbouring keys of a tile that some query sees. Others are not read: their values may be
// anything.
struct Span {
  std::uint32_t j, n;
};
struct Spans {
  Span at[kTileK / 2];
  size_t n = 0;

  explicit Spans(std::uint64_t visible) {
    for (int j = 0; visible != 0;) {
      const int gap = std::countr_zero(visible);
      visible >>= gap;
      j += gap;
      const int length = std::countr_one(visible);
      at[n++] = {static_cast<std::uint32_t>(j), static_cast<std::uint32_t>(length)};
      visible = length == 64 ? 0 : visible >> length;
      j += length;
    }
  }
};

// W vectors of RB rows of o, which are o_stride apart; rows of p are kLeafK apart. n_last: elements
// of the last vector that V has.
template <int RB, int W, typename T, typename E>
HWY_INLINE void value_columns(const T* HWY_RESTRICT p, Rows<E> v, const Spans& spans, size_t n_last,
                              const Ahead* ahead, size_t i0, T* HWY_RESTRICT o, size_t o_stride) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<hn::ScalableTag<T>>;
  constexpr size_t N = kVectorLanes<T>;
  V acc[RB][W];
  HWY_UNROLL(4)
  for (int r = 0; r < RB; ++r) {
    HWY_UNROLL(8)
    for (int x = 0; x < W; ++x) acc[r][x] = hn::Zero(d);
  }
  for (const Span *span = spans.at, *end = span + spans.n; span != end; ++span) {
    const E* row = v.data + static_cast<std::ptrdiff_t>(span->j) * v.stride;
    const T* weight = p + span->j;
    for (size_t j = 0; j < span->n; ++j, row += v.stride, ++weight) {
      if (ahead != nullptr) ahead->fetch(span->j + j, i0 * sizeof(E), W * N * sizeof(E));
      V value[W];
      HWY_UNROLL(8)
      for (int x = 0; x + 1 < W; ++x) value[x] = load(d, row + x * N);
      value[W - 1] =
          n_last == N ? load(d, row + (W - 1) * N) : load_first(d, row + (W - 1) * N, n_last);
      HWY_UNROLL(4)
      for (int r = 0; r < RB; ++r) {
        const V factor = hn::Set(d, weight[static_cast<size_t>(r) * kLeafK]);
        HWY_UNROLL(8)
        for (int x = 0; x < W; ++x) acc[r][x] = hn::MulAdd(factor, value[x], acc[r][x]);
      }
    }
  }
  HWY_UNROLL(4)
  for (int r = 0; r < RB; ++r) {
    HWY_UNROLL(8)
    for (int x = 0; x < W; ++x) {
      T* at = o + static_cast<size_t>(r) * o_stride + static_cast<size_t>(x) * N;
      hn::Store(hn::Add(hn::Load(d, at), acc[r][x]), d, at);
    }
  }
}

// All vectors of RB rows in steps of W and, at the end, fewer. `i0`: where v's columns begin, for
// `ahead`.
template <int RB, int W, typename T, typename E>
HWY_INLINE void value_row_block(const T* p, Rows<E> v, const Spans& spans, size_t width,
                                const Ahead* ahead, size_t i0, T* o, size_t o_stride) {
  constexpr size_t N = kVectorLanes<T>;
  size_t i = 0;
  for (; i + W * N <= width; i += W * N)
    value_columns<RB, W>(p, Rows<E>{v.data + i, v.stride}, spans, N, ahead, i0 + i, o + i,
                         o_stride);
  if (i < width)
    with_vectors<W>(static_cast<int>((width - i + N - 1) / N), [&](auto rest) {
      constexpr int kRest = decltype(rest)::value;
      value_columns<RB, kRest>(p, Rows<E>{v.data + i, v.stride}, spans, width - i - (kRest - 1) * N,
                               ahead, i0 + i, o + i, o_stride);
    });
}

// o[r] += sum of p[r][j] v[j] over the keys of the spans. All rows of a strip of columns before the
// next, while it is in L1.
template <typename T, typename E>
HWY_NOINLINE void value_row_tile(const T* p, size_t n_rows, Rows<E> v, const Spans& spans,
                                 size_t d_v, const Ahead& ahead, T* o, size_t o_stride) {
  constexpr int kColumns = 2 * kRowBlock;
  constexpr size_t kStrip = kColumns * kVectorLanes<T>;
  for (size_t i = 0; i < d_v; i += kStrip)
    for (size_t r = 0; r < n_rows; r += kRowBlock)
      with_vectors<kRowBlock>(
          static_cast<int>(std::min<size_t>(n_rows - r, kRowBlock)), [&](auto rows) {
            constexpr int RB = decltype(rows)::value;
            constexpr int W = 2 * RB <= kRowBlock || RB == 1 ? kColumns : kColumns / 2;
            value_row_block<RB, W>(p + r * kLeafK, Rows<E>{v.data + i, v.stride}, spans,
                                   std::min(kStrip, d_v - i),
                                   r == 0 && ahead.rows != nullptr ? &ahead : nullptr, i,
                                   o + r * o_stride + i, o_stride);
          });
}

// Which of these keys have a NaN or inf among their values.
template <typename T, typename E>
std::uint64_t special_keys(std::uint64_t keys, Rows<E> v, size_t d_v) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>;
  std::uint64_t special = 0;
  for (; keys != 0; keys &= keys - 1) {
    const int j = std::countr_zero(keys);
    const E* row = v.data + j * v.stride;
    auto bits = hn::Zero(d);
    for (size_t i = 0; i < d_v; i += N) {
      const auto value = i + N <= d_v ? load(d, row + i) : load_first(d, row + i, d_v - i);
      bits = hn::Or(bits, hn::Sub(value, value));  // 0, or the bits of a NaN
    }
    if (!hn::AllTrue(d, hn::Eq(bits, hn::Zero(d)))) special |= std::uint64_t{1} << j;
  }
  return special;
}

// o += p v[j] for one row, element by element.
template <typename T, typename E>
void add_value_row(T p, const E* row, size_t d_v, T* o) {
  for (size_t i = 0; i < d_v; ++i)
    o[i] += p * load_element<T>(row, dtype_of_v<E>, static_cast<std::ptrdiff_t>(i));
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
