// The products of a backward tile that sum over its keys or over its queries. Each element is one
// chain of multiply-adds in ascending order that starts at 0 and is then added to what was there,
// so that neither vectors nor tasks change a bit.
#if defined(HEADWISE_KERNELS_BACKWARD_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_BACKWARD_PRODUCTS_INL_H_
#undef HEADWISE_KERNELS_BACKWARD_PRODUCTS_INL_H_
#else
#define HEADWISE_KERNELS_BACKWARD_PRODUCTS_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/backward/flash_backward.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// to[r][0, W vectors) += acc[r], rows `stride` apart.
template <int MR, int W, typename T>
HWY_INLINE void add_sums(const hn::Vec<hn::ScalableTag<T>> (&acc)[MR][W], T* HWY_RESTRICT to,
                         size_t stride) {
  const hn::ScalableTag<T> d;
  HWY_UNROLL(16)
  for (int r = 0; r < MR; ++r) {
    HWY_UNROLL(4)
    for (int x = 0; x < W; ++x) {
      T* at = to + r * stride + x * kVectorLanes<T>;
      hn::Store(hn::Add(hn::Load(d, at), acc[r][x]), d, at);
    }
  }
}

// acc[r] += a[i * step + r * row] * x[i], n times: x has rows of vectors, `stride` apart.
template <int MR, int W, typename T>
HWY_INLINE void add_products(const T* HWY_RESTRICT a, size_t step, size_t row,
                             const T* HWY_RESTRICT x, size_t stride, size_t n,
                             hn::Vec<hn::ScalableTag<T>> (&acc)[MR][W]) {
  const hn::ScalableTag<T> d;
  for (size_t i = 0; i < n; ++i, a += step, x += stride) {
    hn::Vec<hn::ScalableTag<T>> value[W];
    HWY_UNROLL(4)
    for (int w = 0; w < W; ++w) value[w] = hn::Load(d, x + w * kVectorLanes<T>);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const auto factor = hn::Set(d, a[r * row]);
      HWY_UNROLL(4)
      for (int w = 0; w < W; ++w) acc[r][w] = hn::MulAdd(factor, value[w], acc[r][w]);
    }
  }
}

// MR features of dq^T += K^T dS^T over the keys of the runs, for W vectors of queries.
template <int MR, int W, typename T>
HWY_INLINE void key_sum_rows(const T* ds, const T* k, size_t k_stride, const KeyRun* runs,
                             size_t n_runs, T* dq) {
  hn::Vec<hn::ScalableTag<T>> acc[MR][W];
  set_zero<T>(acc);
  for (const KeyRun* run = runs; run != runs + n_runs; ++run)
    add_products<MR, W>(k + run->j * k_stride, k_stride, 1, ds + run->j * kBackwardTile,
                        kBackwardTile, run->n, acc);
  add_sums<MR, W>(acc, dq, kBackwardTile);
}

// dq[i][lane] += sum over j of ds[j][lane] k[j][i], W vectors of lanes.
template <int W, typename T>
HWY_NOINLINE void add_key_sums(const T* ds, const T* k, size_t k_stride, size_t d_head,
                               const KeyRun* runs, size_t n_runs, T* dq) {
  size_t i = 0;
  for (; i + kBlockRows<W> <= d_head; i += kBlockRows<W>)
    key_sum_rows<kBlockRows<W>, W>(ds, k + i, k_stride, runs, n_runs, dq + i * kBackwardTile);
  for (; i + 4 <= d_head; i += 4)
    key_sum_rows<4, W>(ds, k + i, k_stride, runs, n_runs, dq + i * kBackwardTile);
  for (; i < d_head; ++i)
    key_sum_rows<1, W>(ds, k + i, k_stride, runs, n_runs, dq + i * kBackwardTile);
}

// Queries of a tile.
struct LaneRange {
  size_t first, end;
};

// MR keys of c += p x over some queries, for W vectors of features.
template <int MR, int W, typename T>
HWY_INLINE void query_sum_rows(const T* p, const T* x, size_t stride, LaneRange lanes, T* c) {
  hn::Vec<hn::ScalableTag<T>> acc[MR][W];
  set_zero<T>(acc);
  add_products<MR, W>(p + lanes.first, 1, kBackwardTile, x + lanes.first * stride, stride,
                      lanes.end - lanes.first, acc);
  add_sums<MR, W>(acc, c, stride);
}

// c[j][i] += sum over lanes of p[j][lane] x[lane][i] for n keys and W vectors of i; x and c have
// rows `stride` apart.
template <int W, typename T>
HWY_NOINLINE void add_query_sums(const T* p, const T* x, size_t stride, size_t n, LaneRange lanes,
                                 T* c) {
  size_t j = 0;
  for (; j + kBlockRows<W> <= n; j += kBlockRows<W>)
    query_sum_rows<kBlockRows<W>, W>(p + j * kBackwardTile, x, stride, lanes, c + j * stride);
  for (; j + 4 <= n; j += 4)
    query_sum_rows<4, W>(p + j * kBackwardTile, x, stride, lanes, c + j * stride);
  for (; j < n; ++j) query_sum_rows<1, W>(p + j * kBackwardTile, x, stride, lanes, c + j * stride);
}

// body(std::integral_constant of a width, first vector) for vectors [first, end).
template <class Body>
HWY_INLINE void for_each_width(size_t first, size_t end, Body&& body) {
  for (; first < end; first += kWidestNV)
    with_vectors<kWidestNV>(static_cast<int>(std::min<size_t>(kWidestNV, end - first)),
                            [&](auto width) { body(width, first); });
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
