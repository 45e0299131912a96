// O^T += V^T P^T for a tile: V is read from its natural rows, P^T is the score tile itself. Each
// output of a tile is one chain of multiply-adds in ascending order over its keys, which starts at
// 0: a chain that went on from tile to tile would round every term at the size of the whole sum
// (2.5e-6 of the mean of 0, 1, ... 69999, now below 1e-6).
#if defined(HEADWISE_KERNELS_VALUE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEADWISE_KERNELS_VALUE_TILE_INL_H_
#undef HEADWISE_KERNELS_VALUE_TILE_INL_H_
#else
#define HEADWISE_KERNELS_VALUE_TILE_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/score_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace headwise::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// What becomes of o: the sum of a leaf's first tile is its o, later ones are added to it, after it
// has been multiplied by decay where that is not null.
template <typename T>
struct Update {
  bool first;
  const T* decay;  // [kLanes]
};

// A tile's sums into MR features of o.
template <int MR, int NV, typename T>
HWY_INLINE void store_sums(const hn::Vec<hn::ScalableTag<T>> (&acc)[MR][NV], Update<T> update,
                           T* HWY_RESTRICT o) {
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  HWY_UNROLL(4)
  for (int x = 0; x < NV; ++x) {
    const auto factor =
        update.decay != nullptr ? hn::Load(d, update.decay + x * N) : hn::Set(d, T{1});
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      T* at = o + r * kLanes + x * N;
      const auto sum = update.first ? acc[r][x] : hn::MulAdd(hn::Load(d, at), factor, acc[r][x]);
      hn::Store(sum, d, at);
    }
  }
}

// acc += p v over the keys of one run, in its last W vectors of queries or fewer. Functions, not
// lambdas: only those are always inlined, without which acc is no longer in registers.
template <int W, int MR, int NV, typename T>
HWY_INLINE void add_run(const T* HWY_RESTRICT p, Rows<T> v, const KeyRun& run,
                        hn::Vec<hn::ScalableTag<T>> (&acc)[MR][NV]) {
  if constexpr (W > 1) {
    if (NV - run.skipped < W) {
      add_run<W - 1>(p, v, run, acc);
      return;
    }
  }
  const hn::ScalableTag<T> d;
  constexpr size_t N = kVectorLanes<T>, kLanes = NV * N;
  const T* row = v.data + static_cast<std::ptrdiff_t>(run.j) * v.stride;
  const T* weights = p + run.j * kLanes;
  for (size_t j = 0; j < run.n; ++j, row += v.stride, weights += kLanes) {
    hn::Vec<hn::ScalableTag<T>> weight[NV];
    HWY_UNROLL(4)
    for (int x = NV - W; x < NV; ++x) weight[x] = hn::Load(d, weights + x * N);
    HWY_UNROLL(16)
    for (int r = 0; r < MR; ++r) {
      const auto value = hn::Set(d, row[r]);
      HWY_UNROLL(4)
      for (int x = NV - W; x < NV; ++x) acc[r][x] = hn::MulAdd(value, weight[x], acc[r][x]);
    }
  }
}

// MR features of o and the sum of p v over the keys of the runs.
template <int MR, int NV, typename T>
HWY_INLINE void value_rows(const T* HWY_RESTRICT p, Rows<T> v, const KeyRun* runs, size_t n_runs,
                           Update<T> update, T* HWY_RESTRICT o) {
  hn::Vec<hn::ScalableTag<T>> acc[MR][NV];
  set_zero<T>(acc);
  for (const KeyRun* run = runs; run != runs + n_runs; ++run) add_run<NV>(p, v, *run, acc);
  store_sums(acc, update, o);
}

template <int NV, typename T>
HWY_NOINLINE void value_tile(const T* p, Rows<T> v, const KeyRun* runs, size_t n_runs, size_t d_v,
                             Update<T> update, T* o) {
  constexpr size_t kLanes = kBlockLanes<T, NV>;
  size_t i = 0;
  const auto at = [&v](size_t column) { return Rows<T>{v.data + column, v.stride}; };
  for (; i + kBlockRows<NV> <= d_v; i += kBlockRows<NV>)
    value_rows<kBlockRows<NV>, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
  for (; i + 4 <= d_v; i += 4) value_rows<4, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
  for (; i < d_v; ++i) value_rows<1, NV>(p, at(i), runs, n_runs, update, o + i * kLanes);
}

template <typename T>
bool all_finite(Rows<T> x, size_t n, size_t width) {
  const hn::ScalableTag<T> d;
  const size_t N = hn::Lanes(d);
  auto bits = hn::Zero(d);
  bool rest = true;
  for (size_t j = 0; j < n; ++j) {
    const T* row = x.data + static_cast<std::ptrdiff_t>(j) * x.stride;
    size_t i = 0;
    for (; i + N <= width; i += N) {
      const auto value = hn::LoadU(d, row + i);
      bits = hn::Or(bits, hn::Sub(value, value));  // 0, or the bits of a NaN
    }
    for (; i < width; ++i) rest &= std::isfinite(row[i]);
  }
  return hn::AllTrue(d, hn::Eq(bits, hn::Zero(d))) && rest;
}

// Where a tile hides keys, a NaN or inf of V must not meet their p = 0: `copy` gets V with 0 in
// place of such values, and they are added to the queries that see them one by one.
template <typename T>
Rows<T> without_special_values(Rows<T> v, size_t n, size_t d_v, T* copy) {
  for (size_t j = 0; j < n; ++j)
    for (size_t i = 0; i < d_v; ++i) {
      const T x =
          v.data[static_cast<std::ptrdiff_t>(j) * v.stride + static_cast<std::ptrdiff_t>(i)];
      copy[j * d_v + i] = std::isfinite(x) ? x : T{0};
    }
  return {copy, static_cast<std::ptrdiff_t>(d_v)};
}

template <int NV, typename T>
void add_special_values(const T* p, Rows<T> v, size_t n, size_t d_v, const std::uint64_t* hidden,
                        T* o) {
  constexpr size_t kLanes = kBlockLanes<T, NV>;
  for (size_t j = 0; j < n; ++j)
    for (size_t i = 0; i < d_v; ++i) {
      const T x =
          v.data[static_cast<std::ptrdiff_t>(j) * v.stride + static_cast<std::ptrdiff_t>(i)];
      if (std::isfinite(x)) continue;
      for (size_t r = 0; r < kLanes; ++r)
        if ((hidden[r] >> j & 1) == 0) o[i * kLanes + r] += p[j * kLanes + r] * x;
    }
}

}  // namespace headwise::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard
