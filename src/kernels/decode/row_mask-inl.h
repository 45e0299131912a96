// Scores of a few queries with what diagonals and masks make of them: a mask is read row by row as
// its owner stored it, 64 keys of a row become one word of bits.
#if defined(HEADWISE_KERNELS_DECODE_ROW_MASK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_DECODE_ROW_MASK_INL_H_
#undef HEADWISE_KERNELS_DECODE_ROW_MASK_INL_H_
#else
#define HEADWISE_KERNELS_DECODE_ROW_MASK_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/philox.h"
#include "hwy/highway.h"
#include "kernels/decode/row_scores-inl.h"
#include "kernels/mask_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Queries as rows, of one head or of several that share their keys.
struct QueryRow {
  const void* q;            // [d_head]
  std::ptrdiff_t stride_i;  // of q
  const ScoreTerms* terms;
  const Dropout* dropout;
  size_t t;
};

template <typename T>
struct QueryRows {
  QueryRow* at;  // [n]
  size_t n;
  T* q;          // [n][padded d_head], scaled
  T* k_rows;     // [kTileK][d_head] widened
  T* bias;       // [n + 1][kTileK] of one tile
  bool* biased;  // [n] is it filled?
};

// Frame: runtime::ScratchFrame, or ScratchSize to learn how much it takes.
template <typename T, class Frame>
QueryRows<T> take_query_rows(size_t n, size_t d_head, Frame& frame) {
  QueryRows<T> rows;
  rows.n = n;
  rows.at = frame.template take<QueryRow>(n);
  rows.q = frame.template take<T>(n * padded<T>(d_head));
  rows.k_rows = frame.template take<T>(kTileK * d_head);
  rows.bias = frame.template take<T>((n + 1) * kTileK);
  rows.biased = frame.template take<bool>(n);
  return rows;
}

// Scales the queries and pads them with 0.
template <typename T>
void pack(const QueryRows<T>& rows, DType dtype, size_t d_head) {
  for (size_t r = 0; r < rows.n; ++r) {
    T* to = rows.q + r * padded<T>(d_head);
    widen_row(rows.at[r].q, dtype, rows.at[r].stride_i, d_head, to);
    scale_values(rows.at[r].terms->scale, padded<T>(d_head), to);
    std::fill(to + d_head, to + padded<T>(d_head), T{0});
  }
}

// What diagonal and masks say about the keys [j0, j0 + n) of one row. Returns the hidden ones and
// whether `bias` [kTileK] has been filled; `second` is working memory.
struct RowMask {
  std::uint64_t hidden = 0;
  bool biased = false;
};

template <typename T>
RowMask mask_row(const ScoreTerms& terms, size_t t, size_t j0, size_t n, T* bias, T* second) {
  using Kind = MaskMatrix::Kind;
  RowMask row;
  n = terms.n_maskable <= j0 ? 0 : std::min(n, terms.n_maskable - j0);
  if (n == 0) return row;
  const size_t end = diagonal_end(terms, t);
  if (end < j0 + n) row.hidden = low_bits(n) & ~low_bits(end <= j0 ? 0 : end - j0);
  for (const MaskMatrix& mask : terms.masks) {
    if (mask.kind == Kind::keep || mask.kind == Kind::ignore)
      row.hidden |= hidden_by_boolean(mask, t, j0, n);
    row.biased |= mask.kind == Kind::bias;
  }
  if (row.biased) row.hidden |= bias_row(terms, t, j0, n, bias, second);
  return row;
}

// s = hidden ? -inf : s + bias for a tile's keys. Selected, never multiplied: what a hidden key
// holds does not matter.
template <typename T>
void apply_mask_row(std::uint64_t hidden, const T* bias, T* s) {
  using U = hwy::MakeUnsigned<T>;
  const hn::ScalableTag<T> d;
  const hn::ScalableTag<U> du;
  constexpr size_t N = kVectorLanes<T>;
  HWY_ALIGN U bits[N];
  for (size_t x = 0; x < N; ++x) bits[x] = U{1} << x;
  for (size_t j = 0; j < kTileK; j += N) {
    auto score = hn::Load(d, s + j);
    if (bias != nullptr) score = hn::Add(score, hn::Load(d, bias + j));
    const auto is_hidden =
        hn::TestBit(hn::Set(du, static_cast<U>(hidden >> j)), hn::Load(du, bits));
    score = hn::IfThenElse(hn::RebindMask(d, is_hidden), hn::Set(d, kNegInf<T>), score);
    hn::Store(score, d, s + j);
  }
}

// Rows of K or V where they lie, in their own dtype E, or, for E = T, wherever rows_of puts them.
template <typename T, typename E>
HWY_INLINE Rows<E> tile_of(const ConstMatrix& x, DType dtype, size_t j0, size_t n, size_t width,
                           T* scratch) {
  if constexpr (std::is_same_v<T, E>) {
    return rows_of(x, dtype, j0, n, width, scratch);
  } else {
    (void)n, (void)width, (void)scratch;
    return {static_cast<const E*>(x.data) + static_cast<std::ptrdiff_t>(j0) * x.stride_t,
            x.stride_t};
  }
}

HWY_INLINE bool in_place(const ConstMatrix& x, size_t width) {
  return x.stride_i == 1 || width <= 1;
}

// body(T(), E()) for the type of the arithmetic and of the elements that tile_of may return.
template <class Body>
HWY_INLINE void with_element_type(DType dtype, bool all_in_place, Body&& body) {
  if (dtype == DType::f64)
    body(double(), double());
  else if (dtype == DType::f32 || !all_in_place)
    body(float(), float());
  else if (dtype == DType::bf16)
    body(float(), bfloat16());
  else
    body(float(), float16());
}

// s[r][j] for the n keys of the tile at j0, -inf for hidden keys and behind the last one; hidden[r]
// gets the bits of the hidden ones. Rows of s are kLeafK apart.
template <typename T, typename E>
void masked_scores(const QueryRows<T>& rows, const ConstMatrix& k, DType dtype, size_t d_head,
                   size_t j0, size_t n, const Ahead& ahead, std::uint64_t* hidden, T* s) {
  std::uint64_t visible = 0;
  for (size_t r = 0; r < rows.n; ++r) {
    const RowMask mask = mask_row(*rows.at[r].terms, rows.at[r].t, j0, n, rows.bias + r * kTileK,
                                  rows.bias + rows.n * kTileK);
    hidden[r] = mask.hidden;
    rows.biased[r] = mask.biased;
    visible |= ~mask.hidden & low_bits(n);
  }
  if (visible != 0)
    score_row_tile(rows.q, rows.n, tile_of<T, E>(k, dtype, j0, n, d_head, rows.k_rows), n, visible,
                   d_head, ahead, s);
  for (size_t r = 0; r < rows.n; ++r)
    if (n < kTileK || rows.biased[r] || hidden[r] != 0)
      apply_mask_row(hidden[r] | ~low_bits(n), rows.biased[r] ? rows.bias + r * kTileK : nullptr,
                     s + r * kLeafK);
}

// p[j] *= the dropout factor of the row's key j0 + j, j < n.
template <typename T>
void drop_row(const QueryRow& row, size_t j0, size_t n, T* p) {
  const Dropout& dropout = *row.dropout;
  if (!(dropout.p > 0)) return;
  const T kept = static_cast<T>(1.0 / (1.0 - dropout.p));
  for (size_t j = 0; j < n; ++j)
    p[j] *= core::dropout_keeps(dropout.p, dropout.seed, dropout.head, row.t, j0 + j) ? kept : T{0};
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
