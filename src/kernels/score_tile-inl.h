// Scores of a tile, S^T = K Q^T: kLanes queries in the lanes of NV vectors, one key a row. K is
// read from its natural rows, one broadcast element at a time, Q^T has been packed once per block.
// Each score is one chain of multiply-adds in ascending order over d_head.
#if defined(HEADWISE_KERNELS_SCORE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_SCORE_TILE_INL_H_
#undef HEADWISE_KERNELS_SCORE_TILE_INL_H_
#else
#define HEADWISE_KERNELS_SCORE_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/convert-inl.h"
#include "kernels/tiles.h"
#include "kernels/transpose-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// A register block is kBlockRows<NV> rows of NV accumulators, beside NV vectors and a broadcast: 29
// of 32 registers for 6 x 4, 15 of 16 for 6 x 2. Fewer vectors for the last few queries get more
// rows, or the latency of their multiply-adds would show.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kWidestNV = 4, kAccumulators = 24;
#else
inline constexpr int kWidestNV = 2, kAccumulators = 12;
#endif
template <int NV>
inline constexpr int kBlockRows = NV == 1 && kAccumulators > 16 ? 16 : kAccumulators / NV;

template <typename T>
inline constexpr size_t kVectorLanes = hn::MaxLanes(hn::ScalableTag<T>());
template <typename T, int NV>
inline constexpr size_t kBlockLanes = NV* kVectorLanes<T>;

template <typename T>
inline constexpr T kNegInf = -std::numeric_limits<T>::infinity();

// The tile's place: queries [t0, t0 + n_lanes), keys [j0, j0 + n).
struct TilePlace {
  size_t t0, n_lanes, j0, n;
};

// Keys of a tile that the same vectors may skip.
struct KeyRun {
  size_t j, n;  // keys of the tile
  int skipped;  // leading vectors of queries that see none of them
};
inline constexpr size_t kRunKeys = 16;
inline constexpr size_t kMaxRuns = kTileK / kRunKeys;

// body(std::integral_constant<int, n>) for a run-time n in [1, NV].
template <int NV, class Body>
HWY_INLINE void with_vectors(int n, Body&& body) {
  if constexpr (NV > 1) {
    if (n < NV) {
      with_vectors<NV - 1>(n, body);
      return;
    }
  }
  body(std::integral_constant<int, NV>());
}

// The larger of x and m, and m when x is NaN.
template <class V>
HWY_INLINE V max_unless_nan(V x, V m) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SSE4
  return hn::Max(x, m);  // MAXPS gives its second operand
#else
  return hn::IfThenElse(hn::Gt(x, m), x, m);
#endif
}

// A row max without its -inf: s - m must not be -inf - -inf, and exp(-inf - 0) is the 0 that is
// meant.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V finite_base(D d, V m) {
  return hn::IfThenZeroElse(hn::Eq(m, hn::Set(d, kNegInf<hn::TFromD<D>>)), m);
}

// All sums of a register block.
template <typename T, int MR, int NV>
HWY_INLINE void set_zero(hn::Vec<hn::ScalableTag<T>> (&acc)[MR][NV]) {
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) acc[r][x] = hn::Zero(hn::ScalableTag<T>());
  }
}

// Rows of scores to s, and the largest of each lane into tile_max.
template <int MR, int NV, typename T>
HWY_INLINE void store_scores(const hn::Vec<hn::ScalableTag<T>> (&scores)[MR][NV], size_t lanes,
                             T* HWY_RESTRICT s, T* HWY_RESTRICT tile_max) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>;
  HWY_UNROLL(4)
  for (int x = 0; x < NV; ++x) {
    auto largest = hn::Load(d, tile_max + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      hn::Store(scores[r][x], d, s + r * lanes + x * N);
      largest = max_unless_nan(scores[r][x], largest);
    }
    hn::Store(largest, d, tile_max + x * N);
  }
}

// MR keys from k: their rows of s, and the largest score of each lane into tile_max. NV vectors of
// blocks that are `lanes` wide.
template <int MR, int NV, typename T>
HWY_INLINE void score_rows(const T* HWY_RESTRICT qt, Rows<T> k, size_t d_head, size_t lanes,
                           T* HWY_RESTRICT s, T* HWY_RESTRICT tile_max) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>;
  hn::Vec<hn::ScalableTag<T>> acc[MR][NV];
  set_zero<T>(acc);
  for (size_t i = 0; i < d_head; ++i) {
    hn::Vec<hn::ScalableTag<T>> q[NV];
    HWY_UNROLL(4)
    for (int x = 0; x < NV; ++x) q[x] = hn::Load(d, qt + i * lanes + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const auto key = hn::Set(d, k.data[r * k.stride + static_cast<std::ptrdiff_t>(i)]);
      HWY_UNROLL(4)
      for (int x = 0; x < NV; ++x) acc[r][x] = hn::MulAdd(key, q[x], acc[r][x]);
    }
  }
  store_scores(acc, lanes, s, tile_max);
}

// n rows of s; the largest score of each lane is added to tile_max.
template <int NV, typename T>
HWY_NOINLINE void score_tile(const T* qt, Rows<T> k, size_t n, size_t d_head, size_t lanes, T* s,
                             T* tile_max) {
  size_t j = 0;
  const auto at = [&k](size_t row) {
    return Rows<T>{k.data + static_cast<std::ptrdiff_t>(row) * k.stride, k.stride};
  };
  for (; j + kBlockRows<NV> <= n; j += kBlockRows<NV>)
    score_rows<kBlockRows<NV>, NV>(qt, at(j), d_head, lanes, s + j * lanes, tile_max);
  for (; j + 4 <= n; j += 4) score_rows<4, NV>(qt, at(j), d_head, lanes, s + j * lanes, tile_max);
  for (; j < n; ++j) score_rows<1, NV>(qt, at(j), d_head, lanes, s + j * lanes, tile_max);
}

// Times `scale`, in two parts: rounded to f32, it would shift every score by up to 6e-8 of itself.
template <typename T>
class Scale {
 public:
  using V = hn::Vec<hn::ScalableTag<T>>;

  explicit Scale(double scale)
      : high_(hn::Set(hn::ScalableTag<T>(), static_cast<T>(scale))),
        low_(hn::Set(hn::ScalableTag<T>(),
                     static_cast<T>(scale - static_cast<double>(static_cast<T>(scale))))) {}
  HWY_INLINE V operator()(V x) const { return hn::MulAdd(x, high_, hn::Mul(x, low_)); }

 private:
  V high_, low_;
};

// x *= scale for n values, a multiple of a vector's.
template <typename T>
void scale_values(double scale, size_t n, T* x) {
  const hn::ScalableTag<T> d;
  const Scale<T> scaled(scale);
  for (T* end = x + n; x != end; x += kVectorLanes<T>) hn::Store(scaled(hn::Load(d, x)), d, x);
}

// qt[i][lane] = scale * q[t0 + lane][i]; lanes from n_lanes on repeat the last query. `rows` holds
// kLanes * kTileK.
template <int NV, typename T>
void pack_queries(const ConstMatrix& q, DType dtype, double scale, size_t t0, size_t n_lanes,
                  size_t d_head, T* rows, T* qt) {
  constexpr size_t kLanes = kBlockLanes<T, NV>;
  const Scale<T> scaled(scale);
  for (size_t i = 0; i < d_head; i += kTileK) {
    const size_t width = std::min(kTileK, d_head - i);
    const ConstMatrix columns{advance(q.data, dtype, static_cast<std::ptrdiff_t>(i) * q.stride_i),
                              q.stride_t, q.stride_i};
    const Rows<T> part = rows_of(columns, dtype, t0, n_lanes, width, rows);
    rows_to_lanes(Strided<const T>{part.data, part.stride}, n_lanes, width, qt + i * kLanes, kLanes,
                  scaled);
  }
}

// Calls body(std::integral_constant<int, NV>, t0, n_lanes) for blocks of the queries [t0, t0 +
// n_q). The last few don't pay for lanes that they leave empty.
template <typename T, class Body>
HWY_INLINE void for_each_block(size_t t0, size_t n_q, Body&& body) {
  const size_t end = t0 + n_q;
  while (t0 != end) {
    const size_t left = end - t0;
    if (left <= kBlockLanes<T, 1>) {
      body(std::integral_constant<int, 1>(), t0, left);
      return;
    }
    if (kWidestNV > 2 && left <= kBlockLanes<T, 3>) {  // 2 vectors, and 1 for the rest
      const size_t n = std::min(left, kBlockLanes<T, 2>);
      body(std::integral_constant<int, 2>(), t0, n);
      t0 += n;
      continue;
    }
    const size_t n = std::min(left, kBlockLanes<T, kWidestNV>);
    body(std::integral_constant<int, kWidestNV>(), t0, n);
    t0 += n;
  }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
